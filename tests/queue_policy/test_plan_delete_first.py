"""Delete-first: who leaves for a minimum that waits, and who never does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.queue_policy.world import (
    NOW,
    TWO_BY_TWO,
    by_job,
    gpus,
    job,
    node,
    pod,
    pods,
    world,
)
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.queue_policy.plan import plan


def test_a_claim_that_fits_in_idle_room_shrinks_nobody() -> None:
    a, b = job("a", 1, 4, 2), job("b", 2, 4)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1")), NOW)
    assert made.decisions == ()
    assert made.unchanged["ns/a"] == NoChange(Reason.ROOM_OWED_TO_MINIMUM, Reason.NOT_NEEDED)


def test_terminating_pods_count_as_coming_so_nobody_shrinks_twice() -> None:
    a, b = job("a", 1, 4, 2), job("b", 2, 4)
    dying = [pod(a, i, "n2", terminating=True) for i in (2, 3)]
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1"), dying), NOW)
    assert made.decisions == ()
    assert "ns/b" in made.admitted


def test_a_terminating_pod_past_its_grace_is_not_counted_as_coming() -> None:
    a, b = job("a", 1, 4, 2), job("b", 1, 4)
    stuck = [
        pod(a, i, "n2", terminating=True, leaves_by=NOW - timedelta(seconds=6)) for i in (2, 3)
    ]
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1"), stuck), NOW)
    assert by_job(made)["a"].new == 1


def test_a_shrink_under_way_is_not_repeated() -> None:
    a, b = job("a", 1, 4, 2, last_scale=NOW), job("b", 2, 4)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert made.decisions == ()
    assert made.admitted == {"ns/a", "ns/b"}


def test_minimums_are_never_taken_and_the_newcomer_is_blocked_holding_nothing() -> None:
    a, c, b = job("a", 2, 4), job("c", 1, 4), job("b", 2, 4)
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1"), pods(c, "n2")), NOW)
    assert set(made.blocked) == {"ns/b"}
    assert "2 GPUs" in made.blocked["ns/b"]
    assert made.admitted == {"ns/a", "ns/c"}
    # The blocked claim holds nothing: c may have the idle GPU.
    assert by_job(made)["c"].new == 2


def test_largest_surplus_gives_first() -> None:
    nodes = [node(f"n{i}") for i in range(4)]
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 3)
    b = job("b", 2, 2)
    made = plan(
        world(nodes, [a, b, c], pods(a, "n0", "n0", "n1", "n1", "n2"), pods(c, "n2", "n3", "n3")),
        NOW,
    )
    assert {name: d.new for name, d in by_job(made).items()} == {"a": 3}


def test_a_pod_that_waits_leaves_before_one_that_runs() -> None:
    a, b = job("a", 1, 4, 4), job("b", 1, 1)
    made = plan(
        world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", None)),
        NOW + timedelta(seconds=-290),
    )
    decision = by_job(made)["a"]
    assert decision.remove == ("ns/a-worker-3",)
    assert decision.reason is Reason.SHRUNK_FOR_MINIMUM


def test_a_bound_pod_leaves_before_a_running_one_of_higher_index() -> None:
    a, b = job("a", 1, 4, 4), job("b", 1, 1)
    mine = [p if p.index != 1 else replace(p, running=False) for p in pods(a, *["n1"] * 4)]
    made = plan(world([node("n1", 4)], [a, b], mine), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-1",)


def test_the_node_is_chosen_so_that_a_big_pod_really_fits() -> None:
    nodes = [node("n1"), node("n2")]
    a = job("a", 1, 3, 3)
    # n1 holds worker 0 and worker 2; n2 worker 1: only emptying n2 lets a 2-GPU pod in.
    b = job("b", 1, 1, pod_requests=gpus(2))
    mine = [pod(a, 0, "n1"), pod(a, 1, "n2"), pod(a, 2, "n1")]
    made = plan(world(nodes, [a, b], mine), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-1",)


def test_a_protected_pod_leaves_only_if_nothing_else_helps() -> None:
    nodes = [node("n1", labels={"zone": "x"}), node("n2")]
    a = job("a", 2, 4, 4)
    b = job("b", 1, 1, node_selector={"zone": "x"})
    mine = [pod(a, 0, "n1"), pod(a, 1, "n1"), pod(a, 2, "n2"), pod(a, 3, "n2")]
    decision = by_job(plan(world(nodes, [a, b], mine), NOW))["a"]
    assert decision.remove == ("ns/a-worker-1",)
    assert decision.new == 3


def test_worker_0_never_leaves() -> None:
    nodes = [node("n1", 1, labels={"zone": "x"}), node("n2")]
    a = job("a", 1, 3, 3)
    b = job("b", 1, 1, node_selector={"zone": "x"})
    made = plan(world(nodes, [a, b], pods(a, "n1", "n2", "n2")), NOW)
    assert made.decisions == ()
    assert "ns/b" in made.blocked


def test_whole_node_units_leave() -> None:
    a, b = job("a", 2, 8, 4, node_unit=2), job("b", 1, 1)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-3", "ns/a-worker-2")


def test_a_job_of_single_nodes_gives_rather_than_a_whole_unit() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    a, c = job("a", 2, 8, 4, node_unit=2), job("c", 3, 8, 4)
    b = job("b", 1, 1)
    made = plan(world(nodes, [a, b, c], pods(a, *["n1"] * 4), pods(c, *["n2"] * 4)), NOW)
    assert {name: d.new for name, d in by_job(made).items()} == {"c": 3}


def test_cooldown_never_protects_surplus_from_a_minimum() -> None:
    a = job("a", 1, 4, 4, last_scale=NOW, cooldown=timedelta(hours=1))
    b = job("b", 2, 2)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert by_job(made)["a"].new == 2
