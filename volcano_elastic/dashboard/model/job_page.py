"""One job: its size over time and why, rounds and pauses, its measured speeds beside the modelled
ones, and the failures of all its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from volcano_elastic.cluster_state.reason import WORDS, NoChange
from volcano_elastic.cluster_state.speed import Curve
from volcano_elastic.dashboard.model.change import Change, shown
from volcano_elastic.dashboard.model.job_row import JobRow
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.pytorchjob import goodput

_MOST_SIZES = 64
_MOST_FAILURES = 50
_MOST_EVENTS = 50
_MOST_HANGS = 5
_MOST_STACKS = 16
_LONGEST = 4000
"""Characters of a stack."""


def job_page(
    page: Page,
    key: str,
    obj: Mapping[str, Any] | None,
    description: Mapping[str, Any] | None,
    changes: Sequence[Change],
    events: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return what is shown of a job; None where nothing is known of it.

    Args:
        obj: the PyTorchJob; None once it is deleted.
        description: as `volcano-elastic describe --json` has it, of a job that is there.
        changes: newest first.
        events: Kubernetes' Events about it.
    """
    row = next((row for row in page.jobs if row.job == key), None)
    if obj is None and row is None and not changes:
        return None
    job = next((job for job in page.snapshot.jobs if job.key == key), None)
    elastic = ((obj or {}).get("status") or {}).get("elastic") or {}
    speeds = _speeds(elastic.get("speeds"))
    most = job.max if job is not None else max(speeds, default=0)
    unit = job.pod_requests.get(page.resource, 0) / 1000 if job is not None else 1.0
    return {
        "job": key,
        "row": None if row is None else row.shown(),
        "deleted": obj is None,
        "stay": _stay(page.plan.unchanged.get(key)),
        "blocked": page.plan.blocked.get(key),
        "giveWay": _give_way(page, row),
        "changes": [shown(change) for change in changes],
        "curve": curve(speeds, most, unit or 1.0),
        "pauseSeconds": elastic.get("pauseSeconds"),
        "gpuHours": elastic.get("gpuHours"),
        "goodput": _goodput(elastic.get("goodput")),
        "description": None if description is None else _bounded(description),
        "events": [_event(event) for event in _newest(events)],
    }


def _stay(stay: NoChange | None) -> dict[str, str] | None:
    if stay is None:
        return None
    return {"whyNotMore": WORDS[stay.why_not_more], "whyNotLess": WORDS[stay.why_not_less]}


def _goodput(known: object) -> dict[str, Any] | None:
    """Return what its processes' time was used for, the most first; None while none is counted."""
    milliseconds = goodput.summed([known])
    share = goodput.share(milliseconds)
    if share is None:
        return None
    granted, wanted = goodput.places([known])
    spent = sorted(milliseconds.items(), key=lambda one: -one[1])
    return {
        "share": share,
        "uses": [
            {"use": use, "words": goodput.USES[use], "milliseconds": value}
            for use, value in spent
            if value
        ],
        "granted": granted / wanted if wanted else None,
    }


def _give_way(page: Page, row: JobRow | None) -> list[dict[str, Any]]:
    """Return the plan's shrinks of others while the job waits."""
    if row is None or row.state != "Waiting":
        return []
    return [
        {"job": d.job, "from": d.old, "to": d.new, "message": d.message}
        for d in page.plan.decisions
        if d.new < d.old and d.job != row.job and row.job.rpartition("/")[2] in d.message
    ]


def curve(speeds: Mapping[int, float], most: int, unit: float) -> list[dict[str, Any]]:
    """Return by size the speed that was measured and the one that the planner reckons with, in
    samples a second; relative to one worker's while nothing is measured.

    Args:
        unit: of the resource that one worker holds.
    """
    if most < 1:
        return []
    model = Curve(speeds, unit)
    every = max(1, math.ceil(most / _MOST_SIZES))
    sizes = sorted({1, most, *range(every, most + 1, every), *(n for n in speeds if n <= most)})
    base = 0.0 if speeds else model.log_speed(1)
    return [
        {
            "size": size,
            "measured": speeds.get(size),
            "modelled": float(f"{math.exp(model.log_speed(size) - base):.4g}"),
        }
        for size in sizes
    ]


def _speeds(raw: object) -> dict[int, float]:
    if not isinstance(raw, Mapping):
        return {}
    return {
        int(size): float(speed)
        for size, speed in raw.items()
        if str(size).isdecimal() and isinstance(speed, int | float) and speed > 0
    }


def _bounded(description: Mapping[str, Any]) -> dict[str, Any]:
    failures = [
        {**one, "stack": str(one.get("stack") or "")[-_LONGEST:]}
        for one in description["failures"][-_MOST_FAILURES:]
    ]
    return {
        **description,
        "failures": failures,
        "hangs": [_hang(one) for one in (description.get("hangs") or ())[-_MOST_HANGS:]],
        "moreFailures": max(0, len(description["failures"]) - _MOST_FAILURES),
    }


def _hang(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hang without what torch recorded of collectives, which `describe` shows."""
    stacks = [
        {"ranks": group["ranks"], "stack": str(group["stack"])[-_LONGEST:]}
        for group in one["stacks"][:_MOST_STACKS]
    ]
    return {**{k: v for k, v in one.items() if k != "flights"}, "stacks": stacks}


def _newest(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(events, key=_seen, reverse=True)[:_MOST_EVENTS]


def _seen(event: Mapping[str, Any]) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event.get("firstTimestamp"))
    return str(next((time for time in times if time), ""))


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time": _seen(event),
        "type": event.get("type"),
        "reason": event.get("reason"),
        "message": str(event.get("message") or "")[:1024],
        "count": event.get("count") or 1,
        "object": (event.get("involvedObject") or {}).get("name"),
    }
