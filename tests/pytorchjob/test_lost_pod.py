"""Pods lost with their node: two witnesses at once, one in time, and what a job does then."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pytorchjob.test_reconcile_properties import check_step
from tests.pytorchjob.world import World, job_object, resize, running
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.lost_pod import (
    OUT_OF_SERVICE,
    UNREACHABLE,
    Contact,
    Pod,
    Trouble,
    judge,
    listen,
    trouble,
)
from volcano_elastic.pytorchjob.pod import FAILURES, RESTARTS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LOST_AFTER = timedelta(seconds=300)
HOST, OTHER = Pod("u0", "n0", 0, host=True), Pod("u1", "n1", 1, host=False)
BAD = Trouble("is not Ready", NOW - timedelta(seconds=5), NOW)


def seconds(count: float) -> datetime:
    return NOW + timedelta(seconds=count)


def node(status: str | None = None, taint: str | None = None) -> dict[str, object]:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T12:00:00Z"}
    return {
        "spec": {"taints": [{"key": taint, "timeAdded": "2026-01-01T12:00:01Z"}]} if taint else {},
        "status": {"conditions": [condition]} if status else {},
    }


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_in_trouble_since_then(status: str) -> None:
    assert trouble(node(status), seconds(9)) == Trouble("is not Ready", NOW, seconds(9))


@pytest.mark.parametrize("taint", [UNREACHABLE, OUT_OF_SERVICE])
def test_a_node_tainted_as_unreachable_or_out_of_service_is_in_trouble(taint: str) -> None:
    found = trouble(node("True", taint), seconds(9))
    assert found is not None and found.since == seconds(1)
    assert taint.rpartition("/")[2] in found.reason


def test_a_ready_node_and_one_that_says_nothing_are_in_none() -> None:
    assert trouble(node("True"), NOW) is None
    assert trouble(node(), NOW) is None
    assert trouble(node("True", "dedicated"), NOW) is None


def test_both_witnesses_lose_a_pod_at_once() -> None:
    contacts = listen([HOST, OTHER], frozenset({0}), {}, NOW)
    once = judge([HOST, OTHER], {"n1": BAD}, contacts, LOST_AFTER, NOW)
    assert not once.lost, "it may be on its way to another coordinator"
    contacts = listen([HOST, OTHER], frozenset({0}), contacts, seconds(1))
    found = judge([HOST, OTHER], {"n1": BAD}, contacts, LOST_AFTER, seconds(1))
    assert set(found.lost) == {"u1"} and "n1" in found.lost["u1"]


def test_the_coordinators_own_pod_is_silent_when_it_gives_no_answer() -> None:
    contacts = listen([HOST, OTHER], None, {"u1": Contact(True)}, NOW)
    assert contacts["u1"] == Contact(True), "nothing is known of the others"
    once = judge([HOST, OTHER], {"n0": BAD}, contacts, LOST_AFTER, NOW)
    assert not once.lost, "one answer may be late"
    contacts = listen([HOST, OTHER], None, contacts, seconds(1))
    assert set(judge([HOST, OTHER], {"n0": BAD}, contacts, LOST_AFTER, seconds(1)).lost) == {"u0"}


def test_a_node_in_trouble_alone_starts_a_clock() -> None:
    contacts = listen([HOST, OTHER], frozenset({0, 1}), {}, NOW)
    found = judge([HOST, OTHER], {"n1": BAD}, contacts, LOST_AFTER, NOW)
    assert not found.lost and found.look_at == BAD.since + LOST_AFTER
    assert set(judge([OTHER], {"n1": BAD}, contacts, LOST_AFTER, seconds(295)).lost) == {"u1"}


def test_silence_alone_starts_a_clock_if_others_are_heard_and_it_was_heard_before() -> None:
    heard = listen([HOST, OTHER], frozenset({0, 1}), {}, NOW)
    silent = listen([HOST, OTHER], frozenset({0}), heard, seconds(10))
    silent = listen([HOST, OTHER], frozenset({0}), silent, seconds(20))
    found = judge([HOST, OTHER], {}, silent, LOST_AFTER, seconds(20))
    assert not found.lost and found.look_at == seconds(310)
    assert set(judge([HOST, OTHER], {}, silent, LOST_AFTER, seconds(310)).lost) == {"u1"}
    starting = listen([HOST, OTHER], frozenset({0}), {}, NOW)
    assert not judge([HOST, OTHER], {}, starting, LOST_AFTER, seconds(9999)).lost
    nobody = listen([HOST, OTHER], frozenset(), heard, NOW)
    assert not judge([HOST, OTHER], {}, nobody, LOST_AFTER, seconds(9999)).lost


@pytest.mark.parametrize(
    ("ended", "lost"), [(None, False), (-300, False), (-50, True), (-5, True), (3, True)]
)
def test_a_worker_that_ended_with_torchruns_store_is_a_witness_against_its_host(
    ended: float | None, lost: bool
) -> None:
    at = None if ended is None else seconds(ended)
    host = Pod("u0", "n0", None, host=False, serves_store=True)
    peer = Pod("u1", "n1", None, host=False, container_ended=at)

    def found(bad: set[str]) -> Mapping[str, str]:
        return judge([host, peer], dict.fromkeys(bad, BAD), {}, LOST_AFTER, seconds(4)).lost

    assert found({"n0"}).keys() == ({"u0"} if lost else set())
    assert not found(set()), "its node is well: the container may have ended of itself"
    assert not found({"n1"}), "nobody else is missed by the others"
    assert not found({"n0", "n1"}), "nobody is left to witness"


def test_a_pod_that_is_heard_again_is_not_silent() -> None:
    silent = listen([OTHER], frozenset(), {"u1": Contact(True)}, NOW)
    heard = listen([OTHER], frozenset({1}), silent, seconds(1))
    assert heard["u1"] == Contact(True, None, seconds(1))


def test_a_pod_that_was_starting_when_its_coordinator_was_asked_last_is_asked_about_again() -> None:
    starting = listen([HOST, OTHER], frozenset({0}), {}, seconds(-3))
    assert not judge([HOST, OTHER], {"n1": BAD}, starting, LOST_AFTER, NOW).lost
    joined = listen([HOST, OTHER], frozenset({0, 1}), starting, seconds(1))
    assert not judge([HOST, OTHER], {"n1": BAD}, joined, LOST_AFTER, seconds(1)).lost
    silent = listen([HOST, OTHER], frozenset({0}), starting, seconds(1))
    assert set(judge([HOST, OTHER], {"n1": BAD}, silent, LOST_AFTER, seconds(1)).lost) == {"u1"}


@given(
    bad=st.booleans(),
    heard=st.none() | st.frozensets(st.integers(0, 1)),
    before=st.booleans(),
    passed=st.integers(0, 299),
)
def test_no_pod_is_lost_by_one_witness_before_its_time(
    bad: bool, heard: frozenset[int] | None, before: bool, passed: int
) -> None:
    known = {"u0": Contact(before), "u1": Contact(before)}
    contacts = listen([HOST, OTHER], heard, known, NOW)
    contacts = listen([HOST, OTHER], heard, contacts, seconds(0.5))
    troubles = {"n1": Trouble("is not Ready", NOW, NOW)} if bad else {}
    found = judge([HOST, OTHER], troubles, contacts, LOST_AFTER, seconds(passed))
    silent = heard is not None and 1 not in heard
    assert set(found.lost) == ({"u1"} if bad and silent else set())


def test_one_of_several_that_began_anew_says_nothing_of_torchruns_store() -> None:
    def loses(*ended: bool) -> bool:
        host = Pod("u0", "n0", None, host=False, serves_store=True)
        others = [
            Pod(f"u{n}", f"n{n}", None, host=False, container_ended=seconds(-9) if one else None)
            for n, one in enumerate(ended, 1)
        ]
        return bool(judge([host, *others], {"n0": BAD}, {}, LOST_AFTER, NOW).lost)

    assert not loses(False) and not loses(True, False, False), "it may have failed by itself"
    assert loses(True, True, False), "another may only just have been made"


# What a job does


@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_pod_is_made_anew_at_once_and_costs_no_restart(index: int) -> None:
    world = running(2, 2)
    name, uid = f"a-worker-{index}", world.pods[f"a-worker-{index}"]["metadata"]["uid"]
    world.lose(name)
    actions = world.step()
    deleted = [x for x in actions if isinstance(x, a.DeletePod)]
    assert [(x.name, x.uid, x.grace) for x in deleted] == [(name, uid, timedelta(0))]
    assert world.created(actions) == [name]
    made = world.pods[name]["metadata"]
    assert made["uid"] != uid
    assert made.get("annotations", {}).get(RESTARTS, "0") == "0"
    assert made.get("annotations", {}).get(FAILURES, "0") == "0"
    assert "node n is not Ready" in world.events(actions)["NodeLost"]
    assert world.status["elastic"]["desired"] == 2


def test_a_lost_pod_that_was_leaving_goes_at_once_and_is_not_made_anew() -> None:
    world = running(1, 3)
    world.grow(3)
    world.run_all()
    world.resize = resize(3, 2, "a-worker-2")
    world.step()
    assert world.pods["a-worker-2"]["metadata"].get("deletionTimestamp")
    world.lose("a-worker-2")
    actions = world.step()
    assert [x.name for x in actions if isinstance(x, a.DeletePod)] == ["a-worker-2"]
    assert not world.created(actions)


def test_a_fixed_jobs_lost_pod_is_made_anew() -> None:
    world = running(replicas=2, master=True)
    world.lose("a-worker-1")
    assert world.created(world.step()) == ["a-worker-1"]


def test_a_lost_dedicated_coordinator_is_made_anew_and_no_worker_is_touched() -> None:
    world = running(2, 2, policy={"coordinator": "dedicated", "rdzvBackend": "volcano-elastic"})
    name = next(pod for pod in world.pods if "worker" not in pod)
    world.lose(name)
    actions = world.step()
    assert [x.name for x in actions if isinstance(x, a.DeletePod)] == [name]
    assert world.created(actions) == [name]
    assert "node n is not Ready" in world.events(actions)["CoordinatorLost"]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=st.dictionaries(
        st.integers(0, 5),
        st.tuples(
            st.sampled_from(["pending", "running", "leaving", "evicting", "failed"]), st.booleans()
        ),
        max_size=6,
    ),
    low=st.integers(1, 3),
    more=st.integers(0, 3),
    desired=st.integers(1, 6),
    elastic=st.booleans(),
)
def test_from_any_state_nobody_healthy_goes_for_a_lost_pod(
    before: dict[int, tuple[str, bool]], low: int, more: int, desired: int, elastic: bool
) -> None:
    """The same pods go as if nothing were lost, and the lost ones; the size stays as it is."""
    policy = {"min": low, "max": low + more} if elastic else None
    world = World(job_object(elastic=policy, replicas=desired), NOW)
    for index, (state, _) in before.items():
        world.seed(index, state)
    if elastic:
        world.job["status"] = {"elastic": {"desired": desired}}
    whole = copy.deepcopy(world)
    for index, (_, lost) in before.items():
        if lost and f"a-worker-{index}" in world.pods:
            world.lose(f"a-worker-{index}")
    there = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    otherwise: set[str] = set()
    for _ in range(10):
        # A size beyond its limits is put right first, an eviction counted a step later.
        otherwise |= {x.uid for x in whole.step() if isinstance(x, a.DeletePod)}
        whole.now += timedelta(seconds=40)
    for _ in range(10):
        actions = world.reconcile()
        check_step(world, actions)
        for action in actions:
            if isinstance(action, a.DeletePod) and action.uid == there.get(action.name):
                lost = action.uid in world.lost
                stuck = world.pods[action.name]["metadata"].get("deletionTimestamp")
                assert lost or stuck or action.uid in otherwise
        world.apply(actions)
        world.now += timedelta(seconds=40)
    live = world.live()
    assert len(live) == (world.status["elastic"]["desired"] if elastic else desired)
    assert not {world.pods[name]["metadata"]["uid"] for name in live} & set(world.lost)
