"""A snapshot as a file: the same snapshot again, or a clear refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.snapshot.codec import Observation, SnapshotError, decode, encode
from volcano_elastic.snapshot.snapshot import Node, Snapshot

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=6),
    int: st.integers(-(2**62), 2**62),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    datetime: st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    timedelta: st.timedeltas(timedelta(0), timedelta(days=4000)),
}


@cache
def any_(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, made of small collections; fields added later come along."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*map(any_, arguments))
    if origin is Mapping:
        return st.dictionaries(any_(arguments[0]), any_(arguments[1]), max_size=2)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(any_(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(any_, arguments))
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.builds(kind, **{name: any_(hint) for name, hint in get_type_hints(kind).items()})


@pytest.mark.parametrize("section", [field.name for field in fields(Snapshot)])
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), any_(datetime))
def test_a_snapshot_written_and_read_is_the_same(
    section: str, data: st.DataObject, now: datetime
) -> None:
    """One section at a time: of all together an example has a thousand values."""
    found = data.draw(any_(get_type_hints(Snapshot)[section]))
    observed = Observation(now, Snapshot(**{section: found}))
    assert decode(encode(observed)) == observed


NOTHING = Observation(datetime(2026, 1, 1, tzinfo=UTC), Snapshot(policies=(QueuePolicy("q"),)))


def document(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode(NOTHING)) | changes).encode()


NAIVE = {"key": "n/j", "queue": "q", "created": "2026-01-01T00:00:00Z", "min": 1, "max": 2} | {
    "desired": 1,
    "pod_requests": {},
    "last_scale": "2026-01-01T00:00:00",
}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"no json", "expected a snapshot as `volcano-elastic snapshot` writes it"),
        (b"[]", "expected a snapshot as"),
        (b"{}", "found 'no format'"),
        (document(format="kubectl"), "found 'kubectl'"),
        (document(version=2), "expected a snapshot of version 1, found version 2"),
        (document(version=None), "found version None"),
        (document(version="1"), "expected a snapshot as"),
        (document(time="2026-01-01T00:00:00"), r"timezone component - at `\$.time`"),
        (document(snapshot={"jobs": [NAIVE]}), r"timezone .* `\$.snapshot.jobs\[0\].last_scale`"),
        (document(snapshot={"jobs": [{"key": 1}]}), r"at `\$.snapshot.jobs\[0\].key`"),
        (document(snapshot={"nodes": [{"name": "n"}]}), "missing required field `allocatable`"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_the_place(raw: bytes, message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        decode(raw)


def test_a_field_that_this_version_does_not_know_is_left_out() -> None:
    assert decode(document(host="h")) == NOTHING


def test_any_kind_of_mapping_can_be_written() -> None:
    node = Node("n", MappingProxyType({"cpu": 1}))
    observed = Observation(NOTHING.time, Snapshot(nodes=(node,)))
    assert decode(encode(observed)) == Observation(
        NOTHING.time, Snapshot(nodes=(Node("n", {"cpu": 1}),))
    )
