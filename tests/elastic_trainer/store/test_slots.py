"""Slots of shared memory: what is sealed in them outlives anything."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import PAYLOAD, Slot, SlotError, Slots

from tests.elastic_trainer.store.slot_states import label, rewrite_label, save, steps
from tests.elastic_trainer.torch_process import TorchProcess
from tests.patience import PATIENCE

WRITES = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
import torch
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import Slots
from tests.elastic_trainer.store.slot_states import label

slots, step = Slots(Path(sys.argv[1]), 0), int(sys.argv[2])
while True:
    step += 1
    state = {{str(number): torch.full((8000,), step) for number in range(40)}}
    slots.write(label(step, state), lay_out(state)).verify()
    os.write(1, b"%d\\n" % step)
"""
"""Writes one state after the other, and says each one's step once it is sealed."""


class TestSlots:
    def test_a_flip_of_any_byte_is_noticed(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        slot = save(slots, 5)
        assert steps(slots) == []  # not believed before it is verified
        assert slot.verify() is not None
        assert steps(slots) == [5]
        content = slot.path.read_bytes()
        wrong = 0
        for at in range(len(content)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << at % 8
            slot.path.write_bytes(damaged)
            try:
                state = Slot(slot.path).read()
            except SlotError:
                wrong += 1
            else:  # padding, where nothing is
                assert torch.equal(state["model"]["a"], torch.full((50,), 5.0))
        assert wrong > 600 + 48 + 100

    def test_a_slot_that_is_dropped_leaves_no_descriptor(self, tmp_path: Path) -> None:
        save(Slots(tmp_path, 0), 5).verify()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            Slot(tmp_path / "rank-0-0").read()
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    def test_the_newest_stays_while_the_next_is_written(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        for step in range(1, 8):
            slot = save(slots, step)
            assert slot.verify() is not None
            assert steps(slots) == [step, step - 1][:step]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-0", "rank-0-1"]

    def test_no_save_waits_for_one_that_is_being_stored(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        stored = save(slots, 1)
        stored.verify()
        with stored.locked(exclusive=False) as ours:
            assert ours
            for step in range(2, 7):
                slot = save(slots, step)
                assert slot is not stored
                slot.verify()
                assert set(steps(slots)) == {1, step, max(step - 1, 1)}
            assert torch.equal(stored.read()["model"]["a"], torch.full((50,), 1.0))

    def test_a_process_that_was_forked_while_it_was_locked_does_not_keep_it_so(
        self, tmp_path: Path
    ) -> None:
        stored = save(Slots(tmp_path, 0), 1)
        ends, go = os.pipe()
        with stored.locked(exclusive=False):
            child = os.fork()  # as a data loader does in another thread
            if child == 0:
                os.close(go)
                os.read(ends, 1)
                os._exit(0)
        try:
            with stored.locked(exclusive=True) as ours:
                assert ours
        finally:
            os.close(go)
            os.waitpid(child, 0)
            os.close(ends)

    def test_what_is_sealed_stays_until_something_newer_is(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        sealed = save(slots, 1)
        sealed.verify()
        for step in range(2, 8):  # faster than the agent
            assert save(slots, step) is not sealed
            assert steps(slots) == [1]
        newest = save(slots, 8)
        newest.verify()
        assert save(slots, 9) is not newest

    def test_of_two_slots_of_one_step_the_unsealed_is_overwritten(self, tmp_path: Path) -> None:
        for first in (0, 1):
            slots = Slots(tmp_path / str(first), 0)
            slots.folder.mkdir()
            state = {"a": torch.ones(50)}
            for slot in slots.slots[:2]:
                slot.write(label(5, state), lay_out(state))
            slots.slots[first].verify()
            for step in (6, 7):
                save(slots, step)
                assert 5 in steps(slots)

    def test_without_room_for_a_third_the_unsealed_makes_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = Slots(tmp_path, 0)
        save(slots, 1).verify()
        unsealed = save(slots, 2)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        assert save(slots, 3) is unsealed
        assert steps(slots) == [1]

    def test_another_trainings_states_make_way(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        save(slots, 100, training="old").verify()
        save(slots, 101, training="old").verify()
        save(slots, 1).verify()
        save(slots, 2).verify()
        assert {found.training for found in slots.sealed().values()} == {"t"}

    @pytest.mark.parametrize("change", [{"colour": "red"}, {"place": None}])
    def test_a_slot_of_another_version_is_passed_over_and_makes_way(
        self, tmp_path: Path, change: dict[str, str | None]
    ) -> None:
        """Each change adds a field to the label, or takes one away (None)."""
        slots = Slots(tmp_path, 0)
        save(slots, 4).verify()
        other = save(slots, 5)
        other.verify()
        rewrite_label(other, change)
        assert other.label() is None and other.verify() is None
        assert steps(slots) == [4]
        with pytest.raises(SlotError, match="no state that was verified"):
            other.read()
        assert save(slots, 6).path == other.path

    @pytest.mark.process
    def test_sigkill_at_any_moment_leaves_a_whole_state(self, tmp_path: Path) -> None:
        dice = random.Random(1)
        last = 0
        for kill in range(30):
            writer = TorchProcess(WRITES, tmp_path, last)
            try:
                said = writer.stdout.readline()
                time.sleep(dice.random() * 0.005)
            finally:
                writer.kill()
            more, errors = writer.communicate(timeout=PATIENCE)
            assert writer.returncode == -signal.SIGKILL, errors
            last = int((said + more).splitlines()[-1])
            slot, found = next(iter(Slots(tmp_path, 0).sealed().items()))
            assert found.step in (last, last + 1), f"kill {kill}"  # killed before it could say so
            assert all(bool((part == found.step).all()) for part in slot.read().values())
            last = found.step

    def test_too_little_memory_is_said_with_what_to_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = SimpleNamespace(f_bavail=1, f_frsize=65536)
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        slots = Slots(tmp_path, 0)
        slots.check(10_000)
        with pytest.raises(
            SlotError, match=r"has 65536 bytes.*expected 208192.*shared-memory.*shm-size"
        ):
            slots.check(100_000)
        assert slots.has_room(10_000) and not slots.has_room(100_000)

    def test_room_for_copies_leaves_places_for_those_that_follow(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        slots.spared = frozenset({save(slots, 1)})
        size = slots.slots[0].path.stat().st_size - PAYLOAD
        slots.reserve("t", [size] * 5)
        made = {path for path in tmp_path.iterdir() if path.stat().st_size == PAYLOAD + size}
        assert len(made) == 6 and len(slots.spared) == 1
        for _ in range(5):
            slots.spared |= {slots.copy("t", size, lambda _: None)}
        assert {slot.path for slot in slots.spared} == made
        with pytest.raises(SlotError, match="bytes in 0 places"):
            slots.reserve("t", [size] * 2)
        slots.reserve("t", [size])  # the next state's
        save(slots, 8).verify()
        save(slots, 9)

    def test_room_is_taken_before_a_copy_is_under_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = Slots(tmp_path, 0)

        def full(*_: object) -> None:  # by the node's other ranks, since there was room
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(SlotError, match="No space left on device"):
            slots.reserve("t", [1000])

    def test_memory_that_ends_later_leaves_the_newest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = Slots(tmp_path, 0)
        save(slots, 1).verify()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(SlotError, match=r"No space left on device; make it larger.*/dev/shm"):
            save(slots, 2)
        assert steps(slots) == [1]
