"""Decides whether a job may be touched: not another operator's, nor an impossible one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from volcano_elastic.api import condition, moment
from volcano_elastic.api.problem import Problem, listed
from volcano_elastic.api.pytorchjob import CONTROLLER, PyTorchJob, outline, time_to_live
from volcano_elastic.api.pytorchjob_validation import manager
from volcano_elastic.pytorchjob import coexistence, status
from volcano_elastic.pytorchjob.action import Action, DeleteJob, EmitEvent, Requeue
from volcano_elastic.pytorchjob.desired import time_left


def guard(job: PyTorchJob, pods: Sequence[Mapping[str, Any]], now: datetime) -> list[Action] | None:
    """Return all that may be done for a job that must not be touched; None for one that may be.

    deleted, or managed by others ─► nothing; the garbage collector takes what it owns
    another operator at work      ─► it is said
    """
    if job.deleting or not job.ours:
        return []
    yielded = coexistence.yield_to(job, pods, now)
    return None if yielded is None else _say_yielded(job, yielded, now)


def refuse(
    obj: Mapping[str, Any],
    problems: Sequence[Problem],
    pods: Sequence[Mapping[str, Any]],
    now: datetime,
) -> list[Action]:
    """Return the actions for a job that cannot be carried out.

    It fails, with what would be right. One that was accepted before goes on as it is until it is
    right again; its edit is refused.
    """
    job = outline(obj)
    if manager(obj) != CONTROLLER:
        return []
    forbidden = guard(job, pods, now)
    if forbidden is not None:
        return forbidden
    if job.finished:
        rest = time_left(time_to_live(obj), job.completed or now, now)
        if rest is None:
            return []
        return [Requeue(rest) if rest else DeleteJob()]
    message = listed(problems)
    if condition.is_true(job.conditions, "Created"):
        new, events = status.refused_edit(job, message)
        return [*status.change(job.status, new, now), *events]
    # As in Kubeflow: Failed is for good.
    message += "; a failed job stays failed: correct it and create it anew"
    new = dict(job.status) | {
        "conditions": condition.with_condition(
            job.conditions, "Failed", "PyTorchJobInvalid", message, now
        ),
        "completionTime": moment.timestamp(now),
    }
    return status.change(job.status, new, now)


def _say_yielded(job: PyTorchJob, yielded: coexistence.Yielded, now: datetime) -> list[Action]:
    actions: list[Action] = [
        EmitEvent("ForeignController", yielded.message, True, deduplicated=True)
    ]
    if yielded.until is not None:
        return [*actions, Requeue(yielded.until - now)]
    elastic = job.status.get("elastic") or {}
    new = dict(job.status) | {"elastic": elastic | {"message": yielded.message}}
    return [*actions, *status.change(job.status, new, now)]
