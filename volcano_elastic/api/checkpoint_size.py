"""The size of a job's checkpoint, by the pods whose state it is: as its status tells it, else as
its annotation says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volcano_elastic.api import quantity
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob_shape import ANNOTATION_PREFIX
from volcano_elastic.api.role import known

FIELD = "checkpointSize"
"""Field of status.elastic: quantities of bytes by role."""
CHECKPOINT_ANNOTATION = ANNOTATION_PREFIX + "checkpoint-size"
"""A quantity of bytes."""
SERVING = next(role.name for role in known() if role.serves)


def reported(status: Mapping[str, Any]) -> dict[str, Bytes]:
    """Return what a job's status tells, by role."""
    found = ((status.get("elastic") or {}).get(FIELD) or {}).items()
    return {role: size for role, text in found if (size := _parsed(text))}


def of_servers(annotations: Mapping[str, Any], status: Mapping[str, Any]) -> Bytes | None:
    """Return what parameter servers are going to hold that begin with the job's checkpoint; None:
    there is none, or nobody tells."""
    return reported(status).get(SERVING) or _parsed(annotations.get(CHECKPOINT_ANNOTATION))


def _parsed(text: Any) -> Bytes | None:
    if text is None:
        return None
    try:
        return Bytes.parse(text) or None
    except quantity.QuantityError:
        return None
