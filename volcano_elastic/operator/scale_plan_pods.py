"""Has pods that a ScalePlan names leave, or made anew. Pure.

the planner shrinks the job          ─► of the pods that leave, the named ones are the first
it leaves the size, all pods there   ─► named ones leave and the size with them, not below the least
likewise, none to leave              ─► named ones leave, and others are made for them

Worker 0 leaves last, so no plan removes it. A queue that isn't Active keeps its pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.api.role import elastic
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.pytorchjob.observed import Resize
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.snapshot.snapshot import Job, Pod

REASON = "ScalePlan"


def resize(
    plan: ScalePlan,
    job: Job,
    pods: Iterable[Pod],
    decision: Decision | None,
    policy: QueuePolicy,
) -> Resize | None:
    """Return what to do instead of the planner's decision; None: that, if it made one.

    Args:
        plan: the one that counts for the job.
        pods: the job's.
    """
    if policy.mode is not Mode.ACTIVE:
        return None
    there = {_name(pod): pod for pod in pods if pod.role == elastic().name and not pod.terminating}
    remove = [n for n in _due(plan, plan.remove, there) if there[n].index > 0]
    if decision is not None:
        if decision.new >= decision.old or not remove:
            return None
        others = [key.rpartition("/")[2] for key in decision.remove]
        chosen = [*remove, *(name for name in others if name not in remove)][: len(others)]
        return Resize(
            decision.old,
            decision.new,
            str(decision.reason),
            decision.message,
            frozenset(chosen),
            frozenset(key.rpartition("/")[2] for key in decision.move),
        )
    if len(there) + job.succeeded != job.desired:
        return None
    unit = max(1, job.node_unit)
    fewer = min(len(remove), max(0, job.desired - job.min)) // unit * unit
    if fewer:
        message = f"ScalePlan {plan.name} removes {', '.join(remove[:fewer])}"
        new = job.desired - fewer
        return Resize(job.desired, new, REASON, message, frozenset(remove[:fewer]))
    move = _due(plan, plan.migrate, there)
    if not move:
        return None
    message = f"ScalePlan {plan.name} has {', '.join(move)} made anew"
    return Resize(job.desired, job.desired, REASON, message, move=frozenset(move))


def _due(plan: ScalePlan, names: Iterable[str], there: Mapping[str, Pod]) -> list[str]:
    """Return which of the pods that are meant are still there."""
    return [name for name in names if name in there and plan.pods.get(name) == there[name].uid]


def _name(pod: Pod) -> str:
    return pod.key.rpartition("/")[2]
