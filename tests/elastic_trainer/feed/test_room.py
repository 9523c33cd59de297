"""A newcomer is fed only where that leaves the trainer its memory."""

from __future__ import annotations

from pathlib import Path

from elastic_trainer.feed.room import free_memory


def test_the_container_and_the_machine_bound_it(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "group"
    proc.mkdir()
    group.mkdir()
    (proc / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:  5000 kB\nHugePages: 0\n")
    assert free_memory(group, proc) == 5000 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("anon 900\ninactive_file 100\n")
    assert free_memory(group, proc) == 5000 * 1024
    (group / "memory.max").write_text("4000\n")
    assert free_memory(group, proc) == 3100


def test_the_older_version_is_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("4000\n")
    (folder / "memory.usage_in_bytes").write_text("1000\n")
    (folder / "memory.stat").write_text("total_inactive_file 5\n")
    assert free_memory(tmp_path, tmp_path) == 3005


def test_unknown_memory_is_no_bound(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path) > 1 << 60


def test_there_is_memory_here() -> None:
    assert free_memory() > 0
