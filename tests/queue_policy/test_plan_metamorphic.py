"""How the plan changes when the cluster does: promises that compare two plans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.queue_policy.random_snapshots import everything, snapshots
from tests.queue_policy.test_plan_everything import thorough
from tests.queue_policy.test_plan_properties import size_after
from tests.queue_policy.world import GPU, NOW, gpus, node
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.snapshot.snapshot import Job, Snapshot


@thorough
@given(everything())
def test_names_of_nodes_queues_and_policies_change_nothing(snapshot: Snapshot) -> None:
    """Jobs' and pods' names break ties; no other name does, but for nodes of equal room."""
    zones = {n.name: f"other-{n.name}" for n in snapshot.nodes}
    queues = {q.name: f"team-{q.name}" for q in snapshot.queues}
    twin = replace(
        snapshot,
        nodes=tuple(replace(n, name=zones[n.name]) for n in snapshot.nodes),
        pods=tuple(replace(p, node=p.node and zones[p.node]) for p in snapshot.pods),
        jobs=tuple(replace(j, queue=queues[j.queue]) for j in snapshot.jobs),
        queues=tuple(
            replace(q, name=queues[q.name], parent=q.parent and queues[q.parent])
            for q in snapshot.queues
        ),
        policies=tuple(replace(p, queue=queues[p.queue]) for p in snapshot.policies),
    )
    changes = {d.job: (d.new, d.remove) for d in plan(snapshot, NOW).decisions}
    assert {d.job: (d.new, d.remove) for d in plan(twin, NOW).decisions} == changes


@thorough
@given(everything())
def test_names_of_jobs_change_nothing_but_who_is_first_among_equals(snapshot: Snapshot) -> None:
    """In a new namespace, in the old order."""

    def named(key: str) -> str:
        return f"elsewhere/{key.partition('/')[2]}-too"

    twin = replace(
        snapshot,
        pods=tuple(
            replace(p, key=named(p.key), job=p.job and named(p.job), gang=p.gang and named(p.gang))
            for p in snapshot.pods
        ),
        jobs=tuple(replace(j, key=named(j.key)) for j in snapshot.jobs),
        memory=replace(
            snapshot.memory, unplaced={named(k): v for k, v in snapshot.memory.unplaced.items()}
        ),
    )
    before, after = plan(snapshot, NOW), plan(twin, NOW)
    assert {d.job: (d.new, d.remove) for d in after.decisions} == {
        named(d.job): (d.new, tuple(map(named, d.remove))) for d in before.decisions
    }
    assert after.unchanged == {named(key): stay for key, stay in before.unchanged.items()}
    assert after.blocked.keys() == set(map(named, before.blocked))


@thorough
@given(snapshots(mixed=False), st.integers(1, 4))
def test_added_gpus_never_leave_more_claims_waiting(snapshot: Snapshot, count: int) -> None:
    larger = replace(snapshot, nodes=(*snapshot.nodes, node("more", count)))
    before, after = plan(snapshot, NOW), plan(larger, NOW)
    assert len(after.blocked) <= len(before.blocked) or unmet(larger, after) <= unmet(
        snapshot, before
    )


def unmet(snapshot: Snapshot, made: Plan) -> int:
    """GPUs that blocked minimums ask for."""
    return sum(job.min * job.pod_requests[GPU] for job in snapshot.jobs if job.key in made.blocked)


@thorough
@given(snapshots(mixed=False, units=False), st.integers(0, 4), st.integers(1, 8))
def test_a_raised_max_never_lowers_the_job(snapshot: Snapshot, which: int, more: int) -> None:
    chosen = snapshot.jobs[which % len(snapshot.jobs)]

    def raised(job: Job) -> Job:
        return replace(job, max=job.max + more) if job is chosen else job

    taller = replace(snapshot, jobs=tuple(raised(job) for job in snapshot.jobs))
    before, after = plan(snapshot, NOW), plan(taller, NOW)
    assert size_after(after, chosen) >= size_after(before, chosen)


@thorough
@given(snapshots(mixed=False))
def test_a_queue_without_limits_is_as_good_as_no_queue_at_all(snapshot: Snapshot) -> None:
    without = plan(replace(snapshot, queues=()), NOW)
    assert without.decisions == plan(snapshot, NOW).decisions


@thorough
@given(snapshots(mixed=False))
def test_room_that_nobody_can_use_changes_nothing(snapshot: Snapshot) -> None:
    useless = (
        replace(node("broken", 8), ready=False),
        replace(node("cordoned", 8), unschedulable=True),
        replace(node("tainted", 8), taints=(("dedicated", "x", "NoSchedule"),)),
        replace(node("no-cpu", 0), allocatable={"cpu": 64_000, "pods": 110_000} | gpus(0)),
    )
    larger = replace(snapshot, nodes=(*snapshot.nodes, *useless))
    assert plan(larger, NOW).decisions == plan(snapshot, NOW).decisions


@thorough
@given(everything())
def test_a_plan_without_reports_decides_the_same(snapshot: Snapshot) -> None:
    full, bare = plan(snapshot, NOW), Planner(reports=False).plan(snapshot, NOW)
    silent = tuple(replace(decision, message="") for decision in full.decisions)
    assert bare == replace(full, decisions=silent, unchanged={}, queues={})
