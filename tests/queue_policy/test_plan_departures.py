"""Elastic jobs leave nodes that failed or are about to go, in order; nobody else pays for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given

from tests.queue_policy.random_snapshots import BAD, with_bad_nodes
from tests.queue_policy.test_plan_properties import calm, size_after
from tests.queue_policy.world import (
    NOW,
    applied,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pod,
    pods,
    ruled,
    settled,
    world,
)
from volcano_elastic.api.queue_policy import LeaveNodes, Mode, Nodes
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Requirement, Snapshot


def avoiding(name: str, least: int, most: int, size: int, *excluded: str, **more: object):  # type: ignore[no-untyped-def]
    term = tuple(Requirement("metadata.name", "NotIn", (n,), of_field=True) for n in excluded)
    return job(name, least, most, size, excluded=excluded, node_affinity=(term,), **more)


def test_a_pod_moves_to_idle_room_and_the_size_stays() -> None:
    a = job("a", 1, 2, 2)
    found = plan(
        world([node("n1", 1), node("n2", 1, leave=BAD), node("n3", 1)], [a], pods(a, "n1", "n2")),
        NOW,
    )
    decision = by_job(found)["a"]
    assert (decision.new, decision.move, decision.remove) == (2, ("ns/a-worker-1",), ())
    assert decision.reason is Reason.LEFT_NODE
    assert decision.message == f"node n2 {BAD}: a-worker-1 leaves and comes anew elsewhere"


def test_surplus_without_room_elsewhere_leaves() -> None:
    a = job("a", 1, 3, 3)
    found = plan(
        world([node("n1", 2), node("n2", 1, leave=BAD)], [a], pods(a, "n1", "n1", "n2")), NOW
    )
    decision = by_job(found)["a"]
    assert (decision.new, decision.move, decision.remove) == (2, (), ("ns/a-worker-2",))
    assert decision.reason is Reason.LEFT_NODE


def test_the_minimum_stays_where_there_is_no_room() -> None:
    a = job("a", 2, 2, 2)
    assert not plan(
        world([node("n1", 1), node("n2", 1, leave=BAD)], [a], pods(a, "n1", "n2")), NOW
    ).decisions


def test_worker_0_has_the_first_place_and_surplus_goes_without() -> None:
    a = job("a", 1, 2, 2)
    found = plan(world([node("n1", 2, leave=BAD), node("n2", 1)], [a], pods(a, "n1", "n1")), NOW)
    decision = by_job(found)["a"]
    assert (decision.new, decision.move, decision.remove) == (
        1,
        ("ns/a-worker-0",),
        ("ns/a-worker-1",),
    )


def test_a_master_moves_too() -> None:
    a = job("a", 1, 1, 1, scaler="volcano", master_requests=gpus(1))
    master = replace(pod(a, 0, "n1"), key="ns/a-master-0", role="Master")
    snapshot = world(
        [node("n1", 1, leave=BAD), node("n2", 1), node("n3", 1)], [a], [master, pod(a, 0, "n2")]
    )
    assert by_job(plan(snapshot, NOW))["a"].move == ("ns/a-master-0",)


def test_nobody_grows_onto_such_a_node() -> None:
    a = job("a", 1, 4, 1)
    snapshot = world([node("n1", 2), node("n2", 4, leave=BAD)], [a], pods(a, "n1"))
    assert new_size(plan(snapshot, NOW), "a") == 2


def test_a_node_that_failed_one_job_is_left_by_that_job_alone() -> None:
    a, b = avoiding("a", 1, 2, 2, "n1"), job("b", 1, 1)
    snapshot = world(
        [node("n1", 2), node("n2", 2)], [a, b], [pod(a, 0, "n2"), pod(a, 1, "n1")], pods(b, "n1")
    )
    decisions = by_job(plan(snapshot, NOW))
    assert decisions["a"].move == ("ns/a-worker-1",) and "b" not in decisions
    assert "node n1 has failed the job" in decisions["a"].message


def test_a_policy_may_have_jobs_stay_and_other_modes_dont_move_them() -> None:
    a = job("a", 1, 2, 2)
    snapshot = world(
        [node("n1", 1), node("n2", 1, leave=BAD), node("n3", 1)], [a], pods(a, "n1", "n2")
    )
    assert not plan(ruled(snapshot, nodes=Nodes(leave=LeaveNodes.NEVER)), NOW).decisions
    assert not plan(ruled(snapshot, mode=Mode.OFF), NOW).decisions
    trial = plan(ruled(snapshot, mode=Mode.DRY_RUN), NOW).decisions
    assert [d.dry_run for d in trial] == [True]
    assert by_job(plan(ruled(snapshot, mode=Mode.HOLD), NOW))["a"].move == ("ns/a-worker-1",)


def test_rigid_jobs_stay() -> None:
    a = job("a", 1, 1, 1, scaler="none")
    assert not plan(
        world([node("n1", 1, leave=BAD), node("n2", 1)], [a], pods(a, "n1")), NOW
    ).decisions


def test_whole_units_go_and_part_of_one_stays() -> None:
    a = job("a", 2, 6, 6, node_unit=2)
    nodes = [node("n1", 3), node("n2", 3, leave=BAD)]
    found = by_job(plan(world(nodes, [a], pods(a, "n1", "n1", "n1", "n2", "n2", "n2")), NOW))["a"]
    assert found.new == 4 and found.remove == ("ns/a-worker-5", "ns/a-worker-4")


def test_a_second_pod_waits_until_the_first_has_its_place() -> None:
    a = job("a", 1, 3, 3)
    nodes = [node("n1", 1), node("n2", 2, leave=BAD), node("n3", 2)]
    there = [pod(a, 0, "n1"), pod(a, 1, "n2"), pod(a, 2, None, age=1)]
    leaving = pod(a, 3, "n2", terminating=True, leaves_by=NOW + timedelta(seconds=20))
    assert not plan(world(nodes, [a], [*there, leaving]), NOW).decisions


def bad_pods(snapshot: Snapshot, key: str) -> set[str]:
    owner = next(j for j in snapshot.jobs if j.key == key)
    left = {n.name for n in snapshot.nodes if n.leave} | set(owner.excluded)
    return {p.key for p in snapshot.pods if p.job == key and p.node in left and not p.terminating}


@calm
@given(with_bad_nodes())
def test_only_pods_on_bad_nodes_move_where_there_is_room_and_no_minimum_is_given_up(
    snapshot: Snapshot,
) -> None:
    made = plan(snapshot, NOW)
    for decision in made.decisions:
        bad = bad_pods(snapshot, decision.job)
        assert set(decision.move) <= bad, "a healthy pod moves"
        assert not set(decision.move) & set(decision.remove)
        if decision.reason is Reason.LEFT_NODE:
            assert set(decision.remove) <= bad, "a healthy pod leaves"
            assert len(decision.remove) == decision.old - decision.new
    free = {n.name: dict(n.allocatable) for n in snapshot.nodes if n.takes_pods}
    for p in snapshot.pods:
        if p.node in free:
            for name, amount in p.requests.items():
                free[p.node][name] -= amount
    moved = {key: d.job for d in made.decisions for key in d.move}
    needs = sum(p.requests["nvidia.com/gpu"] for p in snapshot.pods if p.key in moved)
    assert needs <= sum(max(0, room["nvidia.com/gpu"]) for room in free.values())
    for owner in snapshot.jobs:
        assert size_after(made, owner) >= owner.min


@calm
@given(with_bad_nodes())
def test_it_comes_to_rest_and_whoever_can_has_left(snapshot: Snapshot) -> None:
    now = NOW
    for _ in range(15):
        made = plan(snapshot, now)
        snapshot = settled(applied(snapshot, made, now))
        now += timedelta(seconds=30)
    quiet = plan(snapshot, now)
    assert not any(d.move for d in quiet.decisions), "pods go to and fro"
    for owner in snapshot.jobs:
        alive = [p for p in snapshot.pods if p.job == owner.key]
        others = [p for p in alive if p.key in bad_pods(snapshot, owner.key) and p.index != 0]
        bound = all(p.node is not None for p in alive)
        whole = bound and len(alive) == owner.desired and owner.node_unit == 1
        if whole and any(p.index == 0 for p in alive):
            assert len(others) <= owner.min, "surplus stays on a bad node"
