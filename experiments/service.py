"""E6: an online service that follows the day beside one elastic job (ElasticDL's experiment 2)."""

from __future__ import annotations

import math
import random
from pathlib import Path

from experiments.source import Source
from experiments.table import markdown, percent, verdict
from experiments.trial import Result, Trial, run_all
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.curve import amdahl
from volcano_elastic.simulator.trace import TraceJob

GPUS, DAY, STEP = 64, 86_400, 60
LEAST = 4
"""Workers of the elastic job's minimum."""
SPIKES = 12
GRACES = (0.0, 30.0)


def sizes(seed: int = 6, length: int = DAY) -> list[int]:
    """The service's size minute by minute: a daily wave from 10 to 40 pods, and every few hours a
    spike of twenty minutes that takes it to 56."""
    rng = random.Random(seed)
    spikes = [rng.randrange(0, length, STEP) for _ in range(max(1, SPIKES * length // DAY))]
    made = []
    for time in range(0, length, STEP):
        wave = 25 - 15 * math.cos(2 * math.pi * time / DAY) + rng.uniform(-2, 2)
        if any(start <= time < start + 1200 for start in spikes):
            wave = 56
        made.append(max(8, min(GPUS - LEAST, round(wave))))
    return made


def jobs(length: int = DAY) -> list[TraceJob]:
    """Each pod of the service is a gang of one that comes when the service grows and goes when it
    shrinks, the newest first; the elastic job has more work than the day leaves room for."""
    found: list[TraceJob] = []
    up: list[int] = []
    linear = amdahl(0.0, GPUS)

    def down(end: int) -> None:
        begin, name = up.pop(), f"pod-{len(found)}"
        found.append(TraceJob(name, "service", begin, 1, end - begin, linear, 1, 1))

    for i, size in enumerate(sizes(length=length)):
        while len(up) > size:
            down(i * STEP)
        while len(up) < size:
            up.append(i * STEP)
    while up:
        down(length)
    work = float(GPUS * length)
    return [
        TraceJob("training", "training", 0.0, LEAST, work, amdahl(0.01, GPUS), LEAST, GPUS),
        *found,
    ]


def section(source: Source, processes: int, pictures: Path | None = None) -> str:
    length = DAY if source.real else DAY // 12
    trials = [
        Trial(
            f"grace {grace:g} s",
            {"": jobs(length)},
            SimulationConfig(16, 4, grace=grace, pause=5.0),
            window=length,
        )
        for grace in GRACES
    ]
    rows, verdicts = [], ""
    results = run_all(trials, processes)
    for grace, result in zip(GRACES, results, strict=True):
        waits = _waits(result)
        still = result.found.standstill_hours / (GPUS * length / 3600)
        rows.append(
            [
                result.trial.label,
                f"{len(waits)}",
                f"{max(waits):,.0f}",
                f"{sum(wait > 1 for wait in waits)}",
                percent(result.found.allocated_utilisation),
                percent(still),
                f"{result.first.runs[0].resizes}",
            ]
        )
        verdicts += verdict(
            f"{result.trial.label}: a pod of the service waits at most", max(waits), grace + 2
        )
        idle = 100 * (1 - (result.found.allocated_utilisation or 0.0))
        verdicts += verdict(f"{result.trial.label}: GPUs not held", idle, 10, "%")
    head = ["", "service pods", "longest wait, s", "waited", "held", "of it at a standstill"]
    text = markdown([*head, "resizes of the job"], rows) + "\n" + verdicts
    if pictures is not None:
        from experiments.picture import day, save

        training, *service = results[-1].first.runs
        words = f"GPUs held by the service and by the elastic job, {results[-1].trial.label}"
        text += save(day(service, training, length, GPUS), pictures, "service", words)
    return text


def _waits(result: Result) -> list[float]:
    return [run.wait for run in result.first.runs if run.job.queue == "service"]
