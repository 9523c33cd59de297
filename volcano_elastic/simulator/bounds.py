"""Figures that no schedule of a trace can beat.

For job j with release r, work W and speed s(k): least area a = W min k/s(k), least length
l = W / max s, m = a/l. Ignoring minimums, pauses, placement and integrality only loosens them.

  makespan     max( max r + l,  max over t of t + sum (a - m (t-r)+)+ / C ), less the first release;
               exact for linear speed with caps
  utilisation  useful work done by H is at most min over t <= H of
               sum min(a, m (t-r)+) + C (H - t)            (max-flow, min-cut)
  completion   the mean is at least each of: mean l; SRPT on one server C times as fast over a; the
               mean busy time of preemptive smallest-area-first plus mean l/2
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from volcano_elastic.simulator.trace import TraceJob


@dataclass(frozen=True, slots=True)
class Bounds:
    mean_completion: float
    """Seconds."""
    makespan: float
    """Seconds from the first release."""
    useful_utilisation: float
    """Share of the window that starts at the first release."""


def bounds(jobs: Sequence[TraceJob], total: int, window: float) -> Bounds:
    """Bounds for `jobs` on `total` workers; `window` in seconds."""
    zero = min(job.submit for job in jobs)
    released = sorted((job.submit - zero, job.area, job.length) for job in jobs)
    mean_length = sum(length for *_, length in released) / len(released)
    return Bounds(
        mean_completion=max(
            mean_length,
            _one_server(released, total, remaining_first=True)[0],
            _one_server(released, total, remaining_first=False)[1] + mean_length / 2,
        ),
        makespan=max(
            max(release + length for release, _, length in released),
            max(t + left / total for t, left, _ in _undone(released, math.inf)),
        ),
        useful_utilisation=min(
            done + total * (window - t) for t, _, done in _undone(released, window)
        )
        / (total * window),
    )


def _undone(
    released: list[tuple[float, float, float]], window: float
) -> Iterator[tuple[float, float, float]]:
    """(t, area that must be left then, area that may be done by then) where either bends, up to
    the window and at its end. Between these both are linear."""
    bends = [(r, area / length) for r, area, length in released]
    bends += [(r + length, -area / length) for r, area, length in released]
    everything = sum(area for _, area, _ in released)
    done = rate = now = 0.0
    for t, change in sorted(bends):
        if t > window:
            break
        done += rate * (t - now)
        now = t
        yield t, everything - done, done
        rate += change
    if window < math.inf:
        done += rate * (window - now)
        yield window, everything - done, done


def _one_server(
    released: list[tuple[float, float, float]], speed: int, *, remaining_first: bool
) -> tuple[float, float]:
    """(mean completion, mean busy time), both less the release, of one preemptive server that
    serves the smallest remaining or the smallest whole area first."""
    waiting: list[tuple[float, int, float]] = []
    completion = busy = now = 0.0
    i = 0
    while i < len(released) or waiting:
        if not waiting:
            now = max(now, released[i][0])
        while i < len(released) and released[i][0] <= now:
            area = released[i][1]
            heapq.heappush(waiting, (area, i, area))
            i += 1
        key, j, left = heapq.heappop(waiting)
        release, area, _ = released[j]
        until = released[i][0] if i < len(released) else math.inf
        span = min(left / speed, until - now)
        busy += (now + span / 2 - release) * span * speed / area
        now += span
        left -= span * speed
        if left > 1e-9 * area:
            heapq.heappush(waiting, (left if remaining_first else key, j, left))
        else:
            completion += now - release
    return completion / len(released), busy / len(released)
