"""A state as bytes and back."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.store.blob import BlobError, lay_out, own, read
from hypothesis import given
from hypothesis import strategies as st


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
