"""A state that is in a rank's memory as several parts is read as the part of its place now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.save import WholeSave
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import Label, SlotError


def test_neither_another_ranks_part_nor_another_worlds_is_taken_for_this_ones(
    tmp_path: Path,
) -> None:
    memory = Memory(tmp_path, WorkerLink(None), every_rank=True)
    for rank, world in ((0, 3), (1, 3), (1, 2)):
        blob = lay_out({"a": torch.tensor([rank, world])})
        label = Label("t", 1, 7, rank, world, True, len(blob.skeleton), blob.size)
        memory.spare("t", (1, 7))  # as a restore does, before the part of the new place is written
        assert memory.ready().write(label, blob).verify() is not None
    for rank, world in ((0, 3), (1, 3), (1, 2)):
        state, label, slot = memory.read("t", (1, 7), {}, ProcessGroup(rank, world))
        assert state["a"].tolist() == [rank, world] == [label.rank, label.world]
        assert memory.find_own("t", (1, 7), ProcessGroup(rank, world)) == WholeSave(slot, label)
    with pytest.raises(SlotError):
        memory.read("t", (1, 7), {}, ProcessGroup(0, 2))


def test_what_is_mapped_stays_so_in_the_next_world_where_nothing_is_spared(tmp_path: Path) -> None:
    memory = Memory(tmp_path, WorkerLink(None), every_rank=True)
    blob = lay_out({"a": torch.tensor([1, 2])})
    label = Label("t", 1, 7, 0, 1, True, len(blob.skeleton), blob.size)
    memory.spare("t", (1, 7))
    slot = memory.ready().write(label, blob)
    assert slot.verify() is not None
    memory.spare("t", (1, 7))
    mapped = slot.memory.data_ptr()
    renewed = memory.renew()
    state, _, again = renewed.read("t", (1, 7), {}, ProcessGroup(0, 1))
    assert state["a"].tolist() == [1, 2]
    assert again.memory.data_ptr() == mapped
    assert [slots.spared for slots in memory._all_slots()] == [{slot}, set()]
    assert [slots.spared for slots in renewed._all_slots()] == [set(), set()]


def test_a_state_on_two_nodes_is_spared_beside_a_newer_one_that_is_not(tmp_path: Path) -> None:
    memory = Memory(tmp_path, WorkerLink(None), every_rank=True)
    kept = []
    for step in range(1, 4):
        blob = lay_out({"a": torch.tensor([step])})
        label = Label("t", 1, step, 0, 1, True, len(blob.skeleton), blob.size)
        memory.spare("t", *((1, one) for one in range(step)))
        kept.append(memory.ready().write(label, blob))
        assert kept[-1].verify() is not None
    memory.spare("t", (1, 3), (1, 1))
    assert memory._slots.spared == {kept[0], kept[2]}
