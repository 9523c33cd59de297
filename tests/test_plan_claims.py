"""Who waits for a minimum, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from planner_world import NOW, by_job, gpus, job, node, pod, world

from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.queue_policy.snapshot import Gang, Job, Pod, Queue

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
