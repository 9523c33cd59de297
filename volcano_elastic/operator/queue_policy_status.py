"""Words a QueuePolicy's status. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from volcano_elastic.api import moment, status_condition
from volcano_elastic.api.queue_policy import InvalidPolicy, Mode, QueuePolicy
from volcano_elastic.api.status_condition import MESSAGE_LENGTH, make
from volcano_elastic.cluster_state.queue_figures import QueueFigures
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.snapshot.snapshot import Queue

Status = dict[str, Any]
_CHANGES_SHOWN = 20
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest plan, as far as one policy's queue goes."""

    queue: Queue | None
    """None if it does not exist."""
    in_force: QueuePolicy
    """The policy in force for the queue; the defaults where none of its policies can be applied."""
    figures: QueueFigures | None = None
    decisions: Sequence[Decision] = ()
    blocked: Mapping[str, str] | None = None
    """Why jobs and gangs of the queue cannot start, by key. None without a plan."""
    failure: str = ""
    """Why none could be made of late."""


def status(
    obj: Mapping[str, Any], invalid: InvalidPolicy | None, seen: Seen, now: datetime
) -> Status:
    """The whole status after this plan; equal to the old one if there is nothing new to say."""
    old: Mapping[str, Any] = obj.get("status") or {}
    name = obj["metadata"]["name"]
    mine = invalid is None and seen.in_force.name == name
    new: Status = {"resizesTotal": int(old.get("resizesTotal") or 0)}
    if "generation" in obj["metadata"]:
        new["observedGeneration"] = obj["metadata"]["generation"]
    if "lastDecision" in old:
        new["lastDecision"] = old["lastDecision"]
    if mine:
        new |= _figures(old, seen)
        carried_out = sum(not decision.dry_run for decision in seen.decisions)
        new["resizesTotal"] += carried_out
        changes = [_change(decision) for decision in seen.decisions[:_CHANGES_SHOWN]]
        # A dry run decides the same at every plan; that is one decision.
        if changes and (carried_out or changes != (old.get("lastDecision") or {}).get("changes")):
            new["lastDecision"] = {"time": moment.timestamp(now), "changes": changes}
    conditions = [_active(seen, name, invalid)]
    if mine and seen.figures is not None and seen.figures.problem:
        # In force all the same, as far as it can be.
        conditions[0]["reason"] = "ParentInvalid"
        message = f"{conditions[0]['message']}; of the queue: {seen.figures.problem}"
        conditions[0]["message"] = message[:MESSAGE_LENGTH]
    if mine:
        conditions += [_minimum_blocked(old, seen), _stale(seen)]
    new["conditions"] = [_dated(old, obj, condition, now) for condition in conditions]
    return new


def _figures(old: Mapping[str, Any], seen: Seen) -> Status:
    figures = seen.figures
    if figures is None:
        kept = ("free", "guaranteed", "surplus", "borrowed", "owedToMinimums", "jobs")
        return {field: old[field] for field in kept if field in old} if seen.failure else {}
    return figures.shown()


def _change(decision: Decision) -> Status:
    change: Status = {
        "job": decision.job,
        "from": decision.old,
        "to": decision.new,
        "reason": str(decision.reason),
        "message": decision.message,
    }
    if decision.dry_run:
        change["dryRun"] = True
    return change


def _active(seen: Seen, name: str, invalid: InvalidPolicy | None) -> Status:
    if invalid is not None:
        return make("Active", False, "Invalid", f"the policy is not applied: {invalid}")
    policy = seen.in_force
    if policy.name != name:
        message = (
            f"queue {policy.queue} is governed by the older policy {policy.name}; "
            f"delete one of the two"
        )
        return make("Active", False, "Superseded", message)
    if seen.queue is None:
        message = f"queue {policy.queue} does not exist; create it, or name another in spec.queue"
        return make("Active", False, "QueueNotFound", message)
    if not seen.queue.open:
        message = f"queue {policy.queue} is not open: nothing starts or grows in it"
        return make("Active", False, "QueueClosed", message)
    match policy.mode:
        case Mode.OFF:
            return make("Active", False, "Off", "spec.mode is Off: nobody grows or makes way")
        case Mode.DRY_RUN:
            return make("Active", False, "DryRun", "decisions are shown, not carried out")
        case Mode.HOLD:
            message = "sizes change only for minimums that wait"
        case Mode.HOLD_AND_DRAIN:
            message = "jobs go back to their minimums"
        case Mode.ACTIVE:
            message = "sizes follow the policy"
    return make("Active", True, str(policy.mode), message)


def _minimum_blocked(old: Mapping[str, Any], seen: Seen) -> Status:
    if seen.blocked is None:
        found = status_condition.known(old, "MinimumBlocked")
        return dict(found) if found else make("MinimumBlocked", False, "NoPlanYet", "")
    if not seen.blocked:
        return make("MinimumBlocked", False, "NoneBlocked", "every minimum runs or has room")
    listed = sorted(seen.blocked.items())
    message = "; ".join(f"{key}: {why}" for key, why in listed[:_NAMES_SHOWN])
    if len(listed) > _NAMES_SHOWN:
        message += f"; and {len(listed) - _NAMES_SHOWN} more"
    is_open = seen.queue is not None and seen.queue.open
    reason = "NotEnoughResources" if is_open else "QueueClosed"
    return make("MinimumBlocked", True, reason, message)


def _stale(seen: Seen) -> Status:
    if seen.failure:
        return make("Stale", True, "NoPlan", f"no plan is made: {seen.failure}")
    return make("Stale", False, "Planned", "")


def _dated(
    old: Mapping[str, Any], obj: Mapping[str, Any], condition: Status, now: datetime
) -> Status:
    dated = status_condition.dated(old, condition, now)
    if "generation" in obj["metadata"]:
        dated["observedGeneration"] = obj["metadata"]["generation"]
    return dated
