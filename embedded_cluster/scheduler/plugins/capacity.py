"""Queues by what the administrator wrote: capability, deserved, guarantee."""

from __future__ import annotations

from collections.abc import Sequence

from embedded_cluster.scheduler.claims import Claims, real_capability, within
from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.resources import Resources, asked, fits, minus, plus, share
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Job, Queue, Task
from volcano_elastic.scheduler_conf.configuration import PluginOption


def capacity(session: Session, option: PluginOption) -> Functions:
    tree = option.on("enableHierarchy")
    queues = session.queues.values()
    bounds = {queue.name: real_capability(session, queue, tree=tree) for queue in queues}
    deserved = {q.name: _deserved(q, {} if tree else bounds[q.name]) for q in queues}
    parents = {queue.parent for queue in queues}
    claims = Claims(session, bounds, tree=tree)

    def beyond_capability(queue: Queue, task: Task) -> str | None:
        if tree and queue.name in parents:
            return f"queue {queue.name} has queues below it; only those hold pods"
        for name in session.ancestry(queue.name) if tree else [queue.name]:
            known = session.queues.get(name)
            if known and (short := within(session.allocated(known), task, bounds[name])):
                return f"queue {name} may not hold more {', '.join(short)}"
        return None

    def entitled(queue: Queue, task: Task) -> bool:
        held, due = session.allocated(queue), deserved[queue.name]
        after, names = plus(held, task.requests), asked(task.requests)
        in_one = any(after[name] <= due.get(name, 0) for name in names)
        return in_one and not within(held, task, bounds[queue.name])

    def borrowed(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        held: dict[str, Resources] = {}
        victims = []
        for task in candidates:
            queue = session.queue_of(task)
            before, due = held.get(queue.name, session.allocated(queue)), deserved[queue.name]
            after = minus(before, task.requests)
            names = asked(task.requests)
            listed = [name for name in names if due.get(name, 0) > 0]
            useful = set(names) & set(asked(claimant.requests))
            beyond = not listed or any(before.get(n, 0) > due[n] for n in names if n in due)
            if useful and beyond and fits(queue.guarantee, after):
                held[queue.name] = after
                victims.append(task)
        return victims

    def share_of(queue: Queue) -> float:
        held, due = session.allocated(queue), deserved[queue.name]
        # Who deserves nothing comes after all who have less than they deserve.
        return max(
            (share(held.get(n, 0), amount) for n, amount in due.items() if amount), default=1
        )

    def rank(queue: Queue) -> tuple[float, bool]:
        return share_of(queue), not any(deserved[queue.name].values())

    def order(queue: Queue) -> tuple[object, ...]:
        if not tree:
            return (-queue.priority, *rank(queue))
        path = [session.queues[n] for n in session.ancestry(queue.name) if n in session.queues]
        below_root = [(*rank(one), one.created, one.name) for one in reversed(path[:-1])]
        return -queue.priority, queue.name in parents, below_root

    def in_common(queue: Queue, claimants: Queue) -> float:
        return len(set(session.ancestry(queue.name)) & set(session.ancestry(claimants.name)))

    def enqueueable(job: Job) -> str | None:
        if tree and job.queue in parents:
            return f"queue {job.queue} has queues below it; only those hold jobs"
        return claims.admit(job)

    return Functions(
        queue_order=order,
        victim_queue_order=in_common if tree else None,
        job_enqueueable=enqueueable,
        allocatable=beyond_capability,
        preemptive=entitled,
        reclaimable=borrowed,
    )


def _deserved(queue: Queue, bounds: Resources) -> dict[str, float]:
    return {
        name: max(
            min(queue.deserved.get(name, 0), bounds.get(name, queue.deserved.get(name, 0))),
            queue.guarantee.get(name, 0),
        )
        for name in {**queue.deserved, **queue.guarantee}
    }
