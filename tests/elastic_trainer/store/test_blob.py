"""A state as bytes and back."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.store.blob import BlobError, lay_out, read
from hypothesis import given
from hypothesis import strategies as st


def back(state: Any) -> Any:
    blob = lay_out(state)
    target = torch.zeros(blob.size, dtype=torch.uint8)
    blob.write(target)
    return read(blob.skeleton, memoryview(target.numpy()))


def skeleton(*content: Any) -> bytes:
    """Return the skeleton of a state that is one tensor."""

    class Tensor(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("tensor", content, None) if obj == "here" else None

    file = io.BytesIO()
    Tensor(file, protocol=pickle.HIGHEST_PROTOCOL).dump("here")
    return file.getvalue()


class TestStrides:
    @pytest.mark.parametrize(
        "tensor",
        [
            torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            torch.randn(2, 3, 2, 2, 2).to(memory_format=torch.channels_last_3d),
            torch.randn(3, 5).t(),
            torch.randn(4, 3, 2).permute(2, 0, 1),
            torch.randn(7)[2:5],
            torch.randn(3, 1).expand(3, 1000),
            torch.randn(10).as_strided((4, 3), (2, 1)),
            torch.randn(1, 4)[:, None].conj(),
            torch.randn(4, dtype=torch.complex64).conj(),
            torch.tensor(1.5),
            torch.empty(3, 0, 2),
        ],
        ids=lambda one: f"{tuple(one.shape)}-{one.stride()}",
    )
    def test_a_tensor_comes_back_with_its_strides(self, tensor: torch.Tensor) -> None:
        found = back({"one": tensor})["one"]
        assert torch.equal(found, tensor)
        assert (found.shape, found.stride()) == (tensor.shape, tensor.stride())

    def test_a_tensor_with_gaps_comes_back_without_them(self) -> None:
        wide = torch.randn(4, 6)
        found = back([wide[:, ::2]])[0]
        assert torch.equal(found, wide[:, ::2]) and found.is_contiguous()

    def test_a_dense_tensor_is_not_copied_before_it_is_written(self) -> None:
        last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        ((_, piece),) = lay_out([last]).pieces()
        assert piece.data_ptr() == last.data_ptr()

    def test_a_tensor_with_gaps_is_copied_when_its_turn_comes(self) -> None:
        blob = lay_out([torch.randn(4, 6)[:, ::2] for _ in range(3)])
        assert all(not tensor.is_contiguous() for _, tensor in blob.tensors)
        pieces = [piece.data_ptr() for _, piece in blob.pieces()]
        assert len(pieces) == 3

    def test_views_of_the_same_memory_are_stored_once(self) -> None:
        one = torch.randn(4, 4)
        state = [one, one.t(), one.view(2, 8), one[:2]]
        found = back(state)
        assert lay_out(state).size == 64 + 64  # the last is of other bytes
        for before, after in zip(state, found, strict=True):
            assert torch.equal(before, after)
        assert found[0].data_ptr() == found[1].data_ptr() == found[2].data_ptr()

    def test_a_blob_of_an_older_version_is_read(self) -> None:
        tensor = torch.randn(5, 3)
        old = skeleton("float32", (5, 3), 0, 60)  # without strides
        assert torch.equal(read(old, memoryview(tensor.numpy()).cast("B")), tensor)

    @pytest.mark.parametrize("strides", [(9, 1), (-1, 1), (1,)])
    def test_strides_that_leave_the_tensors_bytes_are_refused(
        self, strides: tuple[int, ...]
    ) -> None:
        with pytest.raises(BlobError, match="strides"):
            read(skeleton("float32", (2, 3), 0, 24, strides), memoryview(bytearray(64)))


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
        assert type(found["ordered"]) is OrderedDict and type(found["milestones"]) is Counter

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
