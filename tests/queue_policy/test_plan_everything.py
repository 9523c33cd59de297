"""The planner's promises when every field of policies, queues and jobs is used."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.queue_policy.random_snapshots import everything
from tests.queue_policy.test_plan_properties import size_after
from tests.queue_policy.world import GPU, NOW, applied, settled
from volcano_elastic.api.queue_policy import (
    Mode,
    QueuePolicy,
    effective,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Snapshot

# PLANNER_EXAMPLES: as in test_plan_properties.
thorough = settings(
    max_examples=int(os.environ.get("PLANNER_EXAMPLES", examples(100))),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def policy_of(snapshot: Snapshot, job: Job) -> QueuePolicy:
    return effective(snapshot.policies).get(job.queue) or QueuePolicy(job.queue)


def active(made: Plan) -> Plan:
    return replace(made, decisions=tuple(d for d in made.decisions if not d.dry_run))


@thorough
@given(everything())
def test_sizes_stay_within_min_and_max_in_whole_units(snapshot: Snapshot) -> None:
    made = plan(snapshot, NOW)
    for owner in snapshot.jobs:
        size = size_after(made, owner)
        if size != owner.desired or policy_of(snapshot, owner).mode is Mode.ACTIVE:
            assert owner.min <= size <= owner.max
            assert size % owner.node_unit == 0
    elastic = {job.key for job in snapshot.jobs if job.elastic}
    assert {d.job for d in made.decisions}.isdisjoint(made.unchanged)
    assert made.unchanged.keys() == elastic - {d.job for d in made.decisions}


@thorough
@given(everything())
def test_the_next_plan_takes_nothing_back(snapshot: Snapshot) -> None:
    first = active(plan(snapshot, NOW))
    second = active(plan(applied(snapshot, first, NOW), NOW))
    before = {d.job: d.new - d.old for d in first.decisions}
    assert not any(before.get(d.job, 0) * (d.new - d.old) < 0 for d in second.decisions)


@thorough
@given(everything(), st.integers(0, 1000))
def test_the_order_of_the_input_changes_nothing(snapshot: Snapshot, seed: int) -> None:
    shuffle = Random(seed)

    def mixed(values: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(shuffle.sample(values, len(values)))

    shuffled = replace(
        snapshot,
        nodes=mixed(snapshot.nodes),
        pods=mixed(snapshot.pods),
        jobs=mixed(snapshot.jobs),
        queues=mixed(snapshot.queues),
        policies=mixed(snapshot.policies),
    )
    assert plan(shuffled, NOW) == plan(snapshot, NOW)


@thorough
@given(everything())
def test_modes_and_unmodelled_jobs_are_left_alone(snapshot: Snapshot) -> None:
    jobs = {job.key: job for job in snapshot.jobs}
    for decision in active(plan(snapshot, NOW)).decisions:
        job = jobs[decision.job]
        mode = policy_of(snapshot, job).mode
        if decision.reason is Reason.SURPLUS_UNPLACED:
            continue
        # Surplus without a place goes in every mode.
        stuck = decision.reason is Reason.SHRUNK_FOR_MINIMUM and not decision.remove
        assert stuck or not job.unmodelled or set(decision.remove) <= waiting(snapshot)
        if mode in (Mode.OFF, Mode.DRY_RUN):
            assert set(decision.remove) <= waiting(snapshot)
        if mode is not Mode.ACTIVE:
            assert decision.new <= decision.old or decision.reason is Reason.RAISED_TO_MIN


def waiting(snapshot: Snapshot) -> set[str]:
    return {p.key for p in snapshot.pods if p.node is None}


@thorough
@given(everything())
def test_no_growth_beyond_what_queues_may_hold_or_policies_allow(snapshot: Snapshot) -> None:
    made = active(plan(snapshot, NOW))
    jobs = {job.key: job for job in snapshot.jobs}
    for decision in made.decisions:
        job = jobs[decision.job]
        policy = policy_of(snapshot, job)
        if decision.reason is not Reason.GREW_INTO_IDLE:
            continue
        assert policy.mode is Mode.ACTIVE and not job.unmodelled
        if policy.grow.max_step is not None:
            assert decision.new - decision.old <= policy.grow.max_step
        if policy.surplus.max_per_job is not None:
            each = job.pod_requests[GPU] / 1000
            assert (decision.new - job.min) * each <= policy.surplus.max_per_job
        if job.scaler == "hpa" and job.replicas is not None:
            assert decision.new <= max(job.min, job.replicas)


@thorough
@given(everything())
def test_plan_apply_and_settle_come_to_rest(snapshot: Snapshot) -> None:
    now, quiet = NOW, 0
    for _ in range(40):
        made = active(plan(snapshot, now))
        quiet = quiet + 1 if not made.decisions else 0
        if quiet == 3:
            break
        snapshot = settled(applied(snapshot, made, now))
        now += timedelta(seconds=61)
    assert quiet == 3
