"""The planner's picture as a file: the same picture again, or a clear refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.queue_policy.world import GPU, NOW, gpus, job, node, pods, world
from volcano_elastic.api.queue_policy import Grow, Headroom, QueuePolicy
from volcano_elastic.cli.main import main
from volcano_elastic.snapshot.codec import Observation, SnapshotError, decode, encode
from volcano_elastic.snapshot.snapshot import (
    Gang,
    Memory,
    Node,
    Queue,
    SetAside,
    Snapshot,
    Unplaced,
)

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


# Edited by hand

A = job("a", 1, 4, 4, speeds={1: 30.0, 4: 99.0}, tolerations=({"tolerationSeconds": -1},))
RULES = QueuePolicy(
    "default", name="p", borrowing_limit=1000, headroom=Headroom(amount=0), grow=Grow(max_step=2)
)
RICH = replace(
    world(
        [node("n", 4, labels={"z": "1"}, taints=(("k", "v", "PreferNoSchedule"),))],
        [A, job("b", 2, 2, priority=-1, master_requests=gpus(0, 1))],
        pods(A, "n", "n", "n", "n"),
        queues=(Queue("default", deserved=gpus(2), parent="up"), Queue("up", capability=gpus(9))),
    ),
    policies=(RULES,),
    gangs=(Gang("ns/g", "default", 2, NOW, pod_requests=gpus(1)),),
    memory=Memory({"ns/b": NOW}, {"ns/b": SetAside(NOW, 1)}, {}, {"ns/a": Unplaced(NOW, 1)}),
)
"""Something of all that a picture may hold."""


def edited(place: tuple[str | int, ...], value: object) -> str:
    document = json.loads(encode(Observation(NOW, RICH)))
    at: Any = document
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return json.dumps(document)


def planned(text: str) -> Result:
    return CliRunner().invoke(main, ["plan", "--snapshot", "-"], input=text)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("jobs", 0, "pod_requests", GPU), -1000, f"[{GPU}]: must be at least 0, found -1000"),
        (("jobs", 0, "pod_requests", GPU), "1", "Expected `int`, got `str` - at `$.snapshot.jobs"),
        (("jobs", 0, "max"), 0, "$.snapshot.jobs[0].max: must be at least min, 1, found 0"),
        (("jobs", 0, "max"), "four", "Expected `int`, got `str` - at `$.snapshot.jobs[0].max`"),
        (("jobs", 0, "node_unit"), 0, "$.snapshot.jobs[0].node_unit: must be at least 1, found 0"),
        (("jobs", 0, "cooldown"), "-PT5S", "jobs[0].cooldown: must be from 0 to 3.2e+09 s, found"),
        (("jobs", 0, "created"), "0001-01-01T00:00:00Z", "must be a year from 1900 to 2999"),
        (("jobs", 0, "speeds"), {"0": 1.0}, "jobs[0].speeds[0]: must be a size of at least 1"),
        (("jobs", 0, "speeds"), {"1": 1e308}, "speeds[1]: must be at most 1000000000000.0, found"),
        (("jobs", 0, "scaler"), "vpa", 'must be one of volcano, hpa, none, found "vpa"'),
        (("jobs", 1, "key"), "ns/a", 'jobs[1].key: must differ from jobs[0]\'s, found "ns/a"'),
        (("pods", 3, "key"), "ns/a-worker-0", "pods[3].key: must differ from pods[0]'s"),
        (("nodes", 0, "name"), "", "$.snapshot.nodes[0].name: must not be empty"),
        (("queues", 1, "weight"), 0, "$.snapshot.queues[1].weight: must be at least 1, found 0"),
        (("queues", 1, "capability", GPU), 10**30, "must be at most 9223372036854775807, found 1"),
        (("policies", 0, "rebalance", "gap"), 0.5, "must be 0 (off) or at least 1, found 0.5"),
        (("policies", 0, "headroom", "percent"), 1, "headroom: must have amount or percent, found"),
        (("policies", 0, "surplus", "min_efficiency"), 7, "min_efficiency: must be at most 1"),
    ],
)
def test_a_slip_of_whoever_edits_a_snapshot_is_refused_with_the_place(
    place: tuple[str | int, ...], value: object, message: str
) -> None:
    said = planned(edited(("snapshot", *place), value))
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith("Error: standard input: ") and message in said.stderr


def test_a_job_whose_queue_is_not_there_is_no_slip_but_cannot_start() -> None:
    said = planned(edited(("snapshot", "jobs", 1, "queue"), "nowhere"))
    assert said.exit_code == 1 and "queue nowhere does not exist" in said.stdout


def places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[call-overload]
    for key, one in inner:
        yield (*at, key)
        if isinstance(one, dict | list):
            yield from places(one, (*at, key))


@pytest.mark.parametrize(
    "odd",
    [-1, 0, 10**30, "", "x", "-PT1S", "9999-12-31T23:59:59Z", None, [], {}],
    ids=repr,
)
def test_whatever_a_snapshot_says_there_is_a_plan_or_a_refusal(odd: object) -> None:
    for place in places(json.loads(encode(Observation(NOW, RICH)))):
        said = planned(edited(place, odd))
        assert said.exception is None or isinstance(said.exception, SystemExit), place
