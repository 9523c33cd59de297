"""torch.distributed.checkpoint's files on a storage whose calls may never return."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest
import torch
from elastic_trainer.checkpoint import dcp_files
from elastic_trainer.checkpoint.dcp_files import AnsweringFileSystem
from elastic_trainer.checkpoint.dcp_reader import PlainPlanner, read_index, reader
from elastic_trainer.store.answer import Calls, SilenceError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.examples import examples


def left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ask-storage"]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_files, "CHUNK", 100)
    monkeypatch.setattr(dcp_files, "SYNC_BYTES", 300)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_state_comes_back_as_it_was_and_its_bytes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    state = {"a": torch.arange(999.0), "b": {"c": torch.ones(3, 5), "d": "text", "e": [1, 2]}}
    told = list[int]()
    calls = Calls(lambda: 60.0)
    writer = FileSystemWriter(tmp_path, sync_files=False)
    writer.fs = AnsweringFileSystem(calls)
    with calls.telling(told.append):
        save(state, storage_writer=writer, no_dist=True)
        size = (tmp_path / "__0_0.distcp").stat().st_size
        assert sum(told) > size
        told.clear()
        empty = {"a": torch.zeros(999), "b": {"c": torch.zeros(3, 5), "d": "", "e": []}}
        index = read_index((tmp_path / ".metadata").read_bytes())
        load(
            empty,
            storage_reader=reader(str(tmp_path), index, calls),
            planner=PlainPlanner(),
            no_dist=True,
        )
        assert sum(told) >= 999 * 4
    assert torch.equal(empty["a"], state["a"])  # type: ignore[arg-type]
    assert str(empty["b"]) == str(state["b"])


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.binary(max_size=400), max_size=5),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(-1, 400)), max_size=8),
)
def test_it_reads_and_writes_as_other_files_do(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], reads: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    files = AnsweringFileSystem(Calls(lambda: 60.0))
    content = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        with files.create_stream(path, "wb") as stream:
            for piece in pieces:
                before = stream.tell()
                stream.write(piece)
                assert stream.tell() == before + len(piece)
        assert path.read_bytes() == content
        plain = io.BytesIO(content)
        with files.create_stream(path, "rb") as stream:
            for place, count in reads:
                stream.seek(place)
                plain.seek(place)
                assert stream.read(count) == plain.read(count)
            assert stream.seek(0, os.SEEK_END) == len(content)


@pytest.mark.process
def test_a_write_that_never_returns_is_given_up_and_its_file_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # it is full after 64 KiB, which nobody reads
    other_end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files = AnsweringFileSystem(Calls(lambda: 2.0))
    try:
        with pytest.raises(SilenceError), files.create_stream(tmp_path / "pipe", "wb") as stream:
            stream.write(b"x" * (1 << 23))
        with pytest.raises(SilenceError):  # as long as the one left behind hasn't come back
            files.exists(tmp_path)
        stuck = left_behind()
        assert len(stuck) == 1
    finally:
        os.close(other_end)
    for thread in stuck:
        thread.join()
    assert files.exists(tmp_path)
    held = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert str(tmp_path / "pipe") not in held


@pytest.mark.process
def test_a_read_that_never_returns_is_silent_and_told_of_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    told = list[int]()
    calls = Calls(lambda: 2.0)
    with (
        calls.telling(told.append),
        pytest.raises(SilenceError),
        AnsweringFileSystem(calls).create_stream(tmp_path / "pipe", "rb"),
    ):
        pass  # opening it waits for a writer
    assert not told
    stuck = left_behind()
    os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
    for thread in stuck:
        thread.join()


def test_an_error_is_raised_at_once_and_leaves_no_file_open(tmp_path: Path) -> None:
    files = AnsweringFileSystem(Calls(lambda: 60.0))
    with pytest.raises(OSError, match="No space left"), files.create_stream("/dev/full", "wb") as s:
        s.write(b"x" * (1 << 23))
    held = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert "/dev/full" not in held
