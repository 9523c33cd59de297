"""Claims to a minimum: who waits, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.queue_policy.world import (
    NOW,
    TWO_BY_TWO,
    applied,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pod,
    pods,
    ruled,
    world,
)
from volcano_elastic.api.queue_policy import ForOtherQueues, Shrink
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Gang, Job, Pod, Queue

FIRST = job("first", 1, 1, priority=9)
"""Whose turn comes before any job's that has no right to go first."""


def planned(room: int, owner: Job, mine: list[Pod], *others: Job) -> Plan:
    """On one node of so many GPUs."""
    return plan(world([node("n1", room)], [owner, *others], mine), NOW)


def test_a_job_short_of_its_minimum_has_its_turn_like_any_other_while_worker_0_runs() -> None:
    a = job("a", 2, 2)
    made = planned(2, a, [pod(a, 0, "n1"), pod(a, 1, None)], FIRST)
    assert made.blocked.keys() == {"ns/a"}


def test_a_job_short_of_its_minimum_goes_first_while_worker_0_waits() -> None:
    a = job("a", 2, 2)
    made = planned(2, a, [pod(a, 0, None), pod(a, 1, "n1")], FIRST)
    assert made.blocked.keys() == {"ns/first"}


def test_a_job_goes_first_while_the_pod_that_is_to_make_way_for_worker_0_still_runs() -> None:
    a = job("a", 1, 2)
    made = planned(1, a, [pod(a, 1, "n1")], FIRST)
    assert made.blocked.keys() == {"ns/first"}


def test_worker_0_that_has_finished_is_not_waited_for() -> None:
    a = job("a", 3, 3, succeeded=1)
    made = planned(2, a, [pod(a, 1, "n1"), pod(a, 2, None)], FIRST)
    assert made.blocked.keys() == {"ns/a"}


def test_a_job_that_runs_goes_first_while_its_master_waits() -> None:
    a = job("a", 1, 1, master_requests=gpus(1))
    made = planned(2, a, [pod(a, 0, "n1")], FIRST)
    assert made.blocked.keys() == {"ns/first"}


def test_a_job_that_has_not_started_does_not_go_first_for_its_master() -> None:
    a = job("a", 1, 1, master_requests=gpus(1))
    assert planned(2, a, [pod(a, 0, None)], FIRST).blocked.keys() == {"ns/a"}


def test_no_second_master_is_claimed() -> None:
    a = job("a", 2, 2, master_requests=gpus(1))
    master = replace(pod(a, 9, "n1"), role="Master")
    made = planned(4, a, [master, pod(a, 0, "n1"), pod(a, 1, None)], FIRST)
    assert made.blocked == {}


def test_a_job_whose_workers_finish_claims_no_master() -> None:
    a = job("a", 2, 2, succeeded=1, master_requests=gpus(1))
    assert planned(2, a, [pod(a, 1, "n1")], FIRST).blocked == {}


def test_a_gang_claims_what_it_lacks_and_counts_no_pod_that_leaves() -> None:
    a = job("a", 1, 4, 3)
    gang = Gang("ns/g", "default", 2, created=NOW)
    one = Pod("ns/g-0", "u0", gpus(1), gang="ns/g", index=0, node="n1", running=True)
    two = Pod("ns/g-1", "u1", gpus(1), gang="ns/g", index=1)
    mine = [pod(a, i, "n1") for i in range(3)]

    def lost(*theirs: Pod) -> int:
        seen = replace(world([node("n1", 4)], [a], mine, theirs), gangs=(gang,))
        decision = by_job(plan(seen, NOW)).get("a")
        return 0 if decision is None else decision.old - decision.new

    assert lost(one, two) == 1
    leaving = replace(one, terminating=True, leaves_by=NOW + timedelta(seconds=9))
    again = replace(two, key="ns/g-2", uid="u2", index=2)
    # The room of the one that leaves serves one of the two that wait.
    assert lost(leaving, two, again) == 1
    # One waits, and one more pod would be needed: nothing could start.
    assert lost(leaving, two) == 0


def test_a_newcomer_grows_first_in_a_queue_below_its_deserved() -> None:
    queues = (Queue("p"), Queue("q", deserved=gpus(4)))
    old, new = job("old", 1, 8, queue="p"), job("new", 1, 8, queue="q", created=NOW)
    made = plan(world([node("n1", 6)], [old, new], [pod(old, 0, "n1")], queues=queues), NOW)
    assert by_job(made)["new"].new >= 4


def test_a_running_job_without_worker_0_takes_its_own_surplus_and_goes_first() -> None:
    c = job("c", 1, 4, 3, created=NOW - timedelta(hours=1))
    a = job("a", 1, 4, 3)
    b = job("b", 1, 1, priority=100)
    mine = [pod(a, 1, "n1"), pod(a, 2, "n1")]
    nodes = [node("n1"), node("n2", 3)]
    made = plan(world(nodes, [a, b, c], mine, pods(c, "n2", "n2", "n2")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-2",)
    assert by_job(made)["a"].new == 2
    assert by_job(made)["c"].remove == ("ns/c-worker-2",)
    assert made.blocked == {}


def test_a_job_that_needs_no_worker_0_takes_nothing_from_anybody_for_it() -> None:
    """Its workers elected another host: worker 0 is surplus like any other, and waits for room."""
    a = job("a", 1, 4, 2, needs_first=False)
    mine = [pod(a, 0, None, age=1, protected=False), pod(a, 1, "n1", protected=True)]
    start = world([node("n1", 1)], [a], mine)
    made = plan(start, NOW)
    assert made.decisions == () and not made.blocked
    late = plan(start, NOW + timedelta(minutes=1))
    assert by_job(late)["a"].new == 1 and by_job(late)["a"].remove == ("ns/a-worker-0",)
    needing = plan(world([node("n1", 1)], [replace(a, needs_first=True)], mine), NOW)
    assert by_job(needing)["a"].remove == ("ns/a-worker-1",)


def test_worker_0_keeps_its_turn_while_the_pod_that_made_way_for_it_terminates() -> None:
    older = job("older", 1, 1, created=NOW - timedelta(hours=1))
    a = job("a", 1, 3, 2)
    start = world([node("n1", 1)], [a, older], [pod(a, 1, "n1")])
    made = plan(start, NOW)
    assert (made.admitted, set(made.blocked)) == ({"ns/a"}, {"ns/older"})
    next_made = plan(applied(start, made, NOW), NOW)
    assert (next_made.admitted, set(next_made.blocked)) == ({"ns/a"}, {"ns/older"})


def test_priority_then_creation_decide_who_gets_the_last_room() -> None:
    early = job("early", 2, 2, created=NOW - timedelta(hours=2))
    vip = job("vip", 2, 2, priority=10, created=NOW)
    made = plan(world([node("n1")], [early, vip]), NOW)
    assert (made.admitted, set(made.blocked)) == ({"ns/vip"}, {"ns/early"})
    same = replace(vip, priority=0)
    made = plan(world([node("n1")], [early, same]), NOW)
    assert (made.admitted, set(made.blocked)) == ({"ns/early"}, {"ns/vip"})


def test_a_claim_that_cannot_start_does_not_stop_a_smaller_one_behind_it() -> None:
    big = job("big", 5, 5, created=NOW - timedelta(hours=2))
    small = job("small", 2, 2)
    made = plan(world(TWO_BY_TWO, [big, small]), NOW)
    assert made.admitted == {"ns/small"}


def test_what_a_claim_in_vain_would_have_taken_still_helps_a_smaller_one_behind_it() -> None:
    a, b = job("a", 2, 4, 3, pod_requests=gpus(2)), job("b", 2, 5, 3)
    big = job("big", 2, 2, pod_requests=gpus(2), created=NOW - timedelta(hours=2))
    small = job("small", 1, 1)
    nodes, held = [node("n1", 4), node("n2", 4)], pods(a, "n1", "n1", "n2")
    made = plan(world(nodes, [a, b, big, small], held, pods(b, "n2", "n2")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-2",)
    assert made.admitted == {"ns/a", "ns/b", "ns/small"}


def test_what_a_whole_unit_leaves_beyond_a_claim_helps_one_before_it_in_the_same_plan() -> None:
    """A claim that may not ask surplus to leave may still use what it leaves."""
    first = job("first", 1, 1, priority=1, queue="other", created=NOW)
    second = job("second", 1, 1, created=NOW)
    giver = job("giver", 2, 4, 4, node_unit=2)
    seen = world(
        [node("n1", 4)],
        [first, second, giver],
        pods(giver, *["n1"] * 4),
        queues=(Queue("default", deserved=gpus(4)), Queue("other")),
    )
    made = plan(ruled(seen, shrink=Shrink(for_other_queues=ForOtherQueues.BORROWED)), NOW)
    assert by_job(made)["giver"].new == 2
    assert not made.blocked
    assert plan(applied(seen, made, NOW), NOW).decisions == ()


def test_a_job_that_has_a_place_for_worker_0_again_gives_in_the_same_plan() -> None:
    """Until then its other pods are its minimum."""
    large = job("large", 2, 2, priority=1, pod_requests=gpus(2))
    small = job("small", 2, 4, 4)
    giver = job("giver", 1, 2, 2)
    nodes = [node("n1", 4), node("n2", 1), node("n3", 1), node("lost", 1, ready=False)]
    seen = world(
        nodes,
        [large, small, giver],
        [pod(large, 1, "n1")],
        [pod(small, 1, "n1"), pod(small, 2, "lost"), pod(small, 3, "n1")],
        pods(giver, "n2", "n3"),
    )
    made = plan(seen, NOW)
    assert not made.blocked
    assert (new_size(made, "small"), new_size(made, "giver")) == (2, 1)
    assert plan(applied(seen, made, NOW), NOW).decisions == ()


def test_no_surplus_leaves_for_a_pod_without_a_gang() -> None:
    a = job("a", 1, 2, 2)
    stranger = pod(job("x", 1, 1), 0, None, job=None, gang=None)
    made = plan(world([node("n1")], [a], pods(a, "n1", "n1"), [stranger]), NOW)
    assert made.decisions == ()


def test_a_gang_of_another_controller_is_a_claim_once_its_pods_exist() -> None:
    a = job("a", 1, 4, 4)
    full = world(TWO_BY_TWO, [a], pods(a, "n1", "n1", "n2", "n2"))
    gang = Gang("ns/vc", "default", 2, created=NOW)
    owner = job("vc", 2, 2)
    waiting = [pod(owner, i, None, job=None) for i in range(2)]
    half = replace(full, gangs=(gang,), pods=(*full.pods, waiting[0]))
    assert plan(half, NOW).decisions == ()
    whole = replace(full, gangs=(gang,), pods=(*full.pods, *waiting))
    assert by_job(plan(whole, NOW))["a"].new == 2
    pending = replace(full, gangs=(replace(gang, pod_requests=gpus(1)),))
    assert by_job(plan(pending, NOW))["a"].new == 2


def test_a_job_with_a_master_claims_room_for_it_too() -> None:
    a = job("a", 1, 4, 4)
    b = job("b", 1, 1, master_requests=gpus(1))
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert by_job(made)["a"].new == 2


def test_workers_that_have_finished_are_no_claim() -> None:
    rigid = job("r", 3, 3, succeeded=2)
    a = job("a", 1, 4, 3)
    made = plan(
        world(TWO_BY_TWO, [rigid, a], [pod(rigid, 2, "n1")], pods(a, "n1", "n2", "n2")), NOW
    )
    assert made.decisions == () and made.blocked == {}
