"""A job does not grow into pods that the API server would refuse: ResourceQuotas are room too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from tests.queue_policy.random_snapshots import with_quotas
from tests.queue_policy.test_plan_everything import active, thorough
from tests.queue_policy.test_plan_properties import beyond_desired
from tests.queue_policy.world import (
    EIGHT,
    GPU,
    NOW,
    by_job,
    gpus,
    job,
    new_size,
    pod,
    pods,
    quota,
    seconds,
    world,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.snapshot.snapshot import Job, Pod, Quota, Snapshot

A = job("a", 1, 8, 2)


def within(*quotas: Quota, size: int = 2, rest: tuple[Pod, ...] = ()) -> Snapshot:
    a = replace(A, desired=size)
    seen = world(EIGHT, [a], pods(a, *["n1"] * size), rest)
    return replace(seen, quotas=quotas)


def test_growth_stays_within_every_quota_of_its_namespace() -> None:
    left_three = quota("ns/gpus", gpus(5), gpus(2))
    assert new_size(plan(within(left_three), NOW), "a") == 5
    left_one = quota("ns/pods", {"pods": 3000}, {"pods": 2000})
    assert new_size(plan(within(left_three, left_one), NOW), "a") == 3


@pytest.mark.parametrize(
    "other",
    [
        quota("elsewhere/gpus", gpus(2), gpus(2)),
        quota("ns/scoped", gpus(2), gpus(2), scoped=True),
        quota("ns/cpu", {"cpu": 1000}, {"cpu": 1000}),
    ],
)
def test_a_quota_of_other_pods_or_of_what_it_does_not_ask_for_keeps_no_job_small(
    other: Quota,
) -> None:
    assert new_size(plan(within(other), NOW), "a") == 8


def test_a_job_that_its_quota_keeps_small_says_so() -> None:
    made = plan(within(quota("ns/gpus", gpus(2), gpus(2))), NOW)
    assert made.unchanged["ns/a"].why_not_more is Reason.QUOTA_FULL


def test_what_pods_that_leave_will_free_is_not_there_yet() -> None:
    leaving = pod(A, 9, "n1", terminating=True, leaves_by=NOW + seconds(5))
    seen = within(quota("ns/gpus", gpus(3), gpus(3)), rest=(leaving,))
    assert plan(seen, NOW).decisions == ()


def test_pods_that_are_about_to_be_made_count_before_the_api_server_counts_them() -> None:
    seen = within(quota("ns/gpus", gpus(6), gpus(2)))
    b = job("b", 2, 2)
    made = plan(replace(seen, jobs=(*seen.jobs, b)), NOW)
    assert new_size(made, "a") == 4
    growing = replace(A, desired=5, last_scale=NOW)
    c = job("c", 1, 8)
    later = replace(seen, jobs=(growing, c), pods=(*seen.pods, *pods(c, "n1")))
    later = replace(later, quotas=(quota("ns/gpus", gpus(7), gpus(3)),))
    assert {name: d.new for name, d in by_job(plan(later, NOW)).items()} == {"c": 2}


def test_a_quota_counts_what_a_limit_range_has_added_to_the_pods() -> None:
    asks = gpus(1) | {"cpu": 2000}
    mine = [replace(p, requests=asks) for p in pods(A, "n1", "n1")]
    cpus = quota("ns/cpu", {"cpu": 9000}, {"cpu": 4000})
    seen = replace(world([replace(EIGHT[0], allocatable=gpus(8, 64))], [A], mine), quotas=(cpus,))
    assert new_size(plan(seen, NOW), "a") == 4


def test_nobody_gives_to_a_job_that_could_make_no_pods() -> None:
    """The one of two jobs that gains most is in a namespace that is full."""
    poor = job("poor", 1, 8, 7, gpu_hours=99.0, last_scale=NOW - seconds(600))
    rich = job("rich", 1, 8, 1, key="full/rich", created=NOW, last_scale=NOW - seconds(600))
    mine = (*pods(poor, *["n1"] * 7), *pods(rich, "n1"))
    seen = world(EIGHT, [poor, rich], mine)
    assert new_size(plan(seen, NOW), "poor") is not None, "it would give"
    full = replace(seen, quotas=(quota("full/gpus", gpus(1), gpus(1)),))
    assert plan(full, NOW).decisions == ()


def test_surplus_of_its_namespace_leaves_for_a_newcomer_that_the_quota_would_refuse() -> None:
    """Though two GPUs are idle, and though somebody else has more surplus."""
    seen = within(quota("ns/gpus", gpus(4), gpus(4)), size=4)
    rich = job("rich", 1, 20, 20, key="elsewhere/rich")
    nodes = (*seen.nodes, replace(EIGHT[0], name="n2", allocatable=gpus(20)))
    mine = (*seen.pods, *pods(rich, *["n2"] * 20))
    new = job("new", 2, 2, created=NOW)
    seen = replace(seen, nodes=nodes, jobs=(*seen.jobs, rich, new), pods=mine)
    made = plan(seen, NOW)
    assert {name: d.new for name, d in by_job(made).items()} == {"a": 2}
    assert made.decisions[0].reason is Reason.SHRUNK_FOR_MINIMUM
    assert "ns/new" in made.admitted


def test_a_newcomer_that_its_quota_will_never_let_in_holds_nothing_and_is_told_so() -> None:
    seen = within(quota("ns/gpus", gpus(4), gpus(3)), size=3)
    new = job("new", 4, 4, created=NOW)
    made = plan(replace(seen, jobs=(*seen.jobs, new)), NOW)
    assert "the ResourceQuota of namespace ns has too little room for it" in made.blocked["ns/new"]
    assert new_size(made, "a") == 4, "it grows on"
    twin = job("twin", 4, 4, key="other/twin", created=NOW)
    both = plan(replace(seen, jobs=(*seen.jobs, new, twin)), NOW)
    assert both.blocked.keys() == {"ns/new"}, "another namespace has no quota"


def test_a_newcomers_master_counts_in_the_quota_too() -> None:
    seen = within(quota("ns/gpus", gpus(4), gpus(4)), size=4)
    new = job("new", 1, 1, created=NOW, master_requests=gpus(1))
    assert new_size(plan(replace(seen, jobs=(*seen.jobs, new)), NOW), "a") == 2


@thorough
@given(with_quotas())
def test_no_growth_is_ever_refused(snapshot: Snapshot) -> None:
    made = active(plan(snapshot, NOW))
    assert made == active(Planner().plan(snapshot, NOW))
    jobs = {j.key: j for j in snapshot.jobs}
    there = Counter(p.job for p in snapshot.pods)
    grown = 0
    for decision in made.decisions:
        if decision.reason is Reason.GREW_INTO_IDLE:
            more = decision.new - max(decision.old, there[decision.job])
            grown += max(0, more) * jobs[decision.job].pod_requests[GPU]
    (limit,) = snapshot.quotas
    left = limit.hard[GPU] - limit.used[GPU]
    assert grown <= max(0, left)
    # Nor any newcomer, once those that leave for it have left.
    new = [j for key, j in jobs.items() if not there[key] and key in made.admitted]
    if new:
        gone = [p for p in snapshot.pods if p.terminating and p.node]
        gone += [p for d in made.decisions for p in snapshot.pods if p.key in d.remove]
        excess = [p for j in jobs.values() for p in beyond_desired(alive_of(snapshot, j), j)]
        freed = sum(p.requests[GPU] for p in {p.key: p for p in (*gone, *excess)}.values())
        assert sum(j.min * j.pod_requests[GPU] for j in new) <= left + freed


def alive_of(snapshot: Snapshot, owner: Job) -> list[Pod]:
    return [p for p in snapshot.pods if p.job == owner.key and not p.terminating]
