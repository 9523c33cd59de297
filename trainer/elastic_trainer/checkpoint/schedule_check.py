"""Checks that a learning rate schedule counts the steps that were applied. Pure."""

from __future__ import annotations

from collections.abc import Mapping

FEWEST_STEPS = 10
"""Before them, a schedule that counts something else looks like one that miscounts."""
NEAR = 0.05
"""Share of the steps by which a schedule's count may differ and still be taken to count steps."""


def miscounted(counts: Mapping[str, int], *, steps: int, epoch: int) -> str | None:
    """Return a warning about the first schedule that nearly counts the steps, but not quite.

    A schedule that is stepped after the commit loses a step at each restart; one that is stepped
    for steps that a lost peer undid gains one at each. A schedule of epochs, or of every k steps,
    counts something else altogether.

    Args:
        counts: how often each schedule was stepped (`last_epoch`), by name.
        steps: that were applied since the very beginning.
        epoch: the one that training is in.
    """
    if steps < FEWEST_STEPS:
        return None
    for name, count in counts.items():
        by_epoch = count in (epoch - 1, epoch)
        if count != steps and not by_epoch and abs(count - steps) <= max(1, steps * NEAR):
            return (
                f"the schedule {name!r} was stepped {count} times for {steps} steps: step it once "
                "for each, before Checkpointer.step(), or in ElasticLoop's apply. What is saved "
                "goes on from there"
            )
    return None
