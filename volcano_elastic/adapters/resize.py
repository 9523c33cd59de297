"""Makes the merge patch that gives a job another size."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from typing import Any

from volcano_elastic.adapters import annotation
from volcano_elastic.adapters.adapter import PART
from volcano_elastic.adapters.other_job import OtherJob
from volcano_elastic.api import moment

_MOST_MESSAGE = 1024


def patch(job: OtherJob, size: int, *, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """Return the merge patch of the object, good for the version that was read and no other; what
    is said of it goes into annotations."""
    meta = job.obj["metadata"]
    seen = {field: meta[field] for field in ("uid", "resourceVersion") if field in meta}
    notes = {
        annotation.LAST_SCALE_TIME: moment.micro_timestamp(now),
        annotation.LAST_SCALE_REASON: reason,
        annotation.LAST_SCALE_MESSAGE: message[:_MOST_MESSAGE],
    }
    adapter, changed = job.adapter, deepcopy(job.obj)
    paths = [adapter.size, *([adapter.completions] if job.follows else [])]
    out: dict[str, Any] = {"metadata": {**seen, "annotations": notes}}
    for path in paths:
        found: Any = changed
        for field in path[:-1]:
            if field == PART:
                found = next(item for item in found if item.get("name") == job.part)
            else:
                found = found.setdefault(field, {})
        found[path[-1]] = size
        # A merge patch replaces lists, so it holds the whole of one.
        until = path.index(PART) if PART in path else len(path)
        target, source = out, changed
        for field in path[: until - 1]:
            target, source = target.setdefault(field, {}), source[field]
        target[path[until - 1]] = source[path[until - 1]]
    return out
