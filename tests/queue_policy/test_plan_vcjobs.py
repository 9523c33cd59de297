"""Volcano Jobs with fewer minAvailable than replicas are elastic too: what runs beyond the minimum
is surplus, though only Volcano itself may evict it."""

from __future__ import annotations

from dataclasses import replace

from tests.queue_policy.world import EIGHT, NOW, gpus, job, new_size, pod, pods, world
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Gang, Pod, Snapshot

VC = Gang("ns/vc", "default", 2, created=NOW)


def beside(*more: Pod, running: int = 5, protected: int = 0, size: int = 3) -> Snapshot:
    """A vcjob with so many running pods beside job a, which fill the node at 5 and 3."""
    a, vc = job("a", 1, 8, size), job("vc", 2, 8)
    theirs = [
        pod(vc, i, "n1", job=None, gang=VC.key, protected=i < protected) for i in range(running)
    ]
    return replace(world(EIGHT, [a], pods(a, *["n1"] * size), theirs, more), gangs=(VC,))


def test_what_a_vcjob_runs_beyond_its_minimum_is_shown_as_surplus() -> None:
    found = plan(beside(), NOW).queues["default"]
    assert (found.guaranteed, found.surplus) == (3000, 5000)
    alone = plan(beside(protected=5), NOW).queues["default"]
    assert (alone.guaranteed, alone.surplus) == (6000, 2000), "what Volcano may not evict"
    made_by_volcano = replace(beside(), gangs=(replace(VC, loose=True),))
    assert plan(made_by_volcano, NOW).queues["default"].surplus == 2000


def test_whoever_waits_gets_our_surplus_and_does_not_wait_for_volcano() -> None:
    seen = beside()
    newcomer = job("new", 2, 2, created=NOW)
    made = plan(replace(seen, jobs=(*seen.jobs, newcomer)), NOW)
    assert new_size(made, "a") == 1
    assert made.blocked == {}


def test_where_our_surplus_is_too_little_it_says_whose_volcano_may_evict() -> None:
    seen = beside()
    newcomer = job("new", 4, 4, created=NOW)
    made = plan(replace(seen, jobs=(*seen.jobs, newcomer)), NOW)
    assert made.decisions == ()
    assert made.blocked["ns/new"].endswith("; surplus of ns/vc is Volcano's to evict")
    other = replace(newcomer, pod_requests={"example.com/fpga": 1000})
    said = plan(replace(seen, jobs=(*seen.jobs, other)), NOW).blocked["ns/new"]
    assert not said.endswith("Volcano's to evict"), "it would not help"


def test_a_vcjobs_waiting_surplus_is_no_claim_and_keeps_the_idle_room_that_it_fits() -> None:
    vc = job("vc", 2, 8, pod_requests=gpus(1))
    waiting = [pod(vc, 9, None, job=None, gang=VC.key)]
    assert plan(beside(*waiting), NOW).decisions == ()
    made = plan(beside(*waiting, size=2), NOW)
    assert made.decisions == ()
    assert made.unchanged["ns/a"].why_not_more is Reason.NO_ROOM
