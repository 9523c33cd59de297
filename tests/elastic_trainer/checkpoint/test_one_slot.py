"""Shared memory that a state fits into once: one slot, which waits for storage."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.link.worker_link import SOCKET_VARIABLE, WorkerLink
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.blob import Blob, lay_out
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.slot import PAYLOAD, Label, SlotError, payload_size
from torch.utils.data import TensorDataset


class Agent(WorkerLink):
    """One that verifies at once, and stores when it is asked."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[bool] = []
        self.error = ""

    def settle(self, *, storage: bool) -> str:
        self.asked.append(storage)
        return self.error


def state(step: int) -> tuple[Label, Blob]:
    blob = lay_out({"a": torch.full((5000,), float(step))})
    return Label("t", 1, step, 0, 1, False, len(blob.skeleton), blob.size), blob


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what sets how many payloads fit into shared memory that nothing is in yet."""

    def set_to(payloads: float, folder: Path) -> None:
        most = int(payloads * (PAYLOAD + payload_size(state(1)[1])))

        def statvfs(_: object) -> SimpleNamespace:
            held = sum(path.stat().st_size for path in folder.iterdir())
            return SimpleNamespace(f_bavail=max(0, most - held), f_frsize=1)

        monkeypatch.setattr(os, "statvfs", statvfs)

    return set_to


def test_a_state_that_fits_once_is_kept_in_one_slot_once_storage_has_the_one_before(
    tmp_path: Path, room: Any, caplog: pytest.LogCaptureFixture
) -> None:
    room(1.5, tmp_path)
    agent = Agent()
    memory = Memory(tmp_path, agent)
    with caplog.at_level(logging.WARNING):
        memory.prepare(state(1)[1])
    assert "one slot is used" in caplog.text and "volcano-elastic.io/shared-memory" in caplog.text
    for step in (1, 2, 3):
        slot = memory.ready().write(*state(step))
        assert slot.verify() is not None
        assert [found.step for found in memory._slots.sealed().values()] == [step]
    assert agent.asked == [True] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0-0"]

    agent.error = "the volume is full"
    with pytest.raises(SlotError, match="not in storage: the volume is full"):
        memory.ready().write(*state(4))
    assert [found.step for found in memory._slots.sealed().values()] == [3]


def with_slots(
    tmp_path: Path, agent: Agent, data: ElasticDataset, *, restore: bool = True
) -> tuple[Checkpointer, Memory]:
    """Return a Checkpointer that saves each step, and its memory."""
    (folder := tmp_path / "slots").mkdir()
    model = torch.nn.Linear(60, 60)
    checkpointer = Checkpointer(
        tmp_path / "commits",
        model=model,
        optimizer=torch.optim.SGD(model.parameters()),
        data=data,
        memory=Memory(folder, agent),
        link=agent,
        every=1,
        restore=restore,
    )
    memory = checkpointer._memory
    assert memory is not None
    return checkpointer, memory


def test_the_slot_is_used_again_once_a_later_state_is_in_storage(
    tmp_path: Path,
) -> None:
    agent = Agent()
    data = ElasticDataset(TensorDataset(torch.ones(8, 60)), global_batch=1, epochs=9)
    checkpointer, memory = with_slots(tmp_path, agent, data)
    memory._slots.turns = 1
    held = []
    for step, _ in enumerate(data, 1):
        # The agent tells of its last error until it has stored something again.
        agent.error = "the volume was full" if step > 1 else ""
        checkpointer.step()
        held.append([label.step for slot in memory._slots.slots if (label := slot.label())])
        if step == 4:
            break
    assert held == [[1], [1], [3], [3]]
    assert [commit.step for commit in checkpointer.storage.commits()] == [4, 2]


class Linked(Agent):
    @property
    def agent(self) -> bool:
        return True


class Others(ProcessGroup):
    """A group whose other rank says what rank 0's agent says."""

    said = ""
    narrow = False

    def gather(self, value: Any) -> list[Any]:
        return [self.narrow, value] if isinstance(value, bool) else [value, value]

    def from_rank(self, source: int, value: Any) -> Any:
        return self.said if isinstance(value, str) else value

    def barrier(self) -> None:
        return


@pytest.mark.parametrize("narrow", ["here", "elsewhere", ""])
def test_the_one_slot_of_any_node_waits_for_the_storage_of_the_node_that_stores(
    tmp_path: Path, narrow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Others, "narrow", narrow == "elsewhere")
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path))  # an agent of its own
    agent = Linked()
    samples = TensorDataset(torch.ones(8, 60))
    data = ElasticDataset(samples, global_batch=2, epochs=9, group=Others(1, 2))
    checkpointer, memory = with_slots(tmp_path, agent, data, restore=False)
    memory._slots.turns = 1 if narrow == "here" else 2
    held = []
    for step, _ in enumerate(data, 1):
        monkeypatch.setattr(Others, "said", "the volume is full" if step in (2, 3) else "")
        data.applied()
        checkpointer.save_if_due()
        held.append(max(label.step for slot in memory._slots.slots if (label := slot.label())))
        if step == 4:
            break
    assert held == ([1, 1, 1, 4] if narrow == "here" else [1, 2, 3, 4])


def test_a_newcomer_knows_before_its_first_step_that_all_are_to_wait_for_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop may end in that step: ranks of which some wait and some don't would for ever."""
    samples = TensorDataset(torch.ones(8, 60))
    for narrow in (True, False):  # as other rounds' nodes may have more room
        found = []
        for rank, before in enumerate((not narrow, narrow)):
            (folder := tmp_path / f"{narrow}-{rank}").mkdir()
            monkeypatch.setenv(SOCKET_VARIABLE, str(folder))
            data = ElasticDataset(samples, global_batch=2, epochs=9, group=Others(rank, 2))
            checkpointer, memory = with_slots(folder, Linked(), data, restore=False)
            memory._slots.turns = 1 if narrow and rank == 0 else 2
            checkpointer._narrow = before  # in another round
            found.append(checkpointer)
        said = max(one.narrow for one in found)
        for one in found:
            one.restore(narrow=said)
        assert [one._narrow for one in found] == [narrow, narrow]


def test_where_all_wait_for_storage_a_save_that_failed_is_due_when_it_is_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(6, 6)
    checkpointer = Checkpointer(
        tmp_path / "commits",
        model=model,
        optimizer=torch.optim.SGD(model.parameters()),
        data=ElasticDataset(TensorDataset(torch.ones(8, 6)), global_batch=1, epochs=9),
        every=3,
    )
    for narrow, asked in ((False, [3, 4, 5]), (True, [3, 6])):
        checkpointer._narrow, checkpointer._tried, checkpointer.saved = narrow, 0, None
        due = []

        def fail(due: list[int] = due, **_: object) -> None:
            due.append(checkpointer.data.steps)
            raise StorageError("full")

        monkeypatch.setattr(checkpointer, "_save", fail)
        for step in range(1, 6 + narrow):
            monkeypatch.setattr(type(checkpointer.data), "steps", property(lambda _, at=step: at))
            checkpointer.save_if_due()
        assert due == asked


def test_two_fit_where_there_is_room_and_nothing_where_there_is_none(
    tmp_path: Path, room: Any
) -> None:
    room(2.0, tmp_path)
    agent = Agent()
    memory = Memory(tmp_path, agent)
    memory.prepare(state(1)[1])
    memory.ready().write(*state(1))
    assert memory._slots.turns == 2 and not agent.asked

    (none := tmp_path / "none").mkdir()
    room(0.9, none)
    with pytest.raises(SlotError, match="2 times the state"):
        Memory(none, agent).prepare(state(1)[1])

    room(1.5, none)  # of a sharded state all ranks' parts are to be there
    with pytest.raises(SlotError, match="2 times the state"):
        Memory(none, agent, every_rank=True).prepare(state(1)[1])
