"""History keeps runs whole, in SQLite and in PostgreSQL, and says so where it can't."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brain import postgres
from tests.brain.world import NOW, amounts, load, run
from tests.examples import examples
from volcano_elastic.api.amount import Bytes, Percent
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.history.gpu_load import GpuUse
from volcano_elastic.brain.history.run import anonymous
from volcano_elastic.brain.history.schema import METADATA
from volcano_elastic.cli.main import main
from volcano_elastic.database.database import DatabaseError

BYTES = st.integers(0, 2**38).map(Bytes)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[postgres.Server]:
    try:
        with postgres.server() as server:
            yield server
    except postgres.NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.process)],
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'history.db'}"
        return
    server: postgres.Server = request.getfixturevalue("postgres_server")
    yield server.url
    engine = sa.create_engine(server.url)
    with engine.begin() as connection:
        METADATA.drop_all(connection)
        connection.execute(sa.text("DROP TABLE IF EXISTS alembic_version"))
    engine.dispose()


@pytest.fixture
def history(url: str) -> Iterator[History]:
    found = History(url)
    found.migrate()
    yield found
    found.close()


def test_a_run_comes_back_as_it_was_written(history: History) -> None:
    history.write(run())
    assert history.run("u1") == run()
    assert history.run("u2") is None


def test_a_run_is_kept_once_as_it_was_written_last(history: History) -> None:
    history.write(run(outcome="", ended=None))
    later = run(speeds={2: 55.5}, loads=(load(3, amounts(9, 9)),))
    history.write(later)
    assert history.runs() == [later]


def test_runs_are_found_by_job_user_and_queue_newest_first(history: History) -> None:
    runs = [run(f"u{i}", created=NOW + timedelta(hours=i)) for i in range(4)]
    runs[0] = run("u0", user="bob")
    runs[1] = run("u1", queue="speech", created=NOW + timedelta(hours=1))
    for one in runs:
        history.write(one)
    assert [r.uid for r in history.runs()] == ["u3", "u2", "u1", "u0"]
    assert [r.uid for r in history.runs(user="bob")] == ["u0"]
    assert [r.uid for r in history.runs(user="ann", queue="vision")] == ["u3", "u2"]
    assert [r.uid for r in history.runs(name="resnet", namespace="team", most=1)] == ["u3"]
    assert history.runs(name="resnet", namespace="other") == []


def test_old_runs_are_forgotten_with_all_that_is_theirs(history: History) -> None:
    for i in range(250):
        history.write(run(f"old{i}", seen=NOW, loads=(load(0, amounts(1, 1)),)))
    history.write(run("new"))
    assert history.forget(NOW + timedelta(hours=1)) == 250
    assert [r.uid for r in history.runs()] == ["new"]
    with history.database.engine.begin() as connection:
        left = {
            table.name: connection.scalar(sa.text(f"SELECT count(*) FROM {table.name}"))
            for table in METADATA.sorted_tables
        }
    assert left == {"runs": 1, "speeds": 2, "pod_loads": 2}


def test_migrating_again_keeps_what_is_there(url: str, history: History) -> None:
    history.write(run())
    again = History(url)
    again.migrate()
    assert again.runs() == [run()]
    again.close()


def test_runs_of_the_first_version_are_kept_and_know_nothing_of_gpus(
    url: str, history: History
) -> None:
    history.write(run())
    config = Config()
    config.set_main_option("script_location", "volcano_elastic.brain.history:migrations")
    with history.database.transaction() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "1")
    with pytest.raises(DatabaseError, match="checkpoint"):
        history.runs()
    history.migrate()
    assert history.runs() == [run()]


def test_migrations_lead_to_the_tables_as_the_code_has_them(history: History) -> None:
    with history.database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_a_database_of_a_later_version_is_left_alone(history: History) -> None:
    with history.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '99'"))
    with pytest.raises(DatabaseError, match="99"):
        history.migrate()


def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path: Path) -> None:
    history = History(f"sqlite:///{tmp_path / 'history.db'}")
    history.migrate()
    history.write(run())

    def full(connection: object, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=1")  # type: ignore[attr-defined]

    history.close()
    sa.event.listen(history.database.engine, "connect", full)
    many = tuple(load(i, amounts(1, 1)) for i in range(300))
    with pytest.raises(DatabaseError, match=r"history\.db: database or disk is full"):
        history.write(run("u2", loads=many))
    assert history.runs() == [run()]


@pytest.mark.parametrize("damage", ["no folder", "no tables", "no database"])
def test_a_lost_database_is_said(tmp_path: Path, damage: str) -> None:
    file = tmp_path / ("nowhere/history.db" if damage == "no folder" else "history.db")
    if damage == "no database":
        file.write_bytes(b"not a database" * 100)
    history = History(f"sqlite:///{file}")
    with pytest.raises(DatabaseError, match=r"history\.db"):
        history.write(run())
    with pytest.raises(DatabaseError, match=r"history\.db"):
        history.runs()


@pytest.mark.parametrize("text", ["", "history.db", "nosuch://x", "postgresql+nosuch://x"])
def test_what_is_no_databases_url_is_refused(text: str) -> None:
    with pytest.raises(DatabaseError, match="expected a database's URL"):
        History(text)


@pytest.mark.process
def test_a_server_that_was_restarted_is_used_again(postgres_server: postgres.Server) -> None:
    history = History(postgres_server.url)
    history.migrate()
    history.write(run())
    postgres_server.stop()
    try:
        with pytest.raises(DatabaseError) as refused:
            history.write(run("u2"))
        assert "password" not in str(refused.value)
    finally:
        postgres_server.start()
    history.write(run("u2"))
    assert {r.uid for r in history.runs()} == {"u1", "u2"}
    assert history.forget(NOW + timedelta(days=1)) == 2
    history.close()


@settings(max_examples=examples(30), deadline=None)
@given(
    used=st.lists(
        st.tuples(
            *(st.integers(0, 64_000), st.integers(0, 2**38), st.integers(0, 10**6)),
            st.none() | st.builds(GpuUse, BYTES, st.none() | st.integers(0, 100).map(Percent)),
        ),
        max_size=8,
    ),
    sizes=st.dictionaries(st.sampled_from(("Worker", "PS")), BYTES),
    text=st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20),
    speeds=st.dictionaries(st.integers(1, 10**6), st.floats(0, 1e12), max_size=4),
)
def test_any_run_comes_back_as_it_was(
    used: list[tuple[int, int, int, GpuUse | None]],
    sizes: dict[str, Bytes],
    text: str,
    speeds: dict[int, float],
) -> None:
    history = History("sqlite://")
    history.migrate()
    one = load()
    for cpu, memory, seconds, gpu in used:
        sample = amounts(cpu / 1000, memory / 2**30)
        one = one.with_sample(sample, NOW + timedelta(seconds=seconds), amounts(1, 1), gpu)
    written = run(user=text, labels={text: text}, speeds=speeds, loads=(one,), checkpoint=sizes)
    history.write(written)
    assert history.run("u1") == written
    history.close()


def test_an_export_names_nobody_and_keeps_who_is_the_same() -> None:
    runs = [run("u1"), run("u2"), run("u3", user="bob", queue="")]
    hidden = [anonymous(one, "salt") for one in runs]
    assert hidden[0].user == hidden[1].user != hidden[2].user
    assert hidden[2].queue == "" and hidden[0].loads == runs[0].loads
    told = repr(hidden)
    for name in ("ann", "bob", "vision", "resnet", "imagenet", "'team'"):
        assert name not in told
    assert anonymous(runs[0], "other").user != hidden[0].user


def test_the_busiest_pod_tells_what_a_role_needs() -> None:
    one = run(loads=(load(0, amounts(2, 3), amounts(1, 4)), load(1, amounts(6, 1)), load(2)))
    busiest = one.busiest["Worker"]
    assert amounts(6, 4).cpu <= busiest.cpu <= amounts(6.4, 4).cpu
    assert busiest.memory == amounts(6, 4).memory


def test_the_command_prints_runs_as_a_table_and_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    history = History(url)
    history.migrate()
    gpu = GpuUse(Bytes.gib(30), Percent(85))
    used = load(0, amounts(2, 3)).with_sample(amounts(1, 1), NOW, amounts(8, 16), gpu)
    history.write(run(loads=(used,), checkpoint={"Worker": Bytes.gib(2)}))
    history.close()
    invoke = CliRunner().invoke
    shown = invoke(main, ["history", "resnet", "-n", "team", "--database", url])
    assert shown.exit_code == 0 and "Succeeded" in shown.output and "ann" in shown.output
    assert "30Gi of GPUs" in shown.output
    listed = invoke(main, ["history", "--user", "ann", "--json", "--database", url])
    (told,) = json.loads(listed.output)
    assert told["outcome"] == "Succeeded" and told["checkpoint"] == {"Worker": "2Gi"}
    (pod,) = told["pods"]
    assert pod["gpu"]["memory"] == "30Gi" and 85 <= pod["gpu"]["percent"] <= 90
    hidden = invoke(
        main, ["history", "--queue", "vision", "--json", "--anonymous", "--database", url]
    )
    assert hidden.exit_code == 0 and json.loads(hidden.output) and "ann" not in hidden.output
    nothing = invoke(main, ["history", "--user", "eve", "--database", url])
    assert (nothing.exit_code, nothing.output) == (0, "no run is known\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected JOB, --user or --queue"),
        (["a", "--anonymous"], "--anonymous needs --json"),
        (["a", "--database", "sqlite:////nowhere/history.db"], "unable to open database file"),
    ],
)
def test_the_command_says_what_it_misses(arguments: list[str], said: str) -> None:
    given = arguments if "--database" in arguments else [*arguments, "--database", "sqlite://"]
    found = CliRunner().invoke(main, ["history", *given])
    assert found.exit_code != 0 and said in found.output
