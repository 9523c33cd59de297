"""Records failed workers: the first failures of each round, within a bound."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from typing import Any

from elastic_trainer.protocol.message import Failed

OUT_OF_MEMORY = "out of memory: the kernel killed it at the container's memory limit"

KEPT = 128
MESSAGE_CHARACTERS = 1000
STACK_CHARACTERS = 4000


def bounded(failed: Failed) -> Failed:
    """With texts of bounded length: the beginning of a message, the end of a stack."""
    return replace(
        failed,
        message=failed.message[:MESSAGE_CHARACTERS],
        stack=failed.stack[-STACK_CHARACTERS:],
        log=failed.log[:MESSAGE_CHARACTERS],
        error=failed.error[:MESSAGE_CHARACTERS],
    )


def with_failure(known: tuple[Failed, ...], failed: Failed) -> tuple[Failed, ...]:
    """In order of time. One that is known already changes nothing; beyond `KEPT`, the last of the
    round that has most goes, so each round keeps those that came first, the causes."""
    identity = (failed.pod_index, failed.pid, failed.round)
    if any((one.pod_index, one.pid, one.round) == identity for one in known):
        return known
    found = sorted((*known, bounded(failed)), key=lambda one: one.time)
    if len(found) > KEPT:
        counts = Counter(one.round for one in found)
        # The oldest round, of those that have as many.
        fullest = min(counts, key=lambda number: (-counts[number], number))
        last = max(i for i, one in enumerate(found) if one.round == fullest)
        del found[last]
    return tuple(found)


def as_json(failed: Failed) -> dict[str, Any]:
    """For /status."""
    return {
        "round": failed.round,
        "worker": failed.pod_index,
        "node": failed.node or None,
        "rank": failed.rank,
        "localRank": failed.local_rank,
        "pid": failed.pid,
        "exitCode": failed.code or None,
        "signal": signal_name(failed.code),
        "message": failed.message,
        "outOfMemory": failed.message == OUT_OF_MEMORY,
        "stack": failed.stack,
        "time": round(failed.time, 6),
        "log": failed.log or None,
        "nodeFault": failed.node_fault or None,
    }


def signal_name(code: int) -> str | None:
    """Return the signal's name for a negative exit code."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
