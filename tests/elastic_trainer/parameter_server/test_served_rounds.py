"""ElasticLoop on parameter servers, under real torchrun agents: tables and model end as in an
undisturbed run, whoever comes, goes or is killed."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer.embeddings import table_job
from tests.elastic_trainer.embeddings.test_tables_in_rounds import (
    PATIENT,
    assert_undisturbed,
    disturb,
)
from tests.elastic_trainer.parameter_server.servers import Servers
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers("--copy-every", 0.5, of_first=("--storage", tmp_path / "servers"))
    yield found
    found.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(folder, Path(table_job.__file__).read_text())
    yield job
    job.close()


def test_tables_end_as_undisturbed_over_joins_leaves_kills_and_other_servers(
    servers: Servers, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as given:
        given.setenv("SERVERS", servers.first)
        servers.start()
        disturb(job, ["join", "kill", "leave", "join"], random.Random(3))
    assert_undisturbed(job, tmp_path / "undisturbed")


@pytest.mark.parametrize("killed", ["apply", "applied", "a server"])
def test_who_is_killed_costs_no_exactness(
    servers: Servers, job: Job, tmp_path: Path, killed: str
) -> None:
    """Also where a copy of a lost server's rows is there: it is behind."""
    second = servers.start()
    environment = {"SERVERS": servers.first, "DIE_AT": killed, **PATIENT}
    job.start(0, 1, environment=environment, restarts=100)
    told = job.stepping(2)
    if killed == "a server":
        servers.wait_for_shares(2)
        told = job.status()
        servers.end(second, signal.SIGKILL)
        servers.start(second)
        job.stepping(2, after_round=told["round"])
    else:
        job.until("rank 1 is killed", lambda told: (job.folder / "died").exists())
        job.stepping(2, after_round=job.status()["round"] - 1)
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in range(2)] == [0, 0], job.logs()
    assert_undisturbed(job, tmp_path / "undisturbed")
