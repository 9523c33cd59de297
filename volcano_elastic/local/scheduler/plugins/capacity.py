"""Queues by what the administrator wrote: capability, deserved, guarantee."""

from __future__ import annotations

from collections.abc import Sequence

from volcano_elastic.local.scheduler.claims import no_room, real_capability
from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.resources import fits, minus, plus
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Job, Queue, Task


def capacity(session: Session, option: PluginOption) -> Functions:
    capability = {
        queue.name: real_capability(session, queue, hierarchy=option.hierarchy)
        for queue in session.queues.values()
    }
    deserved = {
        queue.name: _deserved(queue, capability[queue.name]) for queue in session.queues.values()
    }

    def within_capability(queue: Queue, task: Task) -> bool:
        names = session.ancestry(queue.name) if option.hierarchy else [queue.name]
        held = [session.queues[name] for name in names if name in session.queues]
        return all(
            fits(_of(plus(session.allocated(q), task.requests), task), capability[q.name])
            for q in held
        )

    def entitled(queue: Queue, task: Task) -> bool:
        after = plus(session.allocated(queue), task.requests)
        due = deserved[queue.name]
        in_one = any(
            after[n] <= due[n] for n, amount in task.requests.items() if amount and n in due
        )
        return in_one and within_capability(queue, task)

    def borrowed(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        held: dict[str, dict[str, int]] = {}
        victims = []
        for task in candidates:
            queue = session.queues[session.jobs[task.job or ""].queue or ""]
            before = held.get(queue.name, dict(session.allocated(queue)))
            after, due = minus(before, task.requests), deserved[queue.name]
            listed = [name for name, amount in task.requests.items() if amount and name in due]
            kept = all(after.get(n, 0) >= least for n, least in queue.guarantee.items())
            beyond = not listed or any(before.get(name, 0) > due[name] for name in due)
            if kept and beyond:
                held[queue.name] = after
                victims.append(task)
        return victims

    def order(queue: Queue) -> tuple[float, ...]:
        held, due = session.allocated(queue), deserved[queue.name]
        shares = [held.get(n, 0) / due[n] if due[n] else float(held.get(n, 0) > 0) for n in due]
        return (-queue.priority, max(shares, default=float(any(held.values()))))

    def enqueueable(job: Job) -> str | None:
        return no_room(session, job, capability.get(job.queue or "", {}))

    return Functions(
        queue_order=order,
        job_enqueueable=enqueueable,
        allocatable=within_capability,
        preemptive=entitled,
        reclaimable=borrowed,
    )


def _deserved(queue: Queue, capability: dict[str, int]) -> dict[str, int]:
    return {
        name: max(
            min(queue.deserved.get(name, 0), capability.get(name, 0)), queue.guarantee.get(name, 0)
        )
        for name in {**queue.deserved, **queue.guarantee}
    }


def _of(amounts: dict[str, int], task: Task) -> dict[str, int]:
    """Only what the task asks for: being over in another resource doesn't concern it."""
    return {name: amounts[name] for name, amount in task.requests.items() if amount > 0}
