"""reconcile from any state: repeated, it comes to rest, and never does harm on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pytorchjob.world import World, active, copied, job_object
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.observed import Resize

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD_STATES = ("pending", "running", "leaving", "evicting", "failed", "evicted", "succeeded")
METRICS = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]

slow = settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def pods(*states: str) -> st.SearchStrategy[list[tuple[int, str, bool]]]:
    """(index, state, protected) of each."""
    return st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from(states), st.booleans()),
        max_size=7,
        unique_by=lambda pod: pod[0],
    )


def check_step(world: World, actions: list[a.Action]) -> None:
    """Check what no single reconcile may do, whatever it found."""
    deleted = [x for x in actions if isinstance(x, a.DeletePod)]
    assert all(x.uid == world.pods[x.name]["metadata"]["uid"] for x in deleted)
    at_once = {x.name for x in deleted if x.grace == timedelta(0)}
    created = world.created(actions)
    assert len(set(created)) == len(created), "two pods of an index"
    assert not set(created) & (set(world.pods) - at_once), "an index that is still held"
    services = [x.body["metadata"]["name"] for x in actions if isinstance(x, a.CreateService)]
    assert len(set(services)) == len(services) and not set(services) & set(world.services)
    # Where those who train go on without worker 0, others may come.
    waited_for = bool(world.job["spec"].get("elasticPolicy")) and world.needs_first
    if waited_for and any(name != "a-worker-0" for name in created):
        assert "a-worker-0" in world.pods, "others came before worker 0"
    if world.ended:
        assert not created and not services, "a finished job got pods"


def come_to_rest(world: World, kills: list[a.Stage] | None = None) -> None:
    """The operator may be killed anywhere between stages (`kills`); time passes."""
    for _ in range(60):
        actions = world.reconcile()
        check_step(world, actions)
        world.apply(actions, until=kills.pop() if kills else a.Stage.TELL)
        moved = world.collect()
        world.now += timedelta(seconds=2)
        if not active(actions) and not moved and not active(world.reconcile()):
            return
    pytest.fail(f"no rest after 60 rounds: {world.reconcile()}")


@slow
@given(
    before=pods("pending", "running", "leaving", "evicting", "failed", "evicted"),
    low=st.integers(1, 3),
    more=st.integers(0, 3),
    desired=st.none() | st.integers(0, 8),
    new=st.none() | st.integers(0, 8),
    named=st.sets(st.integers(0, 6)),
    services=st.sets(st.integers(0, 8)),
    group=st.none() | st.integers(1, 6),
    kills=st.lists(st.sampled_from(a.Stage), max_size=4),
)
def test_from_any_state_it_comes_to_rest_with_exactly_the_desired_pods(
    before: list[tuple[int, str, bool]],
    low: int,
    more: int,
    desired: int | None,
    new: int | None,
    named: set[int],
    services: set[int],
    group: int | None,
    kills: list[a.Stage],
) -> None:
    world = World(job_object(elastic={"min": low, "max": low + more}), NOW)
    for index, state, protected in before:
        world.seed(index, state, protected=protected)
    for index in services:
        world.seed_service(index)
    if group is not None:
        world.seed_podgroup({"minMember": group, "queue": "default", "networkTopology": {"x": 1}})
    if desired is not None:
        world.job["status"] = {"elastic": {"desired": desired}}
    if new is not None:
        names = frozenset(f"a-worker-{i}" for i in named)
        world.resize = Resize(desired or 0, new, "Because", "of a plan", names)
    come_to_rest(world, kills)
    live = world.live()
    assert low <= world.status["elastic"]["desired"] <= low + more
    assert len(live) == world.status["elastic"]["desired"]
    assert "a-worker-0" in live
    assert sum(world.protected(name) for name in live) == low
    assert world.protected("a-worker-0")
    assert set(world.services) == set(world.pods), "no orphan, no pod without its name"
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == low
    assert world.podgroup["spec"].get("networkTopology") == ({"x": 1} if group else None)


@slow
@given(before=pods("pending", "running", "leaving", "failed"), data=st.data())
def test_worker_0_leaves_only_when_it_is_the_last(
    before: list[tuple[int, str, bool]], data: st.DataObject
) -> None:
    world = World(job_object(elastic={"min": 1, "max": 6}), NOW)
    for index, state, protected in before:
        world.seed(index, state, protected=protected)
    size = data.draw(st.integers(1, 6))
    names = frozenset(data.draw(st.sets(st.sampled_from([f"a-worker-{i}" for i in range(7)]))))
    world.job["status"] = {"elastic": {"desired": 6}}
    world.resize = Resize(6, size, "Because", "of a plan", names)
    for _ in range(6):
        live = world.live()
        actions = world.reconcile()
        going = {x.name for x in actions if isinstance(x, a.DeletePod)} & set(live)
        assert "a-worker-0" not in going or live == ["a-worker-0"]
        world.apply(actions)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=pods("pending", "running", "leaving", "failed"),
    services=st.sets(st.integers(0, 6)),
    master=st.booleans(),
    replicas=st.integers(1, 4),
)
def test_a_fixed_job_comes_to_rest_with_all_its_pods(
    before: list[tuple[int, str, bool]], services: set[int], master: bool, replicas: int
) -> None:
    world = World(job_object(master=master, replicas=replicas), NOW)
    for index, state, _ in before:
        world.seed(index, state)
    for index in services:
        world.seed_service(index)
    come_to_rest(world)
    wanted = [f"a-worker-{i}" for i in range(replicas)] + (["a-master-0"] if master else [])
    assert sorted(world.live()) == sorted(wanted) == sorted(world.services)


@slow
@given(
    before=pods(*POD_STATES),
    services=st.sets(st.integers(0, 6)),
    clean=st.sampled_from(["All", "Running", "None"]),
    end=st.sampled_from(["Succeeded", "Failed"]),
    elastic=st.booleans(),
    autoscaled=st.booleans(),
)
def test_a_finished_job_only_ever_loses_things(
    before: list[tuple[int, str, bool]],
    services: set[int],
    clean: str,
    end: str,
    elastic: bool,
    autoscaled: bool,
) -> None:
    policy: Any = {"min": 1, "max": 6, "metrics": METRICS} if elastic else None
    world = World(job_object(elastic=policy, runPolicy={"cleanPodPolicy": clean}), NOW)
    for index, state, protected in before:
        world.seed(index, state, protected=protected)
    for index in services:
        world.seed_service(index)
    world.seed_podgroup({"minMember": 1})
    if autoscaled:
        world.seed_autoscaler()
    world.job["status"] = {
        "conditions": [{"type": end, "status": "True"}],
        "completionTime": "2026-01-01T12:00:00Z",
    }
    had = set(world.pods)
    for _ in range(18):
        actions = world.reconcile()
        check_step(world, actions)
        assert not any(isinstance(x, a.CreatePodGroup | a.CreateAutoscaler) for x in actions)
        world.apply(actions)
        world.collect()
        world.now += timedelta(seconds=2)
    assert not active(world.reconcile())
    assert world.autoscaler is None and set(world.pods) <= had
    if clean == "All":
        assert not world.pods
    if clean != "None":
        assert not world.live() and not world.services
    assert (world.podgroup is None) == (not world.live())


@slow
@given(before=pods(*POD_STATES), services=st.sets(st.integers(0, 6)), elastic=st.booleans())
def test_a_suspended_job_ends_with_nothing_and_resumes_whole(
    before: list[tuple[int, str, bool]], services: set[int], elastic: bool
) -> None:
    policy = {"min": 2, "max": 6, "metrics": METRICS} if elastic else None
    world = World(job_object(elastic=policy, runPolicy={"suspend": True}), NOW)
    for index, state, protected in before:
        world.seed(index, state, protected=protected)
    for index in services:
        world.seed_service(index)
    world.seed_podgroup({"minMember": 1})
    come_to_rest(world)
    assert (world.pods, world.services, world.podgroup, world.autoscaler) == ({}, {}, None, None)
    assert world.state == "Suspended"
    world.job["spec"]["runPolicy"]["suspend"] = False
    come_to_rest(world)
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"]
    assert (world.autoscaler is not None) == elastic


@slow
@given(before=pods(*POD_STATES), desired=st.none() | st.integers(1, 6), seed=st.integers(0, 5))
def test_the_order_in_which_pods_are_seen_changes_nothing(
    before: list[tuple[int, str, bool]], desired: int | None, seed: int
) -> None:
    world = World(job_object(elastic={"min": 1, "max": 6}), NOW)
    for index, state, protected in before:
        world.seed(index, state, protected=protected)
    if desired is not None:
        world.job["status"] = {"elastic": {"desired": desired}}
    expected = world.reconcile()
    names = sorted(world.pods, key=lambda name: hash((seed, name)))
    world.pods = {name: copied(world.pods[name]) for name in names}
    assert world.reconcile() == expected
