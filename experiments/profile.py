"""Jobs of a year with what they use and what people guess, drawn from Philly's jobs.

Queues, sizes, lengths and arrivals are the trace's: whole weeks of it, drawn with replacement. It
has no users, images, CPU or memory, so these are made up here. The factors of guesses and the nodes
were chosen with results of other draws in view, so that guesses have about the slack that was
found elsewhere and CPUs, not GPUs alone, are short:

users      a third of the root of a queue's jobs, the r-th with a share of 1 / r
work       a user does 1 to 4 things, each with an image, a data set and a need of its own; about
           each 40th run has a new image, which needs about as much (15 %)
need       CPU of a worker (p95): median 3, half of them within 2 to 4.5; peak of memory: median
           20 GiB, half of them within 12 to 32 GiB
runs       of the same image differ by 10 % in CPU and 8 % in memory (standard deviations)
memory     one run in ten grows to its peak all the time, others have it after a minute
guesses    one for each thing that somebody does, kept over its runs: what it needs, times a
           factor (CPU: median 2, half within 1.5 to 2.7; memory: 1.3, 1.0 to 1.8), rounded up to
           numbers that people write: about the 46 % slack that Autopilot's authors found
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.source import Source
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts

DAY = 86_400.0
WEEK = 7 * DAY
_NEW_IMAGE, _GROWS = 1 / 40, 0.1
_RUNS_CPU, _RUNS_MEMORY, _IMAGES = 0.1, 0.08, 0.15
_GUESS_CPU, _GUESS_MEMORY, _GUESS_SPREAD = 2.0, 1.3, 0.45
_WRITTEN = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
WARM_UP = 60.0
"""Seconds after which a run has the memory that it begins with."""


@dataclass(slots=True)
class Thing:
    """Something that a user does again and again."""

    image: str
    data_set: str
    cpu: float
    gib: float
    written: Amounts
    """The request in the user's manifest."""


@dataclass(frozen=True, slots=True)
class YearsJob:
    name: str
    submit: float
    queue: str
    user: str
    image: str
    data_set: str
    pods: int
    """One for each GPU."""
    length: float
    """Seconds that it runs."""
    need: Amounts
    """Each pod's p95 of CPU and peak of memory."""
    begins: Bytes
    """Memory after the first minute."""
    thing: int

    def held(self, at: float) -> Bytes:
        """Return each pod's memory after so many seconds."""
        if at < WARM_UP:
            return Bytes(round(self.begins.count * at / WARM_UP))
        grown = (self.need.memory - self.begins).count
        return Bytes(round(self.begins.count + grown * min(1.0, at / self.length)))

    def reaches(self, memory: Bytes) -> float | None:
        """Return after how many seconds a pod has that much; None: never."""
        if memory > self.need.memory:
            return None
        if memory <= self.begins:
            return min(WARM_UP, self.length)
        grown = (self.need.memory - self.begins).count
        return max(WARM_UP, self.length * (memory - self.begins).count / grown)


@dataclass(frozen=True, slots=True)
class Year:
    jobs: Sequence[YearsJob]
    guesses: Sequence[Amounts]
    """By thing, as it is first written."""


def draw(
    source: Source, seed: int, weeks: int, share: float, most_pods: int, node: Amounts
) -> Year:
    """Return the jobs of so many weeks.

    Args:
        share: of the trace's jobs that are taken.
        most_pods: larger jobs are left out.
        node: has 8 GPUs, so much CPU and memory; no run needs more than nine tenths of its pods'
            part of it.
    """
    rng = random.Random(seed)
    trace = _weeks(source)
    drawn = []
    for week in range(weeks):
        jobs = trace[rng.randrange(len(trace))]
        drawn += [
            (week * WEEK + submit, queue, gpus, length)
            for submit, queue, gpus, length in jobs
            if rng.random() < share and gpus <= most_pods
        ]
    drawn.sort()
    queues = Counter(queue for _, queue, _, _ in drawn)
    users = {queue: max(1, round(math.sqrt(count) / 3)) for queue, count in queues.items()}
    things: list[Thing] = []
    of_user: dict[tuple[str, int], list[int]] = {}
    guesses: list[Amounts] = []
    found = []
    for number, (submit, queue, gpus, length) in enumerate(drawn):
        ranks = range(1, users[queue] + 1)
        user = rng.choices(ranks, [1 / rank for rank in ranks])[0]
        mine = of_user.setdefault((queue, user), [])
        if not mine:
            for _ in range(rng.randint(1, 4)):
                mine.append(len(things))
                things.append(_thing(rng, f"{queue}-{user}-{len(mine)}"))
                guesses.append(things[-1].written)
        place = rng.choice(mine)
        thing = things[place]
        if rng.random() < _NEW_IMAGE:
            thing.image += "'"
            thing.cpu *= math.exp(rng.gauss(0, _IMAGES))
            thing.gib *= math.exp(rng.gauss(0, _IMAGES))
        need = Amounts(
            Cpu.cores(thing.cpu * math.exp(rng.gauss(0, _RUNS_CPU))),
            Bytes.gib(thing.gib * math.exp(rng.gauss(0, _RUNS_MEMORY))),
        )
        part = 0.9 / min(8, gpus)
        need = Amounts(min(need.cpu, node.cpu * part), min(need.memory, node.memory * part))
        begins = need.memory * 0.6 if rng.random() < _GROWS else need.memory
        found.append(
            YearsJob(
                *(f"j{number}", submit, queue, f"{queue}-{user}", thing.image, thing.data_set),
                *(gpus, length, need, begins, place),
            )
        )
    return Year(found, guesses)


def _thing(rng: random.Random, name: str) -> Thing:
    cpu, gib = 3 * math.exp(rng.gauss(0, 0.6)), 20 * math.exp(rng.gauss(0, 0.7))
    factors = [
        median * math.exp(rng.gauss(0, _GUESS_SPREAD)) for median in (_GUESS_CPU, _GUESS_MEMORY)
    ]
    written = Amounts(
        Cpu.cores(next(n for n in _WRITTEN if n >= min(64.0, cpu * factors[0]))),
        Bytes.gib(2 ** math.ceil(math.log2(min(256.0, gib * factors[1])))),
    )
    return Thing(f"{name}:1", f"data-{name}", cpu, gib, written)


def _weeks(source: Source) -> list[list[tuple[float, str, int, float]]]:
    """Return by week submission, queue, GPUs and seconds of each job, from the week's begin."""
    jobs = source.philly_jobs()
    weeks: list[list[tuple[float, str, int, float]]] = []
    for submit, queue, gpus, length in jobs:
        number = int(submit // WEEK)
        while len(weeks) <= number:
            weeks.append([])
        weeks[number].append((submit % WEEK, queue, gpus, length))
    return [week for week in weeks if week]
