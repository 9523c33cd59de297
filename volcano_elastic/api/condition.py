"""Conditions of a PyTorchJob: Created, Running, Restarting, Suspended, Succeeded, Failed.

    Created ─► Running ◄─► Restarting
                  │  └───► Succeeded | Failed   (Running turns False, Restarting goes)
                  └◄─► Suspended

The newest is last in the list: `kubectl get` shows it as the job's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from volcano_elastic.api import moment

ConditionType = Literal["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
Condition = dict[str, Any]

# What a condition of the key's type takes out of the list.
_REMOVES: dict[str, frozenset[str]] = {
    "Running": frozenset({"Restarting"}),
    "Restarting": frozenset({"Running"}),
    "Succeeded": frozenset({"Restarting"}),
    "Failed": frozenset({"Restarting"}),
    "Suspended": frozenset({"Restarting"}),
}
# What turns Running to False instead of taking it out.
_STOPS = frozenset({"Succeeded", "Failed", "Suspended"})


def is_true(conditions: Sequence[Condition], type_: ConditionType) -> bool:
    return any(c["type"] == type_ and c["status"] == "True" for c in conditions)


def finished(conditions: Sequence[Condition]) -> bool:
    return is_true(conditions, "Succeeded") or is_true(conditions, "Failed")


def with_condition(
    conditions: Sequence[Condition],
    type_: ConditionType,
    reason: str,
    message: str,
    now: datetime,
    *,
    status: Literal["True", "False"] = "True",
) -> list[Condition]:
    """The list after this condition came true (or false); the same list if it already was."""
    old = next((c for c in conditions if c["type"] == type_), None)
    if old is not None and old["status"] == status and old.get("reason") == reason:
        return list(conditions)
    stamp = moment.timestamp(now)
    removes = _REMOVES.get(type_, frozenset()) if status == "True" else frozenset()
    kept = [c for c in conditions if c["type"] != type_ and c["type"] not in removes]
    if type_ in _STOPS and status == "True":
        kept = [_stopped(c, reason, message, stamp) if c["type"] == "Running" else c for c in kept]
    same = old is not None and old["status"] == status
    kept.append(
        {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastUpdateTime": stamp,
            "lastTransitionTime": (old or {}).get("lastTransitionTime", stamp) if same else stamp,
        }
    )
    return kept


def _stopped(running: Condition, reason: str, message: str, stamp: str) -> Condition:
    if running["status"] == "False":
        return running
    return running | {
        "status": "False",
        "reason": reason,
        "message": message,
        "lastUpdateTime": stamp,
        "lastTransitionTime": stamp,
    }
