"""A slip of whoever edits a snapshot is refused with its place; what clusters do show passes."""

from __future__ import annotations

import pytest

from tests.queue_policy.world import GPU
from tests.snapshot.world import edited
from volcano_elastic.snapshot.check import problems
from volcano_elastic.snapshot.codec import SnapshotError, decode


def refusals(place: tuple[str | int, ...], value: object) -> list[str]:
    """Return what is said of a snapshot with this value at a place; nothing: it is taken."""
    try:
        observed = decode(edited(("snapshot", *place), value).encode())
    except SnapshotError as error:
        return [str(error)]
    return [str(problem) for problem in problems(observed)]


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
    (said,) = refusals(place, value)
    assert message in said


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("jobs", 1, "queue"), "nowhere"),
        (("jobs", 0, "desired"), 9),
        (("jobs", 0, "priority"), -5),
        (("policies", 0, "rebalance", "gap"), 0),
        (("pods", 0, "node"), "gone"),
    ],
)
def test_what_a_cluster_may_show_is_no_slip(place: tuple[str | int, ...], value: object) -> None:
    assert refusals(place, value) == []
