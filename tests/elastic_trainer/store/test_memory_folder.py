"""The agent's folder on shared memory: found again, and removed in time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.memory_folder import ABANDONED_SECONDS, OWNER, MemoryFolder

from tests.elastic_trainer.store.slot_states import a_state


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
        later = time.monotonic() + ABANDONED_SECONDS + 1
        new = MemoryFolder.claim("ns/new", "pod/0", later, shared_memory=tmp_path)
        assert new is not None
        assert not left.path.exists() and alive.path.exists()
        for folder in (alive, new):
            folder.remove()

    def test_a_pod_that_trained_for_long_finds_its_own_memory_again(self, tmp_path: Path) -> None:
        first = MemoryFolder.claim("ns/job", "pod/0", shared_memory=tmp_path)
        assert first is not None
        (first.path / "rank-0").write_text("a state")
        first.close()
        os.utime(first.path, (0, 0))
        later = time.monotonic() + ABANDONED_SECONDS + 1
        again = MemoryFolder.claim("ns/job", "pod/0", later, shared_memory=tmp_path)
        assert again is not None and again.path == first.path
        assert (again.path / "rank-0").read_text() == "a state"
        again.remove()

    def test_a_wall_clock_that_jumps_makes_nothing_old(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = MemoryFolder.claim("ns/old", "pod/0", shared_memory=tmp_path)
        assert left is not None
        left.close()
        jumped = time.time() + 10 * ABANDONED_SECONDS
        monkeypatch.setattr(time, "time", lambda: jumped)
        new = MemoryFolder.claim("ns/new", "pod/0", shared_memory=tmp_path)
        assert new is not None and left.path.exists()
        new.remove()

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
            os.utime(folder.path / OWNER, (time.monotonic() - 60,) * 2)

        def free(_: object) -> SimpleNamespace:
            return SimpleNamespace(f_bavail=0 if killed.path.exists() else 1 << 20, f_frsize=4096)

        monkeypatch.setattr(os, "statvfs", free)
        Memory(mine.path, WorkerLink(None)).prepare(lay_out(a_state(1)))
        assert sorted(tmp_path.iterdir()) == sorted([alive.path, starting.path, mine.path])
        alive.remove()
        mine.remove()

    def test_without_shared_memory_there_is_none(self, tmp_path: Path) -> None:
        assert MemoryFolder.claim("ns/job", "pod", shared_memory=tmp_path / "none") is None
