"""Measures how long a plan takes, from a built snapshot, and what the planner keeps in memory.

    python -m benchmarks.planner [--json] [--jobs N --pods N --nodes N] [--repeat N]

Cases: `calm` is a full cluster with nothing to do, `growth` has a tenth of its GPUs idle, `claims`
has newcomers that all surplus together can just about serve, `sizes` has as many whose pods are of
1, 2, 4 and 8 GPUs, `full` has those of `claims` in queues that may hold no more than they do,
`newcomer` has one.

Times, in milliseconds of CPU (the wall's where nothing else runs), medians of the repeats:

  first     a new planner: every pod and job is sorted, and all of them are planned
  full      the planner has sorted the snapshot before: all jobs are planned again

and of a planner that has planned the snapshot a change ago:

  pod       one surplus pod (of `backlog`: of a minimum) stopped or started running, in the cluster
            as it is once all decisions have been carried out, whoever was asked to leave has left
            and whoever waited runs
  job       one job was measured anew there: its GPU-hours (of `backlog`: one that waits)
  node      one node became ready there, or not ready
  underway  as pod, a moment earlier: who was asked to leave is Terminating, who waits has no node
  undecided as pod, with nobody having carried out a single decision: all is decided again

Garbage is collected before, not during: the operator freezes what it has built too.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.snapshot.snapshot import Job, Memory, Node, Pod, Queue, Snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
SIZES = ((1_000, 10_000, 200), (3_000, 30_000, 600), (10_000, 100_000, 2_000))
CASES = ("calm", "growth", "newcomer", "claims", "full", "sizes", "backlog")
QUEUES = 100
ROUNDS = 20
"""Plans carried out at most until nothing more is to be done."""

Change = Callable[[Snapshot, int], Snapshot]


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    jobs: int
    pods: int
    nodes: int
    first_ms: float
    full_ms: float
    pod_ms: float
    job_ms: float
    node_ms: float
    underway_ms: float
    undecided_ms: float
    megabytes: float
    """Memory that the planner holds besides the snapshot, after the first plan."""
    decisions: int
    blocked: int


def cluster(jobs: int, pods: int, nodes: int, case: str) -> Snapshot:
    """All GPUs of equal nodes in use by equal jobs at the mean size, then the case's twist."""
    size, per_node = pods // jobs, -(-pods // nodes)
    made_jobs: list[Job] = []
    made_pods: list[Pod] = []
    for i in range(jobs):
        job = Job(
            key=f"ns/j{i}",
            queue=f"q{i % QUEUES}",
            created=NOW - timedelta(hours=1, seconds=i),
            min=size if case == "backlog" else max(1, size // 2 - i % 3),
            max=size * 2,
            desired=size,
            pod_requests={GPU: 1000, "cpu": 4000, "memory": 1 << 44},
            cooldown=timedelta(seconds=0),
        )
        made_jobs.append(job)
        for index in range(size):
            made_pods.append(_pod(job, index, f"n{(i * size + index) // per_node}"))
    if case == "growth":
        gone = {job.key for job in made_jobs[::10]}
        made_jobs = [job for job in made_jobs if job.key not in gone]
        made_pods = [pod for pod in made_pods if pod.job not in gone]
    many = jobs // 100
    newcomers = {"claims": many, "full": many, "sizes": many, "newcomer": 1}.get(case)
    for i, job in enumerate(made_jobs[:newcomers] if newcomers else ()):
        large = 2 ** (i % 4) if case == "sizes" else 1
        least = max(1, size // large)
        asks = {name: amount * large for name, amount in job.pod_requests.items()}
        made_jobs.append(
            replace(
                job,
                key=f"ns/new{i}",
                created=NOW,
                min=least,
                max=2 * least,
                desired=least,
                pod_requests=asks,
            )
        )
    if case == "backlog":
        for i in range(jobs):
            # All sizes in each queue, rigid and elastic.
            least = 1 + i // QUEUES % 8
            most = least * (1 + i // QUEUES // 8 % 2)
            job = replace(
                made_jobs[i],
                key=f"ns/waiting{i}",
                created=NOW - timedelta(minutes=1, seconds=i),
                min=least,
                max=most,
                desired=least,
            )
            made_jobs.append(job)
            made_pods += [_pod(job, index, None) for index in range(least)]
    most = {GPU: pods // QUEUES * 1000} if case == "full" else None
    shape = {GPU: per_node * 1000, "cpu": per_node * 4000, "memory": per_node << 44}
    return Snapshot(
        nodes=tuple(Node(f"n{n}", shape | {"pods": 110_000}) for n in range(nodes)),
        pods=tuple(made_pods),
        jobs=tuple(made_jobs),
        queues=tuple(Queue(f"q{i}", capability=most) for i in range(QUEUES)),
    )


def _pod(job: Job, index: int, node: str | None) -> Pod:
    return Pod(
        key=f"{job.key}-worker-{index}",
        uid=f"{job.key}-{index}",
        # One mapping a pod, as parsed from the API server.
        requests=dict(job.pod_requests),
        job=job.key,
        gang=job.key,
        index=index,
        node=node,
        running=node is not None,
        protected=index < job.min,
    )


def carried_out(snapshot: Snapshot, made: Plan, now: datetime) -> Snapshot:
    """Return the snapshot after the plan: leaving pods are Terminating, missing ones exist without
    a node."""
    decisions = {decision.job: decision for decision in made.decisions}
    removed = {key for decision in made.decisions for key in decision.remove}
    leaves_by = now + timedelta(seconds=30)
    pods = [
        replace(pod, terminating=True, leaves_by=leaves_by) if pod.key in removed else pod
        for pod in snapshot.pods
    ]
    alive = Counter(pod.job for pod in pods if not pod.terminating)
    indexes = {job.key: 0 for job in snapshot.jobs}
    indexes |= {pod.job: max(pod.index + 1, indexes[pod.job]) for pod in pods if pod.job}
    jobs: list[Job] = []
    for job in snapshot.jobs:
        found = decisions.get(job.key)
        if found is not None:
            reason = str(found.reason)
            job = replace(job, desired=found.new, last_scale=now, last_reason=reason)
        jobs.append(job)
        first = indexes[job.key]
        missing = job.desired - alive[job.key]
        pods += [_pod(job, index, None) for index in range(first, first + missing)]
    return replace(snapshot, jobs=tuple(jobs), pods=tuple(pods), memory=Memory())


def settled(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot at rest: leaving pods have left, waiting ones run where there is room;
    all pods are equal."""
    pods = [pod for pod in snapshot.pods if not pod.terminating]
    used = Counter(pod.node for pod in pods)
    room = [
        node.name
        for node in snapshot.nodes
        for _ in range(node.allocatable[GPU] // 1000 - used[node.name])
    ]
    return replace(
        snapshot,
        pods=tuple(
            replace(pod, node=room.pop(), running=True) if pod.node is None and room else pod
            for pod in pods
        ),
    )


def _a_pod(snapshot: Snapshot, turn: int) -> Snapshot:
    bound = [i for i, pod in enumerate(snapshot.pods) if pod.node is not None]
    surplus = [i for i in bound if not snapshot.pods[i].protected] or bound
    at = surplus[(len(surplus) // 2 + 97 * turn) % len(surplus)]
    old = snapshot.pods[at]
    new = replace(old, running=not old.running)
    return replace(snapshot, pods=(*snapshot.pods[:at], new, *snapshot.pods[at + 1 :]))


def _a_job(snapshot: Snapshot, turn: int) -> Snapshot:
    at = len(snapshot.jobs) // 2 + turn
    new = replace(snapshot.jobs[at], gpu_hours=snapshot.jobs[at].gpu_hours + 1)
    return replace(snapshot, jobs=(*snapshot.jobs[:at], new, *snapshot.jobs[at + 1 :]))


def _a_node(snapshot: Snapshot, turn: int) -> Snapshot:
    at = len(snapshot.nodes) // 2 + turn // 2
    new = replace(snapshot.nodes[at], ready=not snapshot.nodes[at].ready)
    return replace(snapshot, nodes=(*snapshot.nodes[:at], new, *snapshot.nodes[at + 1 :]))


def measure(jobs: int, pods: int, nodes: int, case: str, repeat: int) -> Row:
    snapshot = cluster(jobs, pods, nodes, case)
    first, full = [], []
    for _ in range(repeat):
        planner = Planner()
        _collect()
        first.append(_milliseconds(planner, snapshot, NOW))
        _collect()
        full.append(_milliseconds(planner, snapshot, NOW))
        gc.unfreeze()
    made = planner.plan(snapshot, NOW)
    underway = carried_out(snapshot, made, NOW)
    calm, now = settled(underway), NOW
    for _ in range(ROUNDS):
        now += timedelta(seconds=61)
        more = planner.plan(calm, now)
        if not more.decisions:
            break
        calm = settled(carried_out(calm, more, now))
    tracemalloc.start()
    planner = Planner()
    planner.plan(snapshot, NOW)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    soon = NOW + timedelta(seconds=1)
    return Row(
        case=case,
        jobs=len(snapshot.jobs),
        pods=len(snapshot.pods),
        nodes=len(snapshot.nodes),
        first_ms=_median(first),
        full_ms=_median(full),
        pod_ms=_changes(calm, now, _a_pod, repeat),
        job_ms=_changes(calm, now, _a_job, repeat),
        node_ms=_changes(calm, now, _a_node, repeat),
        underway_ms=_changes(underway, soon, _a_pod, repeat),
        undecided_ms=_changes(snapshot, NOW, _a_pod, repeat),
        megabytes=round(held / 1e6, 1),
        decisions=len(made.decisions),
        blocked=len(made.blocked),
    )


def _changes(snapshot: Snapshot, now: datetime, change: Change, repeat: int) -> float:
    """One change after the other, each planned at once."""
    planner, found = Planner(), []
    planner.plan(snapshot, now)
    for turn in range(repeat):
        snapshot = change(snapshot, turn)
        _collect()
        found.append(_milliseconds(planner, snapshot, now))
    gc.unfreeze()
    return _median(found)


def _collect() -> None:
    gc.collect()
    gc.freeze()


def _median(found: list[float]) -> float:
    return round(statistics.median(found), 1)


def _milliseconds(planner: Planner, snapshot: Snapshot, now: datetime) -> float:
    start = time.process_time()
    planner.plan(snapshot, now)
    return (time.process_time() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, help="with --pods and --nodes: one size of your own")
    parser.add_argument("--pods", type=int)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--case", choices=CASES, action="append", help="once or more; default all")
    parser.add_argument("--repeat", type=int, default=5, help="plans timed for each figure")
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
        for case in given.case or CASES
    ]
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(
        f"{'case':10}{'jobs':>7}{'pods':>8}{'nodes':>7}{'first':>9}{'full':>8}"
        f"{'pod':>8}{'job':>8}{'node':>8}{'underway':>10}{'undecided':>11}"
        f"{'MB':>8}{'decisions':>11}{'blocked':>9}"
    )
    for row in rows:
        print(
            f"{row.case:10}{row.jobs:>7}{row.pods:>8}{row.nodes:>7}{row.first_ms:>9.1f}"
            f"{row.full_ms:>8.1f}{row.pod_ms:>8.1f}{row.job_ms:>8.1f}{row.node_ms:>8.1f}"
            f"{row.underway_ms:>10.1f}{row.undecided_ms:>11.1f}"
            f"{row.megabytes:>8.1f}{row.decisions:>11}{row.blocked:>9}"
        )


if __name__ == "__main__":
    main()
