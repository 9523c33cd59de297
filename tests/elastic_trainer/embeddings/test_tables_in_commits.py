"""Tables in a commit: restored by any number of ranks, refused in words where they can't be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer import (
    Checkpointer,
    ElasticDataset,
    ElasticEmbedding,
    ElasticLoop,
    MismatchError,
    StorageError,
)
from elastic_trainer.checkpoint.recovery import NOTHING
from elastic_trainer.embeddings import split_tables
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.embeddings.row_optimizer import SGD
from elastic_trainer.embeddings.split_tables import MOST_CHANGES, SplitTables
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.attachment import IN_MEMORY
from elastic_trainer.store.attachment_name import (
    bases_by_commit,
    name_of,
    stands_alone,
    superfluous,
)
from elastic_trainer.store.retention import Condition, Found, removable
from elastic_trainer.store.storage import Storage
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from tests.elastic_trainer.embeddings import table_job


def end(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "end-0.json").read_text())
    return found


def test_a_training_that_was_cut_goes_on_as_if_it_never_was(tmp_path: Path) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for folder, steps in ((cut, 20), (cut, 33), (whole, 33)):
        folder.mkdir(exist_ok=True)
        table_job.train(folder, last_step=steps)
    assert end(cut) == end(whole)


def tables_of(loop: ElasticLoop) -> list[str]:
    place = Path(loop.checkpointer.storage.location)
    return sorted(one.name for one in place.glob("tables-*"))


class Net(torch.nn.Module):
    def __init__(self, width: int = 2, name: str = "items") -> None:
        super().__init__()
        self.items = ElasticEmbedding(name, width, optimizer=SGD(lr=0.1))
        self.out = torch.nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.items(ids)[:, :2])
        return found


def loop_of(folder: Path, net: Net | None = None, *, epochs: int = 1, **given: Any) -> ElasticLoop:
    net = net or Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = ElasticDataset(TensorDataset(torch.arange(80).view(40, 2)), batch_size=2, epochs=epochs)
    return ElasticLoop(folder, model=net, optimizer=optimizer, data=data, every=2, **given)


def train(loop: ElasticLoop, last_step: int | None = None) -> None:
    for (ids,) in loop:
        with loop.step():
            (loop.weight * loop.model(ids).square().mean()).backward()
        if loop.steps == last_step:
            loop.stop()


def test_tables_of_commits_that_are_gone_go_too(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, epochs=3)
    train(loop)
    assert loop.steps == 60
    steps = sorted(int(name.split("-")[2]) for name in tables_of(loop))
    bases = {int(name.split("-")[2]) for name in tables_of(loop) if "-from-" not in name}
    # Three commits' and four more are of the steps from 48 on, and need all since their bases.
    assert (steps, bases) == (list(range(38, 62, 2)), {38, 56})


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("train", [table_job.train, table_job.train_own_loop])
def test_a_damaged_table_costs_the_steps_since_the_commit_before(
    tmp_path: Path, train: Callable[..., None]
) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for folder, steps in ((cut, 20), (cut, 33), (whole, 33)):
        folder.mkdir(exist_ok=True)
        train(folder, last_step=steps)
        if steps == 20:
            [file] = folder.glob("commits/tables-*-20-from-*/0.pt")
            damage(file)
            (folder / f"steps-{os.getpid()}").unlink()
    assert (cut / f"steps-{os.getpid()}").read_text().split()[0] == "15"
    assert end(cut) == end(whole)


def test_tables_that_are_damaged_in_all_commits_stop_the_job_unless_it_is_to_begin_anew(
    tmp_path: Path,
) -> None:
    loop = loop_of(tmp_path)
    train(loop)
    commits = len(list(tmp_path.glob("step-*")))
    for name in tables_of(loop):
        damage(tmp_path / name / "0.pt")
    with pytest.raises(StorageError, match=r"none of the commits can be used: .*0\.pt is damaged"):
        train(loop_of(tmp_path, epochs=2))
    assert len(list(tmp_path.glob("step-*"))) == commits
    net = Net()
    with torch.no_grad():
        net.out.weight.fill_(0.5)
    fresh = loop_of(tmp_path, net, epochs=2, fresh=True)
    next(iter(fresh))
    assert fresh.steps == 0 and net.out.weight.eq(0.5).all() and not len(net.items.table)


def test_a_table_that_cant_be_read_stops_the_job_in_words(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    train(loop)
    newest = max(tables_of(loop), key=lambda name: int(name.split("-")[2]))
    (tmp_path / newest / "0.pt").unlink()
    with pytest.raises(StorageError, match=r"0\.pt can't be read"):
        train(loop_of(tmp_path, epochs=2, storage_patience=table_job.SHORT))


@pytest.mark.parametrize("net", [Net(width=3), Net(name="others")], ids=["width", "name"])
def test_another_models_tables_are_refused(tmp_path: Path, net: Net) -> None:
    train(loop_of(tmp_path))
    with pytest.raises(MismatchError, match="holds other tables: expected"):
        train(loop_of(tmp_path, net, epochs=2))


def test_who_would_lose_tables_is_refused(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = ElasticDataset(TensorDataset(torch.arange(8)), batch_size=2, epochs=1)
    for tables in ((), SplitTables([Net().items])):
        with pytest.raises(TypeError, match=r"1 ElasticEmbedding, .* tables=SplitTables\(\["):
            Checkpointer(tmp_path, model=net, optimizer=optimizer, data=data, tables=tables)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="extra has a GradScaler, and the model tables"):
        loop_of(tmp_path, apply=lambda: None, extra={"scaler": scaler})


def test_a_table_that_isnt_stepped_or_is_begun_anew_is_refused(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = ElasticDataset(TensorDataset(torch.arange(80).view(40, 2)), batch_size=2, epochs=1)
    tables = SplitTables([net.items])
    checkpointer = Checkpointer(
        tmp_path, model=net, optimizer=optimizer, data=data, tables=tables, every=1
    )
    batches = iter(data)
    for steps in (1, 2):
        net(*next(batches)).sum().backward()
        if steps == 1:
            tables.step()
            checkpointer.step()
    with pytest.raises(RuntimeError, match="tables are at step 1, and training at step 2: exp"):
        checkpointer.step()
    with pytest.raises(RuntimeError, match=r"begin\(\) empties the tables, which are at step 1"):
        tables.begin()
    data = ElasticDataset(TensorDataset(torch.arange(8)), batch_size=2, epochs=1)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="extra has a GradScaler, and the model tables"):
        Checkpointer(
            tmp_path / "scaled",
            model=net,
            optimizer=optimizer,
            data=data,
            tables=SplitTables([net.items]),
            extra={"scaler": scaler},
        )


def test_ids_of_a_batch_that_only_keeps_pace_are_not_counted() -> None:
    module = ElasticEmbedding("t", 2, optimizer=SGD(lr=1.0), admit_after=2)
    data = ElasticDataset(TensorDataset(torch.arange(8)), batch_size=2, epochs=1)
    tables = SplitTables([module])
    tables.follow(data)
    for data.weight, ids in ((1.0, 5), (0.0, 5), (1.0, 6), (1.0, 6)):
        module(torch.tensor([[ids]])).sum().backward()
    tables.step()
    assert module.table.entries().ids.tolist() == [6]


def test_attachments_stay_while_a_commit_may_name_them() -> None:
    names = [f"tables-7-{step}" for step in range(10)] + ["tables-9-4-8-0a", "step-2", "TRAINING"]
    assert superfluous(names, "tables", 3) == [f"tables-7-{step}" for step in (0, 1, 3, 4, 5, 6, 7)]


@given(st.data())
def test_attachments_of_the_base_of_what_a_commit_may_name_stay(data: st.DataObject) -> None:
    """And nothing else does, so that a folder doesn't grow."""
    count = data.draw(st.integers(1, 40))
    names, base, bases = [], 0, []
    for step in range(count):
        if not step or data.draw(st.booleans()):
            base = step
        bases.append(base)
        names.append(f"tables-7-{step}" + ("" if base == step else f"-from-7-{base}"))
    committed = data.draw(st.sets(st.integers(0, count - 1)))
    goes = superfluous([*names, *(f"step-{one}" for one in committed)], "tables", 4)
    needed = {bases[one] for one in (*committed, *range(max(0, count - 4), count))}
    assert goes == [name for name, base in zip(names, bases, strict=True) if base not in needed]


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(2, 4))
def test_commits_that_stay_stand_on_two_saves_with_all_rows(fails: list[bool], keep: int) -> None:
    """Whichever of them fail, though saves with all rows are rare."""
    names: list[str] = []
    base, saves, alone, bases = (0, 0), 0, False, 0
    for step, failed in enumerate(fails):
        if not bases or alone or saves > MOST_CHANGES:
            base, saves, bases = (7, step), 0, bases + 1
        saves += 1
        names.append(name_of("tables", (7, step), None if base == (7, step) else base))
        alone = stands_alone(names, "tables", base)
        names = [one for one in names if one not in superfluous(names, "tables", keep + IN_MEMORY)]
        if failed:
            continue
        names.append(f"step-{step}")
        needs = bases_by_commit(names)
        commits = {
            one: Found(Condition.COMPLETE, (7, int(one[5:]))) for one in names if one[:5] == "step-"
        }
        goes = removable(commits, keep, needs)
        names = [one for one in names if one not in goes]
        kept = [needs[one.identity] for name, one in commits.items() if name not in goes]
        assert all(kept), "the tables of a commit are gone"
        assert keep >= len(kept) - 1
        assert len(kept) < 2 or not frozenset.intersection(*kept)
    assert bases <= 2 + sum(fails) + len(fails) // (MOST_CHANGES + 1)


@pytest.mark.parametrize("steps", [4, 6, 22, 26])
def test_no_damaged_file_takes_all_commits(tmp_path: Path, steps: int) -> None:
    whole = tmp_path / "whole"
    train(loop_of(whole, epochs=2), steps)
    files = [one.relative_to(whole) for one in whole.glob("*-*/*")]
    assert len({one.parts[0] for one in files}) >= 4
    for place, file in enumerate(files):
        folder = tmp_path / str(place)
        shutil.copytree(whole, folder)
        damage(folder / file)
        loop = loop_of(folder, epochs=2)
        next(iter(loop))
        assert (whole / f"step-{loop.steps}").exists(), file
        loop.stop()


def test_commit_that_has_only_changes_is_restored_whole(tmp_path: Path) -> None:
    """Rows that were evicted or admitted since the base, too."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for folder, steps, every in ((cut, 47, 5), (cut, 83, 5), (whole, 83, 1000)):
        folder.mkdir(exist_ok=True)
        table_job.train(folder, last_step=steps, every=every)
        if steps == 47:
            names = [one.name for one in (folder / "commits").glob("tables-*")]
            assert len(names) > 4 and sum("-from-" not in one for one in names) < 4, names
    assert end(cut) == end(whole)


def test_saves_of_what_changed_are_smaller_and_begin_anew_in_each_round(tmp_path: Path) -> None:
    module = ElasticEmbedding("t", 8, optimizer=SGD(lr=1.0))
    tables, storage = SplitTables([module]), Storage(tmp_path)
    tables.begin()

    def save(step: int, ids: torch.Tensor) -> int:
        module(ids).sum().backward()
        tables.step()
        tables.save(storage, (1, step))
        (tmp_path / f"step-{step}").mkdir()
        found = tables.state_dict()
        return int((tmp_path / found["place"] / "0.pt").stat().st_size)

    whole = save(0, torch.arange(3000)[None])
    assert save(1, torch.arange(3)[None]) > whole - 1000, "all commits would need the first one"
    changes = [save(step, torch.arange(step, step + 3)[None]) for step in range(2, 10)]
    assert max(changes) < whole / 10
    assert save(10, torch.arange(3)[None]) > whole - 1000, "so many saves aren't read"
    assert save(11, torch.arange(3)[None]) < whole / 10
    expected = module.table.entries()
    tables.level((0, 11), 1, storage)
    assert save(12, torch.arange(3)[None]) > whole - 1000, "buckets may have moved"

    again = SplitTables([module])
    module.table.clear()
    again.load(storage, tables.state_dict())
    assert torch.equal(module.table.entries().ids, expected.ids)


def test_save_that_failed_is_followed_by_one_with_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ElasticEmbedding("t", 2, optimizer=SGD(lr=1.0))
    tables, storage = SplitTables([module]), Storage(tmp_path)
    tables.begin()
    module(torch.arange(9)[None]).sum().backward()
    tables.step()
    tables.save(storage, (1, 1))
    with monkeypatch.context() as broken:
        broken.setattr(split_tables, "write_tables", None)
        with pytest.raises(TypeError):
            tables.save(storage, (1, 2))
    tables.save(storage, (1, 3))
    assert tables.state_dict()["before"] == [] and not module.table.watchers[1:]


class _Meeting(ProcessGroup):
    """Two ranks, one of which is this process and the other what a test says."""

    def gather(self, value: Any) -> list[Any]:
        return [value, OTHER]


OTHER: tuple[Any, ...] = ()


def test_who_received_a_step_that_others_applied_comes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, ahead = (ElasticEmbedding("t", 2, optimizer=SGD(lr=1.0)) for _ in range(2))
    tables, reference = SplitTables([behind]), SplitTables([ahead])
    for one, split in ((behind, tables), (ahead, reference)):
        one(torch.tensor([[5, 6]])).sum().backward()
        split.end_batch(counts=True)
        split.push((3, 11))
    reference.apply()
    assert len(behind.table) == 0

    held = list(range(1024))
    monkeypatch.setattr(f"{__name__}.OTHER", ((3, 11), (3, 11), NOTHING, held[:5], []))
    assert tables.meet(_Meeting(0, 2), (3, 10))  # all parts are there, though this rank is behind
    assert tables.meet(ProcessGroup(), (3, 11))
    tables.level((3, 11), 4, Storage(tmp_path))
    rows = torch.tensor([5, 6]).numpy()
    assert torch.equal(behind.table.pull(rows), ahead.table.pull(rows))
    assert behind.owners == OwnerMap.even(4, 1)


def test_who_is_behind_without_having_received_the_step_has_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = SplitTables([ElasticEmbedding("t", 2, optimizer=SGD(lr=1.0))])
    monkeypatch.setattr(f"{__name__}.OTHER", ((3, 11), (3, 11), NOTHING, list(range(512)), []))
    assert not tables.meet(_Meeting(0, 2), (3, 10))


def test_copies_take_the_place_of_lost_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = SplitTables([ElasticEmbedding("t", 2, optimizer=SGD(lr=1.0), backup=True)])
    copies = list(range(500, 1024))
    for held, whole in ((list(range(500)), True), (list(range(499)), False)):
        monkeypatch.setattr(f"{__name__}.OTHER", ((3, 11), (3, 11), NOTHING, held, copies))
        assert tables.meet(_Meeting(0, 2), (3, 10)) is whole


def test_a_backup_of_some_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="some tables have backup=True and some haven't"):
        SplitTables(
            [
                ElasticEmbedding("a", 2, optimizer=SGD(), backup=True),
                ElasticEmbedding("b", 2, optimizer=SGD()),
            ]
        )


def test_nothing_to_go_back_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = SplitTables([ElasticEmbedding("t", 2, optimizer=SGD(lr=1.0))])
    monkeypatch.setattr(f"{__name__}.OTHER", ((3, 11), (3, 11), NOTHING, [1], []))
    assert not tables.meet(_Meeting(0, 2), NOTHING)
    with pytest.raises(StorageError, match="a rank was lost with its part of the tables, of step"):
        tables.level(NOTHING, 5, Storage(tmp_path))
