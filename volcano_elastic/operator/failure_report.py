"""Workers that failed, as their job's coordinator tells it, told on as one Event a round; and nodes
that it leaves out for their failures, as one Event each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

REASON = "WorkersFailed"
EXCLUDED = "NodeExcluded"
_MOST_RANKS = 16
_MOST_MESSAGE = 600
"""Characters; an Event's message has 1,024."""


@dataclass(frozen=True, slots=True)
class Failure:
    round: int
    worker: int
    """Index of the pod."""
    rank: int
    pid: int
    time: datetime
    exit_code: int | None
    """Negative for a signal; None: it gave way to another's failure."""
    message: str
    out_of_memory: bool = False
    """The kernel killed it at its container's limit, as its agent saw."""

    @property
    def identity(self) -> tuple[int, int, int]:
        return (self.round, self.worker, self.pid)


def read(answer: Mapping[str, Any]) -> tuple[Failure, ...]:
    """Return the failures in a coordinator's /status by time; those that make no sense are left
    out."""
    listed = answer.get("failures")
    found = [_read(one) for one in listed] if isinstance(listed, list) else []
    return tuple(sorted((one for one in found if one is not None), key=lambda f: f.time))


def _read(raw: Any) -> Failure | None:
    try:
        code = raw["exitCode"]
        return Failure(
            int(raw["round"]),
            int(raw["worker"]),
            int(raw["rank"]),
            int(raw["pid"]),
            datetime.fromtimestamp(float(raw["time"]), UTC),
            None if code is None else int(code),
            str(raw["message"]),
            raw.get("outOfMemory") is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node whose workers are in no further round."""

    node: str
    workers: tuple[int, ...]
    """Indexes of its pods."""
    reason: str

    @property
    def message(self) -> str:
        """Return the Event's message."""
        pods = ", ".join(map(str, self.workers[:_MOST_RANKS])) or "none now"
        reason = " ".join(self.reason[:_MOST_MESSAGE].split())
        return f"Node {self.node} is left out of training (workers {pods}): {reason}"

    def event_name(self, job: str, job_uid: str) -> str:
        """Return the same for the same node, so that no operator tells it a second time."""
        text = f"{job_uid} excluded {self.node}"
        return f"{job}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def read_exclusions(answer: Mapping[str, Any]) -> tuple[Exclusion, ...]:
    """Return the excluded nodes in a coordinator's /status; what makes no sense is left out."""
    listed = answer.get("excluded")
    found = []
    for raw in listed if isinstance(listed, list) else ():
        try:
            workers = tuple(sorted(int(one) for one in raw["workers"]))
            found.append(Exclusion(str(raw["node"]), workers, str(raw["reason"])))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return tuple(found)


def by_round(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Each round's in order of time."""
    ordered = sorted(failures, key=lambda f: (f.round, f.time))
    return [list(group) for _, group in groupby(ordered, key=lambda f: f.round)]


def message(failures: Sequence[Failure]) -> str:
    """Return the Event's message about one round's failures, by time: the first is the cause, most
    likely."""
    first, *others = failures
    text = " ".join(first.message[:_MOST_MESSAGE].split())
    code = "" if first.exit_code is None else f", exit code {first.exit_code}"
    time = first.time.strftime("%H:%M:%S.%f")[:-3]
    text = f"Round {first.round}: rank {first.rank} failed first at {time} UTC{code}: {text}"
    if others:
        ranks = ", ".join(str(one.rank) for one in others[:_MOST_RANKS])
        more = f" and {len(others) - _MOST_RANKS} more" if len(others) > _MOST_RANKS else ""
        text += f"; then rank{'s' if len(others) > 1 else ''} {ranks}{more}"
    return text


def event_name(pod: str, job_uid: str, first: Failure) -> str:
    """The same for the same failure, so that no operator tells it a second time."""
    text = f"{job_uid} {first.identity}"
    return f"{pod}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
