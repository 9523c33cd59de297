"""A loaded file is read as the file itself is."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import torch
from elastic_trainer.store.content import read_content
from elastic_trainer.store.folder import LocalFolder
from hypothesis import given
from hypothesis import strategies as st

WHENCE = st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])


@given(
    st.binary(max_size=64),
    st.lists(st.tuples(st.integers(-1, 80), st.integers(-80, 80), WHENCE), max_size=8),
)
def test_it_is_read_as_the_file_is(held: bytes, asked: list[tuple[int, int, int]]) -> None:
    content, file = read_content(io.BytesIO(held)), io.BytesIO(held)
    for size, offset, whence in asked:
        base = (0, file.tell(), len(held))[whence]
        if base + offset < 0:
            with pytest.raises(ValueError, match="expected 0 or more"):
                content.seek(offset, whence)
        else:
            assert content.seek(offset, whence) == file.seek(offset, whence)
        assert content.read(size) == file.read(size)
        assert content.tell() == file.tell()
    assert bytes(content) == held


def test_its_record_is_that_of_the_file_and_torch_loads_it(tmp_path: Path) -> None:
    tensor = torch.arange(1 << 19)
    torch.save(tensor, tmp_path / "state.pt")
    folder = LocalFolder(tmp_path)
    content = folder.load("state.pt")
    record = folder.record("state.pt")
    assert (content.size, content.xxh3) == (record.size, record.xxh3)
    assert torch.equal(torch.load(content), tensor)


class Changing(io.BytesIO):
    """A file of another length than it says."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return super().seek(offset, whence) + (3 if whence == os.SEEK_END else 0)


@pytest.mark.parametrize("held", [b"", b"four", b"four and more"])
def test_a_file_of_another_length_than_it_said_cannot_be_read(held: bytes) -> None:
    with pytest.raises(OSError, match=f"expected {len(held) + 3} bytes"):
        read_content(Changing(held))
