"""Simulates a year of failures, and what each of them costs: `python -m benchmarks.year [--json]`.

One job has all GPUs of a cluster. Failures come at random, so often as was published for its size.
Each stops every GPU until the survivors' next step; a failure meanwhile makes them begin anew. What
is lost comes back, which is a change of the world too: it comes in with the next failure, or once
it has waited as long as our coordinator has newcomers wait. Two figures come out: *effective*, the
share of the time of the GPUs that were there in which steps were made that count; *of all*, the
same with those that were away.

Assumed, as no run of ours has had so many GPUs: rendezvous grows with the agents as it did up to a
thousand, and communicators start up as was published, stock NCCL's 265 s at 96,000 ranks (likewise
linear) or NCCLX' (11 times faster). What others' recovery takes is what they have published.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from elastic_trainer.coordinator.joining import JOIN_WAIT_SECONDS, patience

YEAR = 365 * 86400.0
GPUS_A_NODE = 8

PUBLISHED_MTTF = ((1024, 7.9 * 3600), (16_384, 1.8 * 3600), (131_072, 14 * 60.0))
"""GPUs of a job, and seconds between its failures: Meta's, as collected by Clockwork."""
HARDWARE = 0.78
"""Share of failures that take a node away, in Llama 3's 54 days on 16,384 GPUs."""
SILENT, HUNG = 0.1, 0.05
"""Shares of failures in which a node falls silent, and in which a collective hangs: assumed."""

KILLED, SILENCE, JOIN = 0.07, 1.02, 0.07
"""Seconds to the next step after a kill, a silence and in a join (`python -m benchmarks.trainer`),
of three nodes on gloo, communicators included."""
HANG = 60.0
"""Seconds without a step after which a round is taken for hung (docs/watched-ranks.md)."""
RENDEZVOUS = 0.35 / 1000
"""Seconds by agent, from the last one's arrival to everybody's rank (benchmarks.rendezvous)."""
NCCL = 265.0 / 96_000
"""Seconds by rank for stock NCCL's start-up, in NCCLX' paper."""
NCCLX = NCCL / 11


@dataclass(frozen=True)
class Recovery:
    """The cost of a failure, in seconds for all GPUs that are left."""

    name: str
    stall: Callable[[random.Random, int], float]
    """By the GPUs that are left; what a step in progress loses apart."""
    joins: Callable[[int], float]
    """For a node that comes back; 0: it comes back with the restart of all."""
    join_wait: float = 0.0
    """The longest that it waits for another change, in seconds."""


@dataclass(frozen=True)
class Outcome:
    failures: int
    effective: float
    of_all: float


def mttf(gpus: int) -> float:
    """Return seconds between failures of a job of this size: published ones, and the power law
    between the two next to it."""
    points = PUBLISHED_MTTF
    right = next((i for i in range(1, len(points) - 1) if gpus <= points[i][0]), len(points) - 1)
    (g0, m0), (g1, m1) = points[right - 1], points[right]
    slope = math.log(m1 / m0) / math.log(g1 / g0)
    return m0 * math.exp(slope * math.log(gpus / g0))


def in_process(start_up: float, name: str) -> Recovery:
    """Return our recovery.

    Args:
        start_up: seconds by rank for communicators.
    """

    def again(gpus: int) -> float:
        return RENDEZVOUS * gpus / GPUS_A_NODE + start_up * gpus

    def stall(draw: random.Random, gpus: int) -> float:
        kind = draw.random()
        found = HANG if kind < HUNG else SILENCE if kind < HUNG + SILENT else KILLED
        return found + again(gpus)

    return Recovery(name, stall, lambda gpus: JOIN + again(gpus), JOIN_WAIT_SECONDS)


def restarting(seconds: float, name: str) -> Recovery:
    """Return a recovery that takes as long for any failure, as published ones are told."""
    return Recovery(name, lambda _draw, _gpus: seconds, lambda _gpus: 0.0)


def simulate(
    gpus: int,
    recovery: Recovery,
    *,
    draw: random.Random,
    away: float,
    step: float,
    between: float | None = None,
    seconds: float = YEAR,
) -> Outcome:
    """Return what a year was used for.

    Args:
        away: seconds until the node that was lost, or another, is back at work.
        step: seconds; a failure costs all that was done of the step in progress.
        between: seconds between failures; None: `mttf`.
    """
    rate = 1 / (mttf(gpus) if between is None else between)
    failures = 0
    kept = lost_capacity = 0.0
    now = ready = 0.0
    """From `ready` on steps are made."""
    returns: list[float] = []
    newcomers, since = 0, 0.0
    """Nodes that are back and wait for a place, and since when."""
    failure = draw.expovariate(rate)
    while now < seconds:
        back = returns[0] if returns else math.inf
        away_now = len(returns) * GPUS_A_NODE
        training = gpus - away_now - newcomers * GPUS_A_NODE
        due = math.inf
        if newcomers:
            dear, nodes = recovery.joins(training), training // GPUS_A_NODE
            due = max(ready, since + patience(dear, nodes, newcomers, recovery.join_wait))
        event = min(failure, back, due, seconds)
        trained = max(0.0, event - max(now, ready))
        kept += trained * training / gpus
        lost_capacity += (event - now) * away_now / gpus
        now = event
        if now >= seconds:
            break
        if event == failure:
            failures += 1
            kept -= min(trained, draw.uniform(0, step)) * training / gpus
            failure = now + draw.expovariate(rate)
            newcomers = 0
            ready = now + recovery.stall(draw, gpus - away_now)
            if recovery.joins(training) > 0 and draw.random() < HARDWARE:
                heapq.heappush(returns, now + away)
        elif event == back:
            heapq.heappop(returns)
            since = since if newcomers else now
            newcomers += 1
        else:  # at a fence between two steps: nothing is done again
            newcomers = 0
            ready = now + recovery.joins(gpus - away_now)
    return Outcome(failures, kept / (seconds - lost_capacity), kept / seconds)


SYSTEMS = (
    in_process(NCCL, "ours, NCCL's start-up"),
    in_process(NCCLX, "ours, NCCLX' start-up"),
    restarting(150.0, "FlashRecovery, 150 s"),
    restarting(180.0, "FT-HSDP, 3 min"),
    restarting(600.0, "restart of all, 10 min"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.year", description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--away", type=float, default=120.0, help="seconds until a node is back")
    parser.add_argument("--step", type=float, default=10.0, help="seconds of a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    if min(options.gpus) < GPUS_A_NODE:
        parser.error(f"expected at least {GPUS_A_NODE} GPUs, a node's, found {min(options.gpus)}")
    if options.away < 0 or options.step < 0:
        parser.error("expected no negative seconds")
    if not options.json:
        print(f"{'GPUs':>8} {'MTTF':>8}  {'':24} {'failures':>8} {'effective':>10} {'of all':>8}")
    for gpus in options.gpus:
        for system in SYSTEMS:
            draw = random.Random(options.seed)
            found = simulate(gpus, system, draw=draw, away=options.away, step=options.step)
            if options.json:
                told = {"gpus": gpus, "mttfSeconds": mttf(gpus), "recovery": system.name}
                print(json.dumps({**told, **vars(found)}), flush=True)
                continue
            print(
                f"{gpus:8} {mttf(gpus) / 60:4.0f} min  {system.name:24} {found.failures:8} "
                f"{100 * found.effective:8.1f} % {100 * found.of_all:6.1f} %"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
