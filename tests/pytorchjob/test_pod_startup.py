"""How long pods held their places before their containers ran is in their job's goodput, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.pytorchjob.goodput import POD_STARTUP, TOLD, Goodput, kept
from volcano_elastic.pytorchjob.pod_startup import PodStartups, start_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def pod(number: int, placed: int, began: int | None, restarts: int = 0) -> dict[str, Any]:
    """One whose place and first start came so many seconds after BEGIN."""

    def at(seconds: int) -> str:
        return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
    if began is not None:
        state = {"running": {"startedAt": at(began)}}
    container = {"name": "pytorch", "restartCount": restarts, "state": state}
    if restarts:
        container["lastState"] = {"terminated": {"startedAt": at(began or 0)}}
        container["state"] = {"running": {"startedAt": at(9999)}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(placed)}
    return {
        "metadata": {"uid": f"p{number}"},
        "status": {"conditions": [scheduled], "containerStatuses": [container]},
    }


PODS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=6).map(
    lambda drawn: [pod(i, placed, placed + wait) for i, (placed, wait) in enumerate(drawn)]
)


def waited(pods: list[dict[str, Any]]) -> int:
    return sum(start.waited for one in pods if (start := start_of(one)) is not None)


@given(PODS, st.integers(1, 8), st.lists(st.booleans(), max_size=5), st.data())
def test_each_pods_startup_counts_once_for_all_its_processes_whoever_begins_anew(
    pods: list[dict[str, Any]], processes: int, restarts: list[bool], data: st.DataObject
) -> None:
    pods.sort(key=lambda one: getattr(start_of(one), "at", 0))
    startups, known, seen = PodStartups(), kept(None, None), 0
    for restarted in [*restarts, False]:
        if restarted:  # it knows what was written; of one second either all or none were seen
            startups.forget()
        seen = data.draw(st.integers(seen, len(pods)))
        while 0 < seen < len(pods) and start_at(pods[seen]) == start_at(pods[seen - 1]):
            seen += 1
        known = startups.count("job", known, pods[:seen], processes)
        known = kept(known, Goodput("x", dict.fromkeys(TOLD, 1), processes))
        assert known["milliseconds"][POD_STARTUP] == processes * waited(pods[:seen])
        assert sum(known["milliseconds"].values()) == processes * waited(pods[:seen]) + len(TOLD)
    other = kept(known, Goodput("y", dict.fromkeys(TOLD, 1), processes))
    assert other["milliseconds"][POD_STARTUP] == known["milliseconds"][POD_STARTUP]


def start_at(one: dict[str, Any]) -> int:
    start = start_of(one)
    assert start is not None
    return start.at


def test_a_pod_is_counted_from_its_place_to_its_containers_first_start() -> None:
    assert waited([pod(0, 10, 70)]) == 60_000
    assert waited([pod(0, 10, 70, restarts=1)]) == 60_000
    for unknown in (pod(0, 10, None), pod(0, 10, 70, restarts=2), {"metadata": {"uid": "p"}}):
        assert start_of(unknown) is None


@pytest.mark.parametrize("processes", [0, 4])
def test_nothing_is_counted_until_a_coordinator_tells_how_many_processes_a_pod_has(
    processes: int,
) -> None:
    startups = PodStartups()
    assert startups.count("job", {}, [pod(0, 0, 5)], 0) == {}
    found = startups.count("job", {}, [pod(0, 0, 5)], processes)
    assert found.get("milliseconds", {}).get(POD_STARTUP, 0) == processes * 5_000
