"""Sizes of checkpoints, from the coordinator's and the servers' answers to the job's status."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api import checkpoint_size
from volcano_elastic.api.amount import Bytes
from volcano_elastic.operator.checkpoint_report import read, to_write

SIZES = st.none() | st.integers(0, 1 << 45).map(Bytes)


@pytest.mark.parametrize("told", [None, True, 0, -1, 1.5, "12Gi", 1 << 61, [], {}])
def test_what_makes_no_sense_is_left_out(told: Any) -> None:
    assert read(told) is None


def test_a_size_is_written_once_and_again_when_much_has_changed() -> None:
    assert read(5 << 30) == Bytes.gib(5)
    first = to_write({}, Bytes.gib(5), Bytes.gib(24))
    assert first == {"Worker": "5Gi", "PS": "24Gi"}
    assert to_write(first, Bytes.gib(5.4), Bytes.gib(22)) is None
    assert to_write(first, Bytes.gib(5), Bytes.gib(30)) == {"PS": "30Gi"}
    assert to_write(first, None, None) is None, "what was told stays"
    assert to_write({}, None, Bytes(0)) is None, "tables without rows are no checkpoint"


@given(SIZES, SIZES)
def test_what_is_written_is_read_again_and_then_stays(commit: Bytes, tables: Bytes) -> None:
    written = to_write({}, commit, tables) or {}
    told = checkpoint_size.reported({"elastic": {"checkpointSize": written}})
    for role, size in (("Worker", commit), ("PS", tables)):
        assert told.get(role) == (size.whole_mebibytes() if size else None)
    rounded = {role: Bytes.parse(text) for role, text in written.items()}
    assert to_write(written, rounded.get("Worker"), rounded.get("PS")) is None


def test_servers_go_by_what_was_told_of_them_then_by_the_annotation() -> None:
    said = {"volcano-elastic.io/checkpoint-size": "48Gi"}
    told = {"elastic": {"checkpointSize": {"PS": "24Gi"}}}
    assert checkpoint_size.of_servers(said, told) == Bytes.gib(24)
    assert checkpoint_size.of_servers(said, {}) == Bytes.gib(48)
    other = {"elastic": {"checkpointSize": {"Worker": "24Gi", "PS": "much"}}}
    assert checkpoint_size.of_servers({}, other) is None
