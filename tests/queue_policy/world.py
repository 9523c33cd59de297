"""A world for planner tests: short ways to write a snapshot, and what carrying out a plan does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.cluster_state.job_pods import existing, goes_on_without_first
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.snapshot.snapshot import Job, Node, Pod, Queue, Quota, Snapshot

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
OPEN = (Queue("default"),)


def gpus(count: int, cpus: int = 0) -> dict[str, int]:
    return {GPU: 1000 * count} | ({"cpu": 1000 * cpus} if cpus else {})


def node(name: str, count: int = 2, **more: object) -> Node:
    return replace(Node(name, gpus(count, cpus=64) | {"pods": 110_000}), **more)  # type: ignore[arg-type]


def job(name: str, least: int, most: int, desired: int | None = None, **more: object) -> Job:
    made = Job(
        key=f"ns/{name}",
        queue="default",
        created=NOW - timedelta(minutes=10),
        min=least,
        max=most,
        desired=least if desired is None else desired,
        pod_requests=gpus(1),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def pod(owner: Job, index: int, on: str | None, *, age: float = 300.0, **more: object) -> Pod:
    made = Pod(
        key=f"{owner.key}-worker-{index}",
        uid=f"{owner.key}-{index}",
        requests=owner.pod_requests,
        job=owner.key,
        gang=owner.key,
        index=index,
        node=on,
        running=on is not None,
        protected=index < owner.min,
        created=NOW - timedelta(seconds=age),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def pods(owner: Job, *nodes: str | None) -> tuple[Pod, ...]:
    """Pod i of `owner` on the i-th node named; None is a pod that waits."""
    return tuple(pod(owner, i, on) for i, on in enumerate(nodes))


def world(
    nodes: Iterable[Node],
    jobs: Iterable[Job],
    *groups: Iterable[Pod],
    queues: tuple[Queue, ...] = OPEN,
) -> Snapshot:
    return Snapshot(
        nodes=tuple(nodes),
        pods=tuple(p for group in groups for p in group),
        jobs=tuple(jobs),
        queues=queues,
    )


TWO_BY_TWO = (node("n1"), node("n2"))
EIGHT = (node("n1", 8),)
WEB = "ReplicaSet shop/web-5d9"
LINEAR = {size: float(size) for size in range(1, 65)}


def ruled(snapshot: Snapshot, queue: str = "default", **fields: object) -> Snapshot:
    policy = replace(QueuePolicy(queue, name="rules"), **fields)  # type: ignore[arg-type]
    return replace(snapshot, policies=(*snapshot.policies, policy))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def alone(owner: Job, size: int, nodes: Iterable[object] = EIGHT, **fields: object) -> Snapshot:
    """`owner` with `size` running workers on the first of the nodes."""
    return ruled(world(nodes, [owner], pods(owner, *["n1"] * size)), **fields)  # type: ignore[arg-type]


def new_size(made: Plan, name: str) -> int | None:
    decision = by_job(made).get(name)
    return None if decision is None else decision.new


def by_job(made: Plan) -> Mapping[str, Decision]:
    """Decisions by the job's bare name."""
    return {decision.job.removeprefix("ns/"): decision for decision in made.decisions}


def applied(snapshot: Snapshot, made: Plan, now: datetime) -> Snapshot:
    """Return what the API server holds once the plan is carried out: removed pods are Terminating,
    missing pods of admitted jobs exist and have no node; and the plan's memory: plan from this each
    time, or nothing is remembered."""
    done = [decision for decision in made.decisions if not decision.dry_run]
    decisions = {decision.job: decision for decision in done}
    removed = {key for decision in done for key in (*decision.remove, *decision.move)}
    promoted = {key for decision in done for key in decision.protect}
    kept = [
        replace(p, terminating=True, leaves_by=now + timedelta(seconds=30))
        if p.key in removed
        else replace(p, protected=True)
        if p.key in promoted
        else p
        for p in snapshot.pods
        if p.key not in removed or p.node is not None
    ]
    jobs: list[Job] = []
    for old in snapshot.jobs:
        new = old
        if old.key in decisions:
            decision = decisions[old.key]
            new = replace(
                old, desired=decision.new, last_scale=now, last_reason=str(decision.reason)
            )
        jobs.append(new)
        alive = [p for p in kept if p.job == new.key and not p.terminating]
        for p in _beyond(new, alive):
            kept.remove(p)
            alive.remove(p)
            if p.node is not None:
                kept.append(replace(p, terminating=True, leaves_by=now + timedelta(seconds=30)))
        if new.key not in made.admitted:
            continue
        names = {p.key for p in kept}
        missing = new.desired - len(alive) - new.succeeded
        index = 0
        # A terminating pod still has its name: the operator takes the next one, but waits for
        # worker 0's, without whom no other runs.
        if f"{new.key}-worker-0" in names - {p.key for p in alive}:
            missing -= 1
        for _ in range(missing):
            while f"{new.key}-worker-{index}" in names:
                index += 1
            made_pod = pod(new, index, None, created=now)
            kept.append(made_pod)
            names.add(made_pod.key)
    return replace(snapshot, pods=tuple(kept), jobs=tuple(jobs), memory=made.memory)


def _beyond(owner: Job, alive: list[Pod]) -> list[Pod]:
    """Whom the size has no place for, and the job's reconcile deletes: what holds least first, of
    equals the last. Worker 0 stays unless the others go on without it."""
    bound = [p for p in alive if p.node is not None]
    others = [p for p in alive if p.index != 0 or goes_on_without_first(owner, bound)]
    others.sort(key=lambda p: (p.node is not None, p.running, -p.index))
    return others[: max(0, existing(owner, alive) - owner.desired)]


def settled(snapshot: Snapshot) -> Snapshot:
    """Leavers are gone; a scheduler has bound what fits: minimums first, whole gangs or none."""
    alive = [p for p in snapshot.pods if not p.terminating]
    free = {n.name: dict(n.allocatable) for n in snapshot.nodes if n.ready}
    for p in alive:
        if p.node in free:
            _take(free[p.node], p)
    jobs = {j.key: j for j in snapshot.jobs}
    at = {p.key: i for i, p in enumerate(alive)}

    def bind(waiting: list[Pod], whole: bool) -> None:
        found: list[tuple[Pod, str]] = []
        for p in waiting:
            fits = [
                n
                for n in snapshot.nodes
                if n.name in free
                and n.takes_pods
                and n.name not in jobs[p.job or ""].excluded
                and all(n.labels.get(k) == v for k, v in jobs[p.job or ""].node_selector.items())
                and all(free[n.name].get(r, 0) >= a for r, a in p.requests.items())
            ]
            if fits:
                best = min(fits, key=lambda n: (free[n.name].get(GPU, 0), n.name))
                _take(free[best.name], p)
                found.append((p, best.name))
        if whole and len(found) < len(waiting):
            for p, name in found:
                _take(free[name], p, -1)
            return
        for p, name in found:
            alive[at[p.key]] = replace(p, node=name, running=True)

    order = sorted(jobs.values(), key=lambda j: (-j.priority, j.created, j.key))
    for extra in (False, True):
        for j in order:
            mine = sorted((p for p in alive if p.job == j.key), key=lambda p: p.index)
            short = j.min - sum(p.node is not None for p in mine)
            waiting = [p for p in mine if p.node is None]
            if not extra and short > 0:
                bind(waiting[:short], whole=True)
            elif extra and short <= 0:
                bind(waiting, whole=False)
    return replace(snapshot, pods=tuple(alive))


def _take(free: dict[str, int], p: Pod, sign: int = 1) -> None:
    for name, amount in p.requests.items():
        free[name] = free.get(name, 0) - sign * amount


def web(number: int, size: int = 1, **more: object) -> Pod:
    made = Pod(
        key=f"shop/web-5d9-{number}",
        uid=f"web-{number}",
        requests=gpus(size),
        scheduler="default-scheduler",
        owner=WEB,
        created=NOW - seconds(1),
        unschedulable_since=NOW - seconds(1),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def quota(name: str, hard: dict[str, int], used: dict[str, int], **more: object) -> Quota:
    return replace(Quota(name, hard, used), **more)  # type: ignore[arg-type]
