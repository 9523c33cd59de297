"""A condition as statuses of QueuePolicies and ScalePlans have it: dated by when it last turned.

PyTorchJobs' are Kubeflow's, which take one another out of the list: condition.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from volcano_elastic.api import moment

Condition = dict[str, Any]
MESSAGE_LENGTH = 1024
"""Characters."""


def make(type_: str, true: bool, reason: str, message: str) -> Condition:
    """Return a condition without a date; a message that is too long is cut."""
    return {
        "type": type_,
        "status": "True" if true else "False",
        "reason": reason,
        "message": message[:MESSAGE_LENGTH],
    }


def known(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return the condition of a type that a status has; None if it has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == type_), None)


def dated(status: Mapping[str, Any], condition: Condition, now: datetime) -> Condition:
    """Return a condition with the time since when it has been so in this status."""
    before = known(status, condition["type"])
    same = before is not None and before.get("status") == condition["status"]
    since = (before or {}).get("lastTransitionTime") if same else None
    return condition | {"lastTransitionTime": since or moment.timestamp(now)}
