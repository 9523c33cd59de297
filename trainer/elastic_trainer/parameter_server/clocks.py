"""Clocks: how many steps each worker has pushed, and who is too far ahead. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

QUIET_SECONDS = 60.0
"""A worker that was silent for so long is waited for no longer."""
FORGET_SECONDS = 3600.0
"""A worker that was silent for so long is forgotten; its retries end long before."""


@dataclass
class Clocks:
    steps: dict[str, int] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)

    def open(self, worker: str, clock: int, now: float) -> int:
        """Know a worker from now on; return its clock: a newcomer begins with the slowest. It is
        waited for once it pulls for a step."""
        given = max(clock, self.slowest(worker, now, default=clock))
        self.steps[worker] = max(given, self.steps.get(worker, 0))
        self.heard.setdefault(worker, now - QUIET_SECONDS - 1)
        return self.steps[worker]

    def tell(self, worker: str, clock: int, now: float) -> None:
        self.steps[worker] = max(clock, self.steps.get(worker, 0))
        self.heard[worker] = now

    def close(self, worker: str, now: float) -> None:
        """Wait for this worker no longer."""
        if worker in self.heard:
            self.heard[worker] = now - QUIET_SECONDS - 1

    def slowest(self, worker: str, now: float, default: int) -> int:
        """Return the fewest steps of other workers that are waited for."""
        return min(
            (
                self.steps[one]
                for one, heard in self.heard.items()
                if one != worker and now - heard <= QUIET_SECONDS
            ),
            default=default,
        )

    def too_far(self, worker: str, clock: int, staleness: int, now: float) -> bool:
        """Tell whether a worker is more than `staleness` steps ahead of the slowest."""
        return staleness >= 0 and clock - self.slowest(worker, now, default=clock) > staleness

    def forgotten(self, now: float) -> list[str]:
        """Forget workers that were silent for long; return them."""
        gone = [one for one, heard in self.heard.items() if now - heard > FORGET_SECONDS]
        for one in gone:
            del self.heard[one], self.steps[one]
        return gone
