"""Why an agent gives torchrun no round."""

from __future__ import annotations


class PermanentFailureError(RuntimeError):
    """Another try would not help."""


class RefusedError(RuntimeError):
    """The coordinator won't have this agent; says what it expected."""


class DismissedError(RuntimeError):
    """There is no next round for this agent."""
