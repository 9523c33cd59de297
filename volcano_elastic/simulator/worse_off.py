"""Counts the jobs and queues that are worse off under one scheduling than under another."""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.simulator.outcome import Outcome

LATER_START = 60.0
"""Seconds by which a job must start later to count."""
LATER_FINISH = 1.05
"""Times the other completion that a job must take to count."""


@dataclass(frozen=True, slots=True)
class WorseOff:
    jobs: int
    """Jobs compared."""
    start_later: int
    """Jobs that start more than `LATER_START` seconds later."""
    finish_later: int
    """Jobs that take more than `LATER_FINISH` times as long from submission to finish."""
    worst: float
    """The largest ratio of completions."""
    queues: dict[str, float]
    """Ratio of mean completions of the queues where it is above 1, worst first."""


def worse_off(outcome: Outcome, other: Outcome) -> WorseOff:
    """Return the jobs and queues that do worse in the first of two outcomes of one trace."""
    pairs = list(zip(outcome.runs, other.runs, strict=True))
    by_queue: dict[str, list[float]] = {}
    for run, before in pairs:
        sums = by_queue.setdefault(run.job.queue, [0.0, 0.0])
        sums[0] += run.completion
        sums[1] += before.completion
    ratios = {queue: ours / theirs for queue, (ours, theirs) in by_queue.items()}
    return WorseOff(
        jobs=len(pairs),
        start_later=sum(run.start > before.start + LATER_START for run, before in pairs),
        finish_later=sum(run.completion > LATER_FINISH * b.completion for run, b in pairs),
        worst=max(run.completion / before.completion for run, before in pairs),
        queues={
            queue: ratio
            for queue, ratio in sorted(ratios.items(), key=lambda item: -item[1])
            if ratio > 1 + 1e-9
        },
    )
