"""A year of jobs under requests that people guess, that Brain says, and that an oracle knows.

Brain's figures are its own functions' (`advise`, `advise_running`), by runs that have ended by
then; where it knows of none like a job, the guess stays but for memory, as Brain's default has it.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.profile import WEEK, Year, YearsJob, draw
from experiments.replay import MEASURED, Node, Replay, Replayed, Segment
from experiments.source import Source
from experiments.table import markdown, percent, verdict
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.advice import Unknown, advise, advise_running
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.run import PodLoad, Run
from volcano_elastic.brain.past import Past

_ZERO = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = 5
"""The seed of the year that is printed. Seeds 1 to 4 were looked at while rules of Brain and the
nodes of this world were chosen, so their figures are no test of them."""
UNKNOWN = 2.0
"""Brain's `--unknown-memory` by default."""
_BUSY = 1.6449
"""p95 of a normal distribution, in standard deviations."""
_WITHIN_RUN = 0.15
"""Standard deviation of a pod's CPU over time, as a share of its mean."""
_SAMPLES = 12
"""Samples that a run's histogram gets here; Brain takes one a minute."""
SLACK, OUT_OF_MEMORY, DECIDED = 0.2, 10.0, 10.0
"""Goals: of slack, by how much fewer jobs run out of memory, and milliseconds a decision."""


@dataclass(slots=True)
class Guesses:
    """Requests as people write them.

    Args:
        learns: after a run that ends for lack of memory its owner writes twice as much from then
            on; else for that run only.
    """

    year: Year
    learns: bool = True
    written: list[Amounts] = field(init=False)

    def __post_init__(self) -> None:
        self.written = list(self.year.guesses)

    def begins(self, job: YearsJob) -> Amounts:
        return self.written[job.thing]

    def runs(self, job: YearsJob, asked: Amounts, at: float) -> Amounts:
        return asked

    def fills(self, job: YearsJob, asked: Amounts, held: Bytes) -> Bytes | None:
        return None

    def ran_out(self, job: YearsJob, asked: Amounts) -> None:
        if not self.learns:
            return
        was = self.written[job.thing]
        self.written[job.thing] = replace(was, memory=max(was.memory, asked.memory * 2))

    def ended(self, job: YearsJob, asked: Amounts) -> None:
        pass


class Oracle(Guesses):
    """Requests that are just what the run is going to need."""

    def begins(self, job: YearsJob) -> Amounts:
        return job.need


class Brain(Guesses):
    """Requests that Brain recommends in mode Live, where it does; else people's."""

    def __init__(self, year: Year, node: Amounts, unknown: Unknown | None = None) -> None:
        super().__init__(year)
        self._node, self._past, self._random = node, Past(), random.Random(1)
        self._unknown = unknown
        self.milliseconds: list[float] = []
        self.unadvised = 0

    def begins(self, job: YearsJob) -> Amounts:
        guess = self.written[job.thing]
        begun = time.thread_time()
        found = advise(_object(guess), _run(job), self._past, self._node, self._unknown)
        self.milliseconds.append(1000 * (time.thread_time() - begun))
        alike = self._past.similar(_run(job), "Worker").runs
        self.unadvised += not alike
        return found[0].wanted if found else guess

    def runs(self, job: YearsJob, asked: Amounts, at: float) -> Amounts:
        return self._follows(job, asked, job.held(at), at) or asked

    def fills(self, job: YearsJob, asked: Amounts, held: Bytes) -> Bytes | None:
        found = self._follows(job, asked, held, MEASURED)
        return None if found is None else found.memory

    def ended(self, job: YearsJob, asked: Amounts) -> None:
        load = self._load(job, asked, job.need.memory, _SAMPLES)
        self._past.add(replace(_run(job), outcome="Succeeded", loads=(load,)))

    def _follows(
        self, job: YearsJob, asked: Amounts, held: Bytes, seconds: float
    ) -> Amounts | None:
        """Return what running pods should ask for that were measured for so long."""
        run = replace(_run(job), loads=(self._load(job, asked, held, 4),))
        now = _ZERO + timedelta(seconds=seconds)
        found = advise_running(_object(asked), run, self._node, now)
        return found[0].wanted if found else None

    def _load(self, job: YearsJob, asked: Amounts, held: Bytes, samples: int) -> PodLoad:
        mean = job.need.cpu.count / (1 + _BUSY * _WITHIN_RUN)
        found = PodLoad.unused("Worker", 0, asked, _ZERO)
        for minute in range(samples):
            cpu = max(1.0, self._random.gauss(mean, _WITHIN_RUN * mean))
            used = Amounts(Cpu(round(cpu)), held)
            found = found.with_sample(used, _ZERO + timedelta(minutes=minute), asked)
        return found


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one way; slack is the share of what is asked for that the run never needs."""

    cpu_slack: float
    memory_slack: float
    hit: int
    """Jobs that ran out of memory at least once."""
    mean_wait: float
    p99_wait: float


def figures(found: Replayed) -> Figures:
    waits = sorted(found.waits.values())
    cpu, memory = slack(found.segments)
    return Figures(
        cpu,
        memory,
        len({name for _, name in found.out_of_memory}),
        fmean(waits),
        waits[int(0.99 * (len(waits) - 1))],
    )


def slack(segments: Sequence[Segment]) -> tuple[float, float]:
    """Return the shares of requested CPU and memory, over time, that are above the runs' p95 of
    CPU and peak of memory."""
    asked, spare = [0.0, 0.0], [0.0, 0.0]
    for one in segments:
        time_ = (one.end - one.begin) * one.job.pods
        pairs = ((one.asked.cpu.count, one.job.need.cpu.count),)
        pairs += ((one.asked.memory.count, one.job.need.memory.count),)
        for i, (request, need) in enumerate(pairs):
            asked[i] += request * time_
            spare[i] += max(0, request - need) * time_
    return spare[0] / asked[0], spare[1] / asked[1]


def section(source: Source, pictures: Path | None = None) -> str:
    """Return the year under each way, and whether the goals are met."""
    weeks, share_, nodes = (52, 0.1, 10) if source.real else (4, 1.0, 4)
    most = Amounts(Cpu.cores(40), Bytes.gib(480))
    node = Node(8, most.cpu.count, most.memory.count)
    year = draw(source, YEAR, weeks, share_, 4 * nodes, most)
    brain, cautious = Brain(year, most, Unknown(UNKNOWN, most)), "Brain, unknown kinds as asked"
    ways = {
        "guesses": Guesses(year, learns=False),
        "guesses, raised for good": Guesses(year),
        "Brain": brain,
        cautious: Brain(year, most),
        "oracle": Oracle(year),
    }
    found = {name: Replay(year.jobs, nodes, node, by).run() for name, by in ways.items()}
    told = {name: figures(one) for name, one in found.items()}
    head = ["", "CPU slack", "memory slack", "jobs out of memory", "mean wait, h", "p99 wait, h"]
    rows = [
        [
            name,
            percent(one.cpu_slack),
            percent(one.memory_slack),
            f"{one.hit:,}",
            f"{one.mean_wait / 3600:.2f}",
            f"{one.p99_wait / 3600:.1f}",
        ]
        for name, one in told.items()
    ]
    decided = sorted(brain.milliseconds)
    text = (
        f"{len(year.jobs):,} jobs of {len({job.user for job in year.jobs})} users in {weeks} weeks "
        f"on {nodes} nodes with 8 GPUs, 40 CPUs and 480 GiB; {brain.unadvised:,} of them began "
        "before any run like them had ended.\n\n"
    )
    text += markdown(head, rows) + "\n"
    for way in ("Brain", cautious):
        one = told[way]
        text += verdict(f"{way}: slack of CPU", 100 * one.cpu_slack, 100 * SLACK, "%")
        text += verdict(f"{way}: slack of memory", 100 * one.memory_slack, 100 * SLACK, "%")
        for name in ("guesses", "guesses, raised for good"):
            fewest = told[name].hit / OUT_OF_MEMORY
            text += verdict(f"{way}: jobs out of memory, against {name}", one.hit, fewest, "")
    text += verdict("a decision, 99th percentile", decided[int(0.99 * len(decided))], DECIDED, "ms")
    if pictures is not None:
        from experiments import picture  # takes a second, and most runs draw nothing

        by_week = {name: _by_week(one, weeks) for name, one in found.items()}
        figure = picture.year(by_week)
        words = "Requested memory that is never needed, and jobs out of memory, by week"
        text += picture.save(figure, pictures, "right-sizing", words)
    return text


def _by_week(found: Replayed, weeks: int) -> tuple[list[float], list[int]]:
    """Return for each week the slack of memory, and jobs that had run out of memory until its
    end."""
    parts: dict[int, list[Segment]] = defaultdict(list)
    for one in found.segments:
        for week in range(int(one.begin // WEEK), min(weeks, int(one.end // WEEK) + 1)):
            begin, end = max(one.begin, week * WEEK), min(one.end, (week + 1) * WEEK)
            if end > begin:
                parts[week].append(Segment(one.job, one.asked, begin, end))
    first: dict[str, float] = {}
    for at, name in found.out_of_memory:
        first.setdefault(name, at)
    hit = [sum(at < (week + 1) * WEEK for at in first.values()) for week in range(weeks)]
    return [slack(parts[week])[1] if parts[week] else 0.0 for week in range(weeks)], hit


def _run(job: YearsJob) -> Run:
    return Run(
        uid=job.name,
        namespace=job.queue,
        name=job.name,
        user=job.user,
        queue=job.queue,
        image=job.image,
        data_set=job.data_set,
        created=_ZERO,
        seen=_ZERO,
    )


def _object(asked: Amounts) -> dict[str, Any]:
    requests = {"cpu": str(asked.cpu), "memory": str(asked.memory)}
    container = {"name": "pytorch", "resources": {"requests": requests}}
    worker = {"template": {"spec": {"containers": [container]}}}
    return {"metadata": {"name": "j"}, "spec": {"pytorchReplicaSpecs": {"Worker": worker}}}
