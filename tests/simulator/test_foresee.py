"""A simulation that begins with a cluster as it is goes on with what its jobs are by then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tests.queue_policy.world import NOW, job, node, pods, world
from tests.simulator.world import SMALL
from tests.simulator.world import job as trace_job
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.present import Present, PresentJob
from volcano_elastic.simulator.simulation import foresee
from volcano_elastic.snapshot.snapshot import Snapshot


def test_a_job_that_is_old_is_never_told_to_be_young() -> None:
    old = replace(job("a", 2, 4), gpu_hours=40.0)
    bound = pods(old, "n", "n")
    present = Present(
        base=replace(world([node("n", 8)], []), jobs=()),
        jobs=(PresentJob(trace_job(old.key, -7200, 2, 10_000, 2, 4), old, tuple(bound)),),
    )
    seen: list[float] = []
    planner = Planner()

    def plan(snapshot: Snapshot, now: datetime) -> Plan:
        seen.extend(one.gpu_hours for one in snapshot.jobs)
        return planner.plan(snapshot, now)

    found = foresee(present, [], replace(SMALL, zero=NOW), plan, [old.key], 50_000.0)
    assert found[old.key].finish is not None
    assert min(seen) == 40.0
