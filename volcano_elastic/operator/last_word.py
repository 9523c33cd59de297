"""Reads the last word that a job's coordinator left in its container's termination message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from volcano_elastic.api import condition, moment
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.operator import coordinator_client, round_history
from volcano_elastic.operator.coordinator_client import Report

Object = Mapping[str, Any]
_BEGINS = '{"job":'


def is_one(message: str) -> bool:
    """Tell whether a termination message is a coordinator's rather than an error's words."""
    return message.startswith(_BEGINS)


def left(pod: Object | None) -> bool:
    """Tell whether a coordinator left its last word in a pod that has ended."""
    return pod is not None and any(is_one(text) for text in _messages(pod))


def read(obj: Object, pods: Iterable[Object]) -> Report | None:
    """Return what a job's coordinator told last; None: it left nothing, or its pod is gone.

    Args:
        pods: of the job.
    """
    messages = [text for pod in pods for text in _messages(pod) if is_one(text)]
    try:
        job = parse(obj) if messages else None
    except InvalidJob:
        return None
    if job is None:
        return None
    reports = [coordinator_client.read(text.encode(), job) for text in messages]
    told = [one for one in reports if one.rounds or one.progress]
    # There may have been no room for rounds.
    return max(told, key=lambda one: [each.made for each in one.rounds[-1:]], default=None)


def to_write(obj: Object, word: Report | None, now: datetime) -> dict[str, Any]:
    """Return the fields of an ended job's `status.elastic` that its last word changes."""
    status = obj.get("status") or {}
    elastic, found = status.get("elastic") or {}, dict[str, Any]()
    known = elastic.get(round_history.FIELD) or ()
    rounds = None if word is None else round_history.to_write(known, word.rounds, last=True)
    if rounds is not None:
        found[round_history.FIELD] = rounds
    progress, told = elastic.get("progress") or {}, word.progress if word else None
    if told is not None and told.percentage is not None:
        if told.percentage != progress.get("progressPercentage") or _remains(progress):
            found["progress"] = {
                **progress,
                "progressPercentage": told.percentage,
                "estimatedRemainingSeconds": 0,
                "lastUpdatedTime": moment.timestamp(now),
            }
        return found
    succeeded = condition.is_true(status.get("conditions") or (), "Succeeded")
    if succeeded and progress.get("progressPercentage", 100) != 100:
        # What was written last is of some seconds before, and how far it came then nobody told.
        found["progress"] = {"progressPercentage": None, "estimatedRemainingSeconds": None}
    return found


def _remains(progress: Mapping[str, Any]) -> bool:
    return bool(progress.get("estimatedRemainingSeconds"))


def _messages(pod: Object) -> Iterator[str]:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if message := ended.get("message"):
            yield str(message)
