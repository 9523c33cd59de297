"""How soon an agent in doubt asks again whether the coordinator's host is there; pure."""

from __future__ import annotations

from elastic_trainer.succession.agent_status import Found

FIRST_SECONDS = 0.005
LONGEST_SECONDS = 0.05


def next_wait(found: Found | None, before: float) -> float:
    """Return the seconds until the host is asked again.

    An answer that something is under way, which takes a few milliseconds, is followed by further
    questions, each after twice as long: the host's process is ending, and will refuse connections
    next; or it was elected just now, and will serve next.

    Args:
        found: what came of the last question; None: nobody was asked.
        before: what this returned before that question.
    """
    told = found.status if found is not None else None
    begins = told is not None and told.hosts and not told.heard
    ends = found is not None and found.closed
    if not (begins or ends):
        return LONGEST_SECONDS
    return FIRST_SECONDS if before >= LONGEST_SECONDS else min(2 * before, LONGEST_SECONDS)
