"""How long a plan takes, from a built snapshot, and what the planner keeps in memory.

    python -m benchmarks.planner [--json] [--jobs N --pods N --nodes N] [--repeat N]

Cases: `calm` is a full cluster with nothing to do, `growth` has a tenth of its GPUs idle, `claims`
has newcomers that all surplus together can just about serve, `newcomer` has one of them.

Times, in milliseconds of CPU (the wall's where nothing else runs), medians of the repeats:

  first    a new planner: every pod and job is sorted, and all of them are planned
  full     the planner has sorted the snapshot before: all jobs are planned again
  change   after one pod of the snapshot has changed

Garbage is collected before, not during: the operator freezes what it has built too.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.queue_policy.snapshot import Job, Node, Pod, Queue, Snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SIZES = ((1_000, 10_000, 200), (3_000, 30_000, 600), (10_000, 100_000, 2_000))
CASES = ("calm", "growth", "newcomer", "claims")
QUEUES = 100


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    jobs: int
    pods: int
    nodes: int
    first_ms: float
    full_ms: float
    change_ms: float
    megabytes: float
    """What the planner holds besides the snapshot, after the first plan."""
    decisions: int
    blocked: int


def cluster(jobs: int, pods: int, nodes: int, case: str) -> Snapshot:
    """All GPUs of equal nodes in use by equal jobs at the mean size, then the case's twist."""
    size, per_node = pods // jobs, -(-pods // nodes)
    made_jobs: list[Job] = []
    made_pods: list[Pod] = []
    for i in range(jobs):
        request = {"nvidia.com/gpu": 1000, "cpu": 4000, "memory": 1 << 44}
        job = Job(
            key=f"ns/j{i}",
            queue=f"q{i % QUEUES}",
            created=NOW - timedelta(hours=1, seconds=i),
            min=max(1, size // 2 - i % 3),
            max=size * 2,
            desired=size,
            pod_requests=request,
            cooldown=timedelta(seconds=0),
        )
        made_jobs.append(job)
        for index in range(size):
            place = (i * size + index) // per_node
            made_pods.append(
                Pod(
                    key=f"{job.key}-worker-{index}",
                    uid=f"{i}-{index}",
                    # One mapping a pod, as parsed from the API server.
                    requests=dict(request),
                    job=job.key,
                    gang=job.key,
                    index=index,
                    node=f"n{place}",
                    running=True,
                    protected=index < job.min,
                )
            )
    if case == "growth":
        gone = {job.key for job in made_jobs[::10]}
        made_jobs = [job for job in made_jobs if job.key not in gone]
        made_pods = [pod for pod in made_pods if pod.job not in gone]
    newcomers = {"claims": jobs // 100, "newcomer": 1}.get(case)
    if newcomers:
        made_jobs += [
            replace(job, key=f"ns/new{i}", created=NOW, min=size, desired=size)
            for i, job in enumerate(made_jobs[:newcomers])
        ]
    shape = {"nvidia.com/gpu": per_node * 1000, "cpu": per_node * 4000, "memory": per_node << 44}
    return Snapshot(
        nodes=tuple(Node(f"n{n}", shape | {"pods": 110_000}) for n in range(nodes)),
        pods=tuple(made_pods),
        jobs=tuple(made_jobs),
        queues=tuple(Queue(f"q{i}") for i in range(QUEUES)),
    )


def measure(jobs: int, pods: int, nodes: int, case: str, repeat: int) -> Row:
    snapshot = cluster(jobs, pods, nodes, case)
    first, full, change = [], [], []
    for _ in range(repeat):
        planner = Planner()
        gc.collect()
        gc.freeze()
        first.append(_milliseconds(planner, snapshot))
        gc.collect()
        gc.freeze()
        full.append(_milliseconds(planner, snapshot))
        middle = len(snapshot.pods) // 2
        changed = replace(snapshot.pods[middle], running=False)
        after = (*snapshot.pods[:middle], changed, *snapshot.pods[middle + 1 :])
        change.append(_milliseconds(planner, replace(snapshot, pods=after)))
        gc.unfreeze()
    tracemalloc.start()
    made = (planner := Planner()).plan(snapshot, NOW)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Row(
        case=case,
        jobs=len(snapshot.jobs),
        pods=len(snapshot.pods),
        nodes=len(snapshot.nodes),
        first_ms=round(statistics.median(first), 1),
        full_ms=round(statistics.median(full), 1),
        change_ms=round(statistics.median(change), 1),
        megabytes=round(held / 1e6, 1),
        decisions=len(made.decisions),
        blocked=len(made.blocked),
    )


def _milliseconds(planner: Planner, snapshot: Snapshot) -> float:
    start = time.process_time()
    planner.plan(snapshot, NOW)
    return (time.process_time() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, help="with --pods and --nodes: one size of your own")
    parser.add_argument("--pods", type=int)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--repeat", type=int, default=5, help="plans timed for each row")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    own = (given.jobs, given.pods, given.nodes)
    if any(own) and (not all(n and n > 0 for n in own) or given.pods < given.jobs):
        parser.error("expected --jobs, --pods and --nodes together, at least one pod a job")
    if given.repeat < 1:
        parser.error(f"expected --repeat of at least 1, found {given.repeat}")
    sizes = (own,) if all(own) else SIZES
    rows = [
        measure(jobs, pods, nodes, case, given.repeat)
        for jobs, pods, nodes in sizes
        for case in CASES
    ]
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(
        f"{'case':10}{'jobs':>8}{'pods':>9}{'nodes':>7}{'first ms':>10}{'full ms':>10}"
        f"{'change ms':>11}{'MB':>7}{'changes':>9}{'blocked':>9}"
    )
    for row in rows:
        print(
            f"{row.case:10}{row.jobs:>8}{row.pods:>9}{row.nodes:>7}{row.first_ms:>10.1f}"
            f"{row.full_ms:>10.1f}{row.change_ms:>11.1f}{row.megabytes:>7.1f}"
            f"{row.decisions:>9}{row.blocked:>9}"
        )


if __name__ == "__main__":
    main()
