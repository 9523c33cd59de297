"""States in shared memory: never torn, never silently wrong, and at no save in the way."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset
from torchrun_job import Job

from trainer.agent.link import WorkerLink
from trainer.agent.memory import ABANDONED_SECONDS, MemoryFolder
from trainer.agent.persister import Persister, Saved
from trainer.agent.workers import WorkerServer
from trainer.checkpoint import replica
from trainer.checkpoint.blob import BlobError, lay_out, own, read
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.level import NOTHING, Holding, Source, level, next_run
from trainer.checkpoint.memory import Memory
from trainer.checkpoint.model_state import MismatchError
from trainer.checkpoint.slot import Label, Slot, SlotError, Slots
from trainer.checkpoint.storage import Storage, StorageError
from trainer.coordinator.message import Committed
from trainer.data.audit import verify
from trainer.data.dataset import ElasticDataset
from trainer.data.process_group import ProcessGroup


def label(step: int, state: Any, run: int = 1, training: str = "t") -> Label:
    blob = lay_out(state)
    return Label(training, run, step, 0, 1, False, len(blob.skeleton), blob.size)


def a_state(number: float) -> dict[str, Any]:
    values = torch.full((50,), number)
    cursor = {"epoch": 0, "position": 1, "step": int(number)}
    return {"model": {"a": values, "b": values[:7].double()}, "cursor": cursor}


def save(slots: Slots, step: int, training: str = "t") -> Slot:
    state = a_state(step)
    return slots.write(label(step, state, training=training), lay_out(state))


def steps(slots: Slots) -> list[int]:
    return [found.step for found in slots.sealed().values()]


class TestBlob:
    def test_every_kind_of_value_comes_back(self) -> None:
        tied = torch.randn(3, 5)
        state = {
            "tied": [tied, tied[:]],
            "turned": tied.t(),
            "scalar": torch.tensor(2.5),
            "empty": torch.empty(0, 4),
            "kinds": {
                str(kind): torch.ones(3).to(kind)
                for kind in (torch.bool, torch.int8, torch.bfloat16, torch.complex64, torch.float64)
            },
            "plain": (1, 2.5, "x", b"y", None, True, {3, 4}),
            "shape": tied.shape,
            "dtype": torch.float16,
            "milestones": Counter([3, 3]),
            "ordered": OrderedDict(a=1),
        }
        blob = lay_out(state)
        target = torch.zeros(blob.size, dtype=torch.uint8)
        blob.write(target)
        found = read(blob.skeleton, memoryview(target.numpy()))
        assert torch.equal(found["tied"][0], tied) and torch.equal(found["turned"], tied.t())
        assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr()
        assert found["scalar"] == 2.5 and found["empty"].shape == (0, 4)
        for name, one in state["kinds"].items():  # type: ignore[attr-defined]
            assert (
                torch.equal(found["kinds"][name], one) and found["kinds"][name].dtype == one.dtype
            )
        for name in ("plain", "shape", "dtype", "milestones", "ordered"):
            assert found[name] == state[name]
        copy = own(found)
        target.zero_()
        assert torch.equal(copy["tied"][0], tied)
        assert type(copy["ordered"]) is OrderedDict

    @pytest.mark.parametrize("value", [Path(), lambda: 0, object(), torch.eye(2).to_sparse()])
    def test_what_can_not_be_read_back_is_refused_when_it_is_saved(self, value: object) -> None:
        with pytest.raises(BlobError, match=r"the state holds a .*expected"):
            lay_out({"extra": value})

    @given(st.binary(max_size=60))
    def test_bytes_that_are_no_skeleton_are_refused(self, content: bytes) -> None:
        with contextlib.suppress(BlobError):
            read(content, memoryview(b""))  # some bytes are the pickle of a number

    def test_a_skeleton_runs_no_code(self) -> None:
        class Malice:
            def __reduce__(self) -> Any:
                return os.system, ("false",)

        with pytest.raises(BlobError, match=r"doesn't need posix\.system"):
            read(pickle.dumps(Malice()), memoryview(b""))


class TestSlots:
    def test_a_flip_of_any_byte_is_noticed(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        slot = save(slots, 5)
        assert steps(slots) == []  # not believed before it is verified
        assert slot.seal() is not None
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
        save(Slots(tmp_path, 0), 5).seal()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            Slot(tmp_path / "rank-0-0").read()
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    def test_the_newest_stays_while_the_next_is_written(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        for step in range(1, 8):
            slot = save(slots, step)
            assert slot.seal() is not None
            assert steps(slots) == [step, step - 1][:step]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-0", "rank-0-1"]

    def test_no_save_waits_for_one_that_is_being_stored(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        stored = save(slots, 1)
        stored.seal()
        with stored.locked(exclusive=False) as ours:
            assert ours
            for step in range(2, 7):
                slot = save(slots, step)
                assert slot is not stored
                slot.seal()
                assert set(steps(slots)) == {1, step, max(step - 1, 1)}
            assert torch.equal(stored.read()["model"]["a"], torch.full((50,), 1.0))

    def test_what_is_sealed_stays_until_something_newer_is(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        sealed = save(slots, 1)
        sealed.seal()
        for step in range(2, 8):  # faster than the agent
            assert save(slots, step) is not sealed
            assert steps(slots) == [1]
        newest = save(slots, 8)
        newest.seal()
        assert save(slots, 9) is not newest

    def test_of_two_slots_of_one_step_the_unsealed_is_overwritten(self, tmp_path: Path) -> None:
        for first in (0, 1):
            slots = Slots(tmp_path / str(first), 0)
            slots.folder.mkdir()
            state = {"a": torch.ones(50)}
            for slot in slots.slots[:2]:
                slot.write(label(5, state), lay_out(state))
            slots.slots[first].seal()
            for step in (6, 7):
                save(slots, step)
                assert 5 in steps(slots)

    def test_without_room_for_a_third_the_unsealed_makes_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = Slots(tmp_path, 0)
        save(slots, 1).seal()
        unsealed = save(slots, 2)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        assert save(slots, 3) is unsealed
        assert steps(slots) == [1]

    def test_another_trainings_states_make_way(self, tmp_path: Path) -> None:
        slots = Slots(tmp_path, 0)
        save(slots, 100, training="old").seal()
        save(slots, 101, training="old").seal()
        save(slots, 1).seal()
        save(slots, 2).seal()
        assert {found.training for found in slots.sealed().values()} == {"t"}

    def test_sigkill_at_any_moment_leaves_a_whole_state(self, tmp_path: Path) -> None:
        parts, dice = 40, random.Random(1)
        told_read, told_write = os.pipe()
        last = 0
        for kill in range(30):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    torch.set_num_threads(1)  # a fork has none of OpenMP's threads to wait for
                    slots = Slots(tmp_path, 0)
                    for step in range(last + 1, last + 10_000):
                        state = {str(n): torch.full((8000,), step) for n in range(parts)}
                        slots.write(label(step, state), lay_out(state)).seal()
                        os.write(told_write, step.to_bytes(4, "big"))
                os._exit(1)
            last = int.from_bytes(os.read(told_read, 4), "big")
            time.sleep(dice.random() * 0.005)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.set_blocking(told_read, False)
            with contextlib.suppress(BlockingIOError):
                last = int.from_bytes(os.read(told_read, 1 << 16)[-4:], "big")
            os.set_blocking(told_read, True)
            slot, found = next(iter(Slots(tmp_path, 0).sealed().items()))
            assert found.step in (last, last + 1), f"kill {kill}"  # killed before it could say so
            assert all(bool((part == found.step).all()) for part in slot.read().values())
            last = found.step
        os.close(told_read)
        os.close(told_write)

    def test_too_little_memory_is_said_with_what_to_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = SimpleNamespace(f_bavail=1, f_frsize=65536)
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        slots = Slots(tmp_path, 0)
        slots.check(10_000)
        with pytest.raises(SlotError, match=r"has 65536 bytes.*expected 208192.*shared-memory"):
            slots.check(100_000)

    def test_memory_that_ends_later_leaves_the_newest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = Slots(tmp_path, 0)
        save(slots, 1).seal()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(SlotError, match=r"No space left on device; give the pod more shared"):
            save(slots, 2)
        assert steps(slots) == [1]


class TestFolder:
    def test_an_agent_of_the_same_pod_finds_it_again(self, tmp_path: Path) -> None:
        first = MemoryFolder.claim("ns/job", "pod/0", shared_memory=tmp_path)
        other = MemoryFolder.claim("ns/job", "pod/0", shared_memory=tmp_path)
        assert first is not None and other is not None
        assert first.path != other.path  # two agents alive
        first.close()
        again = MemoryFolder.claim("ns/job", "pod/0", shared_memory=tmp_path)
        assert again is not None and again.path == first.path
        again.remove()
        other.remove()
        assert list(tmp_path.iterdir()) == []

    def test_what_dead_agents_left_is_removed(self, tmp_path: Path) -> None:
        left = MemoryFolder.claim("ns/old", "pod/0", shared_memory=tmp_path)
        alive = MemoryFolder.claim("ns/alive", "pod/0", shared_memory=tmp_path)
        assert left is not None and alive is not None
        left.close()
        for folder in (left, alive):
            os.utime(folder.path, (0, 0))
        new = MemoryFolder.claim("ns/new", "pod/0", ABANDONED_SECONDS + 1, shared_memory=tmp_path)
        assert new is not None
        assert not left.path.exists() and alive.path.exists()
        for folder in (alive, new):
            folder.remove()

    def test_where_memory_is_short_what_the_killed_left_makes_way_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed, alive, starting, mine = (
            MemoryFolder.claim(job, "pod/0", shared_memory=tmp_path)
            for job in ("killed", "alive", "starting", "mine")
        )
        assert killed and alive and starting and mine
        killed.close()
        starting.close()
        for folder in (killed, alive, mine):
            os.utime(folder.path, (time.time() - 60,) * 2)

        def free(_: object) -> SimpleNamespace:
            return SimpleNamespace(f_bavail=0 if killed.path.exists() else 1 << 20, f_frsize=4096)

        monkeypatch.setattr(os, "statvfs", free)
        Memory(mine.path, WorkerLink(None)).prepare(lay_out(a_state(1)))
        assert sorted(tmp_path.iterdir()) == sorted([alive.path, starting.path, mine.path])
        alive.remove()
        mine.remove()

    def test_without_shared_memory_there_is_none(self, tmp_path: Path) -> None:
        assert MemoryFolder.claim("ns/job", "pod", shared_memory=tmp_path / "none") is None


class TestPersister:
    @pytest.fixture
    def persister(self) -> Iterator[Persister]:
        self.sealed, self.stored = list[int](), list[int]()
        persister = Persister(
            lambda saved, _: self.sealed.append(saved.step),
            lambda saved, _: self.stored.append(saved.step),
        )
        yield persister
        persister.close(5)

    def settle(self, persister: Persister, *, storage: bool) -> str:
        answer, said = threading.Event(), [""]

        def done(error: str) -> None:
            said[0] = error
            answer.set()

        persister.settle(storage, done)
        assert answer.wait(20), "no answer"
        return said[0]

    def save(self, persister: Persister, tmp_path: Path, step: int) -> None:
        (tmp_path / "slots").mkdir(exist_ok=True)
        slot = save(Slots(tmp_path / "slots", 0), step)
        persister.saved(Saved(str(slot.path), step, 0, 1, str(tmp_path / "commits")))

    def test_while_storage_is_slow_saves_go_on_and_the_newest_is_next(
        self, persister: Persister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        going, begun = threading.Event(), threading.Event()
        write = replica.write_replica

        def slow(*arguments: Any, **given: Any) -> Any:
            begun.set()
            assert going.wait(20)
            return write(*arguments, **given)

        monkeypatch.setattr("trainer.agent.persister.write_replica", slow)
        self.save(persister, tmp_path, 1)
        assert begun.wait(20)
        for step in range(2, 9):
            self.save(persister, tmp_path, step)
            assert self.settle(persister, storage=False) == ""  # doesn't wait for storage
        assert self.sealed == list(range(1, 9))
        going.set()
        assert self.settle(persister, storage=True) == ""
        assert self.stored == [1, 8]
        storage = Storage(tmp_path / "commits")
        assert [commit.step for commit in storage.commits()] == [8, 1]
        found = replica.read_replica(storage, storage.commits()[0])
        assert torch.equal(found["model"]["a"], torch.full((50,), 8.0))
        assert found["cursor"]["step"] == 8

    def test_an_error_is_told_to_who_waits_and_the_next_may_succeed(
        self, persister: Persister, tmp_path: Path
    ) -> None:
        (tmp_path / "commits").write_text("in the way")
        self.save(persister, tmp_path, 1)
        assert "commits" in self.settle(persister, storage=True)
        assert self.settle(persister, storage=False) == ""
        (tmp_path / "commits").unlink()
        self.save(persister, tmp_path, 2)
        assert self.settle(persister, storage=True) == ""
        assert (self.sealed, self.stored) == ([1, 2], [2])

    def test_nothing_saved_is_nothing_to_wait_for(self, persister: Persister) -> None:
        assert self.settle(persister, storage=True) == ""


def holding(live: tuple[int, int] = NOTHING, *memory: tuple[int, int], **given: Any) -> Holding:
    return Holding(live, tuple(("t", one) for one in memory), training="t", **given)


KEEP, MEMORY, STORAGE, PEER = Source.KEEP, Source.MEMORY, Source.STORAGE, Source.PEER


class TestLevel:
    @pytest.mark.parametrize(
        ("case", "holdings", "identity", "sources", "giver"),
        [
            ("nothing anywhere", [holding(), holding()], NOTHING, [KEEP, KEEP], 0),
            ("a newcomer", [holding((3, 9)), holding()], (3, 9), [KEEP, PEER], 0),
            ("it has rank 0", [holding(), holding((3, 9))], (3, 9), [PEER, KEEP], 1),
            ("one lags", [holding((3, 8)), holding((3, 9))], (3, 9), [PEER, KEEP], 1),
            ("a later run", [holding((4, 5)), holding((3, 9))], (4, 5), [KEEP, PEER], 0),
            ("own memory", [holding(NOTHING, (2, 5)), holding()], (2, 5), [MEMORY, PEER], 0),
            (
                "a live peer rather than memory",
                [holding(NOTHING, (2, 5)), holding((2, 5))],
                (2, 5),
                [PEER, KEEP],
                1,
            ),
            (
                "memory that is newer than storage",
                [holding(storage=((2, 5),)), holding(NOTHING, (2, 6), (2, 5))],
                (2, 6),
                [PEER, MEMORY],
                1,
            ),
            ("storage", [holding(storage=((2, 5), (1, 3))), holding()], (2, 5), [STORAGE, PEER], 0),
            (
                "storage that went on without us",
                [holding((2, 5), storage=((3, 7),)), holding((2, 5))],
                (3, 7),
                [STORAGE, PEER],
                0,
            ),
        ],
    )
    def test_the_newest_from_the_nearest(
        self,
        case: str,
        holdings: list[Holding],
        identity: tuple[int, int],
        sources: list[Source],
        giver: int,
    ) -> None:
        found = level(holdings)
        assert (found.identity, list(found.sources)) == (identity, sources), case
        assert found.giver == giver, case

    def test_another_trainings_memory_is_no_source(self) -> None:
        stale = Holding(memory=(("other", (9, 9)),))
        assert level([holding(), stale]).identity == NOTHING

    def test_a_lost_part_comes_from_its_mirror(self) -> None:
        whole = holding(NOTHING, (2, 6), (2, 5), storage=((2, 4),))
        mirror = holding(NOTHING, (2, 6), mirrored=(("t", (2, 6), 2), ("other", (2, 9), 2)))
        found = level([whole, mirror, holding()], sharded=True)
        assert found.identity == (2, 6) and found.loads and not found.takers
        assert found.sources == (MEMORY, MEMORY, Source.MIRROR)
        assert found.mirrors == {2: 1}
        # Another rank's part is of no use.
        assert level([whole, mirror, holding(), holding()], sharded=True).identity == (2, 4)

    def test_parts_are_of_use_only_together(self) -> None:
        both = holding(NOTHING, (2, 6), (2, 5), storage=((2, 4),))
        one = holding(NOTHING, (2, 5))
        assert level([both, one], sharded=True).identity == (2, 5)
        assert set(level([both, one], sharded=True).sources) == {MEMORY}
        found = level([both, holding()], sharded=True)
        assert (found.identity, set(found.sources)) == ((2, 4), {STORAGE})

    identities = st.tuples(st.integers(1, 4), st.integers(1, 9))

    @given(
        st.lists(
            st.tuples(identities | st.just(NOTHING), st.lists(identities, max_size=3)), min_size=1
        ),
        st.lists(identities, max_size=3),
    )
    def test_everybody_ends_with_the_newest(
        self, ranks: list[tuple[tuple[int, int], list[tuple[int, int]]]], stored: list[Any]
    ) -> None:
        holdings = [holding(live, *memory) for live, memory in ranks]
        holdings[0] = holding(ranks[0][0], *ranks[0][1], storage=tuple(stored))
        found = level(holdings)
        known = [NOTHING, *stored, *(one for live, memory in ranks for one in (live, *memory))]
        assert found.identity == max(known)
        assert found.sources[found.giver] is not PEER
        for rank, source in enumerate(found.sources):
            assert (source is KEEP) == (ranks[rank][0] == found.identity)
            assert source is not MEMORY or found.identity in ranks[rank][1]
            assert source is not STORAGE or found.identity in stored
        assert next_run(holdings) > max(known)[0]


class SealingLink(WorkerLink):
    """An agent that verifies at once, and stores when it is asked."""

    def __init__(self) -> None:
        super().__init__(None)
        self.stores = True
        self.told: list[Saved] = []

    def saved(self, path: str, step: int, savers: int, folder: str = "", keep: int = 3) -> None:
        assert Slot(Path(path)).seal() is not None
        self.told.append(Saved(path, step, 0, 0, folder, keep))

    def settle(self, *, storage: bool) -> str:
        if storage and self.stores:
            persister = Persister(lambda *_: None, lambda *_: None)
            done = threading.Event()
            persister.saved(self.told[-1])
            persister.settle(True, lambda _: done.set())
            assert done.wait(20)
            persister.close(5)
        return ""


class Script:
    def __init__(
        self, folder: Path, width: int = 8, url: str | None = None, **options: Any
    ) -> None:
        torch.manual_seed(len(list(folder.iterdir())) if folder.exists() else 0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        values = torch.linspace(-1, 1, 150).reshape(50, 3)
        samples = TensorDataset(values, values.sum(1, keepdim=True))
        self.data = ElasticDataset(samples, batch_size=4, epochs=3, group=ProcessGroup())
        self.link = SealingLink()
        slots = folder / "slots"
        slots.mkdir(parents=True, exist_ok=True)
        self.checkpointer = Checkpointer(
            url or folder / "commits",
            model=self.model,
            optimizer=self.optimizer,
            data=self.data,
            link=self.link,
            memory=None if url else Memory(slots, self.link),
            **options,
        )

    def train(self, steps: int) -> list[float]:
        for inputs, wanted in self.data:
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(inputs), wanted).backward()
            self.optimizer.step()
            self.checkpointer.step()
            steps -= 1
            if not steps:
                break
        return self.sums

    @property
    def sums(self) -> list[float]:
        moments = [one["exp_avg"] for one in self.optimizer.state.values()]
        return [tensor.double().sum().item() for tensor in (*self.model.parameters(), *moments)]


class TestCheckpointer:
    def test_what_is_in_memory_survives_the_process(self, tmp_path: Path) -> None:
        script = Script(tmp_path, every=2)
        sums = script.train(6)
        assert Storage(tmp_path / "commits").commits() == []
        again = Script(tmp_path, every=1)
        assert (again.data.steps, again.sums) == (6, sums)
        assert again.checkpointer.parent == script.checkpointer.run
        # What was restored is the model's own: training on changes no slot.
        kept = again.train(1)
        again.checkpointer.every = 1000
        again.train(2)
        assert Script(tmp_path).sums == kept

    def test_another_models_checkpoint_is_a_reason_to_give_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(SealingLink, "give_up", lambda _, reason: told.append(reason))
        Script(tmp_path, every=1).train(2)
        with pytest.raises(MismatchError, match=r"step 2.*expected \(9, 3\).*found \(8, 3\)"):
            Script(tmp_path, width=9)
        (reason,) = told
        assert "0.weight: expected (9, 3) float32, found (8, 3) float32" in reason

    def test_a_damaged_newest_costs_a_save(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        script = Script(tmp_path, every=2)
        script.train(6)
        path = Path(script.link.told[-1].path)
        content = bytearray(path.read_bytes())
        content[-10] ^= 1
        path.write_bytes(content)
        assert Script(tmp_path).data.steps == 4
        assert "passing over step 6 in its own memory" in caplog.text

    def test_the_end_is_in_storage(self, tmp_path: Path) -> None:
        script = Script(tmp_path, every=2)
        script.link.round = 57
        sums = script.train(5)
        script.checkpointer.finish()
        commits = Storage(tmp_path / "commits").commits()
        assert [(commit.step, commit.round) for commit in commits] == [(5, 57)]
        for path in (tmp_path / "slots").iterdir():
            path.unlink()
        assert Script(tmp_path).sums == sums

    def test_a_new_folder_is_a_new_training(self, tmp_path: Path) -> None:
        Script(tmp_path, every=2).train(4)
        (tmp_path / "commits" / "TRAINING").unlink()
        assert Script(tmp_path).data.steps == 0

    def test_too_little_memory_is_no_reason_not_to_train(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = SimpleNamespace(f_bavail=0, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        script = Script(tmp_path, every=2)
        assert "volcano-elastic.io/shared-memory" in caplog.text  # at the start
        script.train(3)
        assert [commit.step for commit in Storage(tmp_path / "commits").commits()] == [2]

    def test_another_model_is_refused_in_words(self, tmp_path: Path) -> None:
        script = Script(tmp_path, every=2)
        script.train(2)
        for stored in (False, True):
            if stored:
                script.checkpointer.finish()
                for path in (tmp_path / "slots").iterdir():
                    path.unlink()
            with pytest.raises(
                MismatchError,
                match=r"model: 0\.bias: expected \(9,\) float32, found \(8,\) float32; .*1\.weight",
            ):
                Script(tmp_path, width=9)

    def test_steps_between_saves_are_agreed_by_the_clock(self, tmp_path: Path) -> None:
        now = [0.0]
        script = Script(tmp_path, clock=lambda: now[0])
        for _ in script.data:
            now[0] += 0.3
            script.checkpointer.step()
            if script.data.steps == 9:
                break
        assert [saved.step for saved in script.link.told] == [4, 8]

    def test_a_url_is_a_folder_too(self, tmp_path: Path) -> None:
        pytest.importorskip("fsspec")
        for url in ("memory://commits-test", f"file://{tmp_path}/by-url"):
            sums = Script(tmp_path, url=url, every=2).train(4)
            again = Script(tmp_path, url=url, every=1)
            assert (again.data.steps, again.sums) == (4, sums)
            again.train(5)
            storage = again.checkpointer.storage
            assert [commit.step for commit in storage.commits()] == [9, 8, 7]
            newest = storage.commits()[0]
            storage._files.write("step-9/state.pt", lambda file: file.write(b"x") and None)
            with pytest.raises(StorageError, match=r"step-9/state\.pt is damaged"):
                storage.read(newest, "state.pt")
            assert Script(tmp_path, url=url).data.steps == 8


JOB = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.data.dataset import ElasticDataset

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
net = torch.nn.Linear(8, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(4096, 8)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, epochs=200,
    audit=folder / "audit",
)
with Checkpointer(folder / "commits", model=model, optimizer=optimizer, data=data, every=25) as c:
    with open(folder / "begun", "a") as begun:
        begun.write(f"{data.group.rank} {data.steps}\\n")
    for x, y in data:
        optimizer.zero_grad()
        (data.weight * torch.nn.functional.mse_loss(model(x), y)).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)
        optimizer.step()
        time.sleep(0.01)
        c.step()
        if enough:
            data.epochs = data.cursor.epoch + (data.cursor.position > 0)
"""


def test_a_fresh_coordinator_hears_of_the_round_that_made_what_is_in_memory() -> None:
    told: list[Any] = []
    server = WorkerServer(told.append, *[lambda *_: None] * 5)
    server.begin(1)
    server.local.savers = 1
    server._sealed(Saved("slot", 400, 0, 1), replace(label(400, a_state(1)), round=57))
    assert told == [server.local.held] == [Committed(57, 400, in_memory=True)]


def test_all_workers_killed_go_on_from_memory_under_torchrun(tmp_path: Path) -> None:
    job = Job(tmp_path, JOB)
    try:
        job.start(0, 1)
        told = job.until("a commit", lambda told: told.get("committed_step", -1) >= 50)
        # From now on nothing can come to storage.
        (tmp_path / "commits").rename(tmp_path / "gone")
        (tmp_path / "commits").mkdir()
        (tmp_path / "commits" / "TRAINING").write_bytes((tmp_path / "gone/TRAINING").read_bytes())
        told = job.until(
            "a commit", lambda now: now["committed_step"] >= told["committed_step"] + 50
        )
        for name in list((tmp_path / "commits").glob("step-*")):
            name.rename(tmp_path / f"gone-{name.name}")
        for (pid,) in told["pids"].values():
            os.kill(pid, signal.SIGKILL)
        job.stepping(2, after_round=told["round"])
        begun = [int(line.split()[1]) for line in (tmp_path / "begun").read_text().splitlines()]
        assert min(begun[-2:]) >= told["committed_step"], job.logs()
        (tmp_path / "enough").touch()
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
        newest = Storage(tmp_path / "commits").newest()
        assert newest is not None and newest.step > told["committed_step"]
        epochs = newest.cursor["epoch"]
        assert verify(tmp_path / "audit", 4096, max(1, epochs)).ok
    finally:
        job.close()
