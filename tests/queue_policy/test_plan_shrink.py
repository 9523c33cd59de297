"""Room for claims: which nodes they are promised, which surplus leaves for them, and that a claim
in vain leaves no trace.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.queue_policy.world import (
    NOW,
    applied,
    by_job,
    gpus,
    job,
    node,
    pod,
    pods,
    ruled,
    seconds,
    world,
)
from volcano_elastic.api.queue_policy import Mode, Shrink
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Queue, Snapshot

EARLY = {"created": NOW - timedelta(hours=1)}
LABELLED = node("n1", 2, labels={"zone": "x"})


def in_zone(name: str, size: int = 1, **more: object) -> Job:
    return job(name, size, size, pod_requests=gpus(2), node_selector={"zone": "x"}, **more)


# Moves


def test_who_may_go_anywhere_is_promised_another_node_for_the_sake_of_who_may_not() -> None:
    anywhere = job("anywhere", 1, 1, **EARLY)
    made = plan(world([LABELLED, node("n2", 2)], [anywhere, in_zone("here")]), NOW)
    assert (made.blocked, made.decisions) == ({}, ())


def test_nobody_is_promised_another_node_that_has_no_room() -> None:
    anywhere, large = job("anywhere", 1, 1, **EARLY), job("large", 1, 1, pod_requests=gpus(2))
    older = replace(large, created=NOW - timedelta(hours=2), node_selector={"n": "2"})
    nodes = [LABELLED, node("n2", 2, labels={"n": "2"})]
    made = plan(world(nodes, [anywhere, older, in_zone("here")]), NOW)
    assert set(made.blocked) == {"ns/here"}


def test_as_many_are_promised_other_nodes_as_there_must_be() -> None:
    """One of two on each of two nodes, so that a gang of two has both."""
    nodes = [replace(LABELLED, name=name) for name in ("n1", "n2")]
    nodes += [node("n3", 1), node("n4", 1)]
    cpus = {"cpu": 40_000}
    big = [job(name, 1, 1, pod_requests=gpus(1) | cpus, **EARLY) for name in ("a", "b")]
    first = plan(world(nodes, [*big, in_zone("here", 2)]), NOW)
    assert first.blocked == {}
    third = job("c", 1, 1, pod_requests=gpus(1))
    full = plan(world(nodes, [*big, third, in_zone("here", 2, **EARLY)]), NOW)
    assert set(full.blocked) == {"ns/c"}


def test_what_was_promised_elsewhere_is_not_given_to_another() -> None:
    anywhere, later = job("anywhere", 1, 1, **EARLY), job("later", 2, 2, created=NOW)
    nodes = [LABELLED, node("n2", 2)]
    made = plan(world(nodes, [anywhere, in_zone("here"), later]), NOW)
    assert set(made.blocked) == {"ns/later"}
    one = replace(later, min=1, max=1, desired=1)
    assert plan(world(nodes, [anywhere, in_zone("here"), one]), NOW).blocked == {}


def crowded(second: int) -> tuple[Snapshot, Job]:
    """Two jobs each with worker 0 elsewhere; one worker of `a` beside an idle GPU on n1, and one
    of `b` on n2, which has so many GPUs; an earlier claim of 1 GPU; one of 2 GPUs of n1."""
    a, b = job("a", 1, 2, 2), job("b", 1, 2, 2)
    anywhere, big = job("anywhere", 1, 1, **EARLY), in_zone("big")
    nodes = [LABELLED, node("n2", second), node("n3", 2)]
    mine = [pod(a, 0, "n3"), pod(b, 0, "n3"), pod(a, 1, "n1"), pod(b, 1, "n2")]
    return world(nodes, [a, b, anywhere, big], mine), big


def test_a_claim_has_a_node_whose_surplus_leaves_and_whose_promise_moves_too() -> None:
    """Neither would be enough. Of nodes with as much room the first is promised."""
    seen, _ = crowded(2)
    made = plan(seen, NOW)
    assert ({k: d.new for k, d in by_job(made).items()}, made.blocked) == ({"a": 1}, {})


def test_surplus_leaves_where_an_earlier_promise_goes_for_the_sake_of_a_claim() -> None:
    """Which itself could not use that room."""
    seen, _ = crowded(1)
    made = plan(seen, NOW)
    assert ({k: d.new for k, d in by_job(made).items()}, made.blocked) == ({"a": 1, "b": 1}, {})
    assert plan(applied(seen, made, NOW), NOW).decisions == ()


def test_promises_that_cannot_all_be_made_anew_stay_as_they_were() -> None:
    seen, big = crowded(1)
    larger = replace(big, min=2, max=2, desired=2)
    jobs = tuple(larger if j is big else j for j in seen.jobs)
    made = plan(replace(seen, jobs=jobs), NOW)
    assert (set(made.blocked), made.decisions) == ({"ns/big"}, ())
    later = job("later", 1, 1, created=NOW)
    made = plan(replace(seen, jobs=(*jobs, later)), NOW)
    assert {k: d.new for k, d in by_job(made).items()} == {"a": 1}


# In vain


def in_vain(**more: object) -> Job:
    """Its worker and its Master would each find room on a node of 3, and both would not."""
    return job("vain", 1, 1, pod_requests=gpus(2), master_requests=gpus(2), **EARLY | more)


def test_a_claim_in_vain_holds_neither_nodes_nor_its_queue() -> None:
    small = job("small", 1, 1, pod_requests=gpus(3))
    queue = Queue("default", capability=gpus(3))
    roomy = Queue("default", capability=gpus(4))
    for queues in ((queue,), (roomy,)):
        made = plan(world([node("n1", 3)], [in_vain(), small], queues=queues), NOW)
        assert (set(made.blocked), made.admitted) == ({"ns/vain"}, {"ns/small"})


def test_what_a_claim_in_vain_would_have_taken_is_still_held_by_its_queue() -> None:
    queues = (Queue("default"), Queue("q", capability=gpus(3)))
    a = job("a", 1, 3, 3, queue="q")
    new = job("new", 1, 1, queue="q")
    nodes = [node("n1", 3, labels={"zone": "x"}), node("n2", 1)]
    vain = in_vain(node_selector={"zone": "x"})
    made = plan(world(nodes, [a, vain, new], pods(a, *["n1"] * 3), queues=queues), NOW)
    assert set(made.blocked) == {"ns/vain"}
    assert {name: d.new for name, d in by_job(made).items()} == {"a": 2}


def test_a_claim_counts_all_its_pods_against_its_queue() -> None:
    b = job("b", 2, 2, pod_requests=gpus(2))
    queue = Queue("default", capability=gpus(3))
    made = plan(world([node("n1", 8)], [b], queues=(queue,)), NOW)
    assert made.blocked["ns/b"].startswith("it needs 4 GPUs, and queue default has too little room")


def test_what_the_nodes_could_never_take_is_said_of_the_nodes() -> None:
    made = plan(world([node("n1", 2)], [job("b", 3, 3)]), NOW)
    assert "the nodes have too little room for it" in made.blocked["ns/b"]


# What leaves already


def test_a_claim_takes_no_more_of_what_leaves_than_it_lacks() -> None:
    gone = job("gone", 2, 2)
    leaving = [pod(gone, i, "n2", terminating=True) for i in range(2)]
    b, c = job("b", 2, 2, **EARLY), job("c", 1, 1)
    made = plan(world([node("n1", 1), node("n2", 2)], [b, c], leaving), NOW)
    assert (made.blocked, made.admitted) == ({}, {"ns/b", "ns/c"})


def test_who_waits_for_what_leaves_is_not_called_stuck() -> None:
    a, b = job("a", 1, 4, 4), job("b", 2, 2)
    seen = world([node("n1", 4)], [a, b], pods(a, *["n1"] * 4))
    first = plan(seen, NOW)
    seen = applied(seen, first, NOW)
    for moment in (1, 17):
        made = plan(seen, NOW + seconds(moment))
        seen = replace(seen, memory=made.memory)
    assert made.blocked == {}


def test_who_waits_for_its_own_queues_surplus_is_not_called_stuck() -> None:
    """Though there is idle room on a node."""
    a, b = job("a", 1, 2, 2), job("b", 1, 1)
    queue = Queue("default", capability=gpus(2))
    seen = world([node("n1", 2), node("n2", 2)], [a, b], pods(a, "n1", "n1"), queues=(queue,))
    for moment in (0, 16):
        made = plan(seen, NOW + seconds(moment))
        seen = replace(seen, memory=made.memory)
    assert made.blocked == {} and by_job(made)["a"].new == 1


# Whole units


def test_the_rest_of_a_unit_that_leaves_is_room_for_the_next_claim() -> None:
    a = job("a", 2, 8, 4, node_unit=2)
    b, c = job("b", 1, 1, **EARLY), job("c", 1, 1)
    nodes = [node("n1", 2), node("n2", 2)]
    for queues in ((Queue("default"),), (Queue("default", capability=gpus(4)),)):
        seen = world(nodes, [a, b, c], pods(a, "n1", "n1", "n2", "n2"), queues=queues)
        made = plan(seen, NOW)
        assert (by_job(made)["a"].new, made.blocked) == (2, {})


def test_workers_that_do_not_exist_complete_a_unit_for_nothing() -> None:
    a, b = job("a", 2, 8, 4, node_unit=2), job("b", 1, 1)
    made = plan(world([node("n1", 3)], [a, b], pods(a, "n1", "n1", "n1")), NOW)
    assert (by_job(made)["a"].new, by_job(made)["a"].remove) == (2, ("ns/a-worker-2",))


def test_half_a_unit_that_will_never_be_whole_leaves_for_a_claim_and_nobody_elses_surplus() -> None:
    a, b, c = job("a", 2, 8, 4, node_unit=2), job("b", 1, 4, 2), job("c", 1, 1)
    nodes = [node("n1", 3), node("n2", 2)]
    seen = world(nodes, [a, b, c], pods(a, "n1", "n1", "n1"), pods(b, "n2", "n2"))
    made = plan(seen, NOW)
    assert {name: d.remove for name, d in by_job(made).items()} == {"a": ("ns/a-worker-2",)}
    assert (made.blocked, by_job(made)["a"].reason) == ({}, Reason.SURPLUS_UNPLACED)


def test_half_a_unit_that_has_a_place_once_nobody_claims_it_stays_a_unit() -> None:
    """Its other half is given up for the claim, and says so."""
    a, c = job("a", 2, 8, 4, node_unit=2), job("c", 1, 1)
    gone = pod(job("gone", 1, 1), 0, "n1", terminating=True)
    made = plan(world([node("n1", 4)], [a, c], pods(a, "n1", "n1", "n1"), [gone]), NOW)
    assert (by_job(made)["a"].new, by_job(made)["a"].reason) == (2, Reason.SHRUNK_FOR_MINIMUM)
    assert (
        plan(world([node("n1", 5)], [a, c], pods(a, "n1", "n1", "n1"), [gone]), NOW).decisions == ()
    )


# Young surplus, for claims of other pods than its own


def for_young(claim: Job, *ages: float | None) -> Plan:
    """A node of 3: worker 0 of `a`, and two surplus workers of these ages."""
    a = job("a", 1, 3, 3)
    mine = [pod(a, 0, "n1")]
    mine += [
        pod(a, i, "n1", created=None if age is None else NOW - seconds(age))
        for i, age in enumerate(ages, 1)
    ]
    seen = world([node("n1", 3)], [a, claim], mine)
    return plan(ruled(seen, shrink=Shrink(protect=seconds(60))), NOW)


@pytest.mark.parametrize("size", [1, 2])
def test_the_message_says_when_the_first_young_surplus_may_leave(size: int) -> None:
    claim = job("b", 1, 1, pod_requests=gpus(size))
    made = for_young(claim, 20, 10)
    assert "protectSeconds end for some surplus at 2026-01-01T12:00:40" in made.blocked["ns/b"]


@pytest.mark.parametrize("size", [1, 2])
def test_surplus_of_an_age_that_nobody_knows_is_not_young(size: int) -> None:
    made = for_young(job("b", 1, 1, pod_requests=gpus(size)), None, None)
    assert by_job(made)["a"].new == 3 - size


def test_surplus_leaves_from_the_moment_its_protection_ends() -> None:
    made = for_young(job("b", 1, 1, pod_requests=gpus(2)), 60, 60)
    assert by_job(made)["a"].new == 1


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.DRY_RUN])
def test_no_pod_of_a_job_that_is_left_alone_leaves_for_a_claim_of_other_pods(mode: Mode) -> None:
    a, b = job("a", 1, 3, 3), job("b", 1, 1, pod_requests=gpus(2))
    made = plan(ruled(world([node("n1", 3)], [a, b], pods(a, *["n1"] * 3)), mode=mode), NOW)
    assert set(made.blocked) == {"ns/b"}
    assert [d for d in made.decisions if not d.dry_run] == []


def test_surplus_on_a_node_that_is_gone_helps_no_claim_of_other_pods() -> None:
    a, b = job("a", 1, 4, 4), job("b", 1, 1, pod_requests=gpus(2))
    made = plan(world([node("n1", 3)], [a, b], pods(a, "n1", "n1", "n1", "gone")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-2", "ns/a-worker-1")


def test_whole_units_leave_for_a_claim_of_other_pods_and_the_minimum_stays() -> None:
    a, b = job("a", 4, 8, 6, node_unit=2), job("b", 1, 1, pod_requests=gpus(2))
    seen = world([node("n1", 6)], [a, b], pods(a, *["n1"] * 6))
    assert by_job(plan(seen, NOW))["a"].new == 4
    larger = replace(seen, jobs=(a, replace(b, pod_requests=gpus(3))))
    made = plan(larger, NOW)
    assert (set(made.blocked), made.decisions) == ({"ns/b"}, ())


def test_what_claims_are_told_does_not_depend_on_who_is_looked_at_first() -> None:
    a = job("a", 1, 3, 3, pod_requests=gpus(2))
    mine = [pod(a, 0, "n1"), pod(a, 1, "n1", age=1), pod(a, 2, "n1", age=1)]
    large, small = job("large", 4, 4, pod_requests=gpus(2)), job("small", 1, 1)
    found = [
        plan(ruled(world([node("n1", 6)], jobs, mine), shrink=Shrink(protect=seconds(60))), NOW)
        for jobs in ([a, large, small], [a, small, large])
    ]
    assert found[0].blocked == found[1].blocked and len(found[0].blocked) == 2
