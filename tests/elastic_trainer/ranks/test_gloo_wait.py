"""Waits of gloo's threads for messages and for work: elastic_trainer/ranks/gloo_wait.py."""

from __future__ import annotations

from pathlib import Path

from elastic_trainer.ranks.gloo_wait import THREAD_NAME, message_waits

MESSAGE = "202 0x7fd2cc00947c 0x189 0x0 0x7fd2d59273b0 0x0 0xffffffff 0x7fd2d5927260 0x7fd38f8a3f16"
WORK = "202 0x55d2379e9ea4 0x189 0x0 0x0 0x0 0xffffffff 0x7fd2d6128d00 0x7fd38f8a3f16"


def thread(tasks: Path, number: int, name: str, call: str | None) -> None:
    folder = tasks / str(number)
    folder.mkdir()
    (folder / "comm").write_text(name + "\n")
    if call is not None:
        (folder / "syscall").write_text(call + "\n")


def test_only_what_gloo_waits_for_with_a_time_out_is_a_message(tmp_path: Path) -> None:
    thread(tmp_path, 1, "python", MESSAGE)
    thread(tmp_path, 2, THREAD_NAME, MESSAGE)
    thread(tmp_path, 3, THREAD_NAME, WORK)
    thread(tmp_path, 4, THREAD_NAME, "running")
    thread(tmp_path, 5, THREAD_NAME, "232 0xf 0x7fd2da7feb80 0x40 0xa 0x0 0x0 0x1 0x2")
    assert message_waits(tmp_path, "x86_64") == {("2", "0x7fd2cc00947c")}


def test_where_the_kernel_does_not_say_there_is_none(tmp_path: Path) -> None:
    thread(tmp_path, 1, THREAD_NAME, None)
    thread(tmp_path, 2, THREAD_NAME, MESSAGE)
    (tmp_path / "3").mkdir()
    assert message_waits(tmp_path, "s390x") == frozenset()
