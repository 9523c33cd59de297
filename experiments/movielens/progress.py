"""Writes a training's progress: a line a step, and now and then the held-out ratings' AUC."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from experiments.movielens.ratings import Ratings
from experiments.movielens.wide_and_deep import auc

STEPS, CURVE = "steps", "curve"
HOLD = "hold"
"""While this file lies in a run's folder, training waits after a step: newcomers need seconds to
start, and would miss most of a training that is over in a few."""
SLOW = "slow"
"""While this file lies there, training waits a little after each step: a leaver needs a moment to
leave, in which a training this small could end."""
_SLOW_SECONDS = 0.2
READY = "ready-{}"
"""By process id; a newcomer that has it can take part at once."""


def ready(folder: Path) -> None:
    (folder / READY.format(os.getpid())).touch()


class Progress:
    """Kept by one process of the training, the one that knows the whole model.

    Args:
        folder: the run's.
        model: evaluated every `every` samples.
        held_out: what it is evaluated on.
    """

    def __init__(
        self, folder: Path, *, model: torch.nn.Module, held_out: Ratings, every: int
    ) -> None:
        self._folder = folder
        self._model = model
        self._held_out = held_out
        self._every = every
        self._points = 0
        self._steps = (folder / STEPS).open("a", buffering=1)
        self._curve = (folder / CURVE).open("a", buffering=1)

    def stepped(self, samples: int, world: int) -> None:
        """`samples` of all epochs are in the model, the last of them by a world of that size."""
        ended = time.time()
        if samples // self._every > self._points:
            self._points = samples // self._every
            with torch.no_grad():
                found = auc(self._model(self._held_out.values), self._held_out.labels)
            self._curve.write(json.dumps([self._points * self._every, found]) + "\n")
        while (self._folder / HOLD).exists():
            time.sleep(0.01)
        if (self._folder / SLOW).exists():
            time.sleep(_SLOW_SECONDS)
        self._steps.write(f"{samples} {world} {ended} {time.time()}\n")


@dataclass(frozen=True, slots=True)
class Step:
    samples: int
    world: int
    ended: float
    resumed: float
    """Unix seconds; in between the model was evaluated, or it was waited."""


def steps(folder: Path) -> list[Step]:
    found = []
    for line in (folder / STEPS).read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            samples, world, ended, resumed = line.split()
            found.append(Step(int(samples), int(world), float(ended), float(resumed)))
    return found


def newest(folder: Path) -> tuple[int, int]:
    """(samples, world) of the last step; zeros before the first."""
    path = folder / STEPS
    if not path.exists():
        return 0, 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        whole = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    samples, world, *_ = whole[-1].split() if whole else (b"0", b"0")
    return int(samples), int(world)


def curve(folder: Path) -> list[tuple[int, float]]:
    """(samples, AUC)."""
    lines = (folder / CURVE).read_text().splitlines()
    return [(samples, found) for samples, found in map(json.loads, lines)]


def pauses(taken: list[Step]) -> list[float]:
    """Seconds from the last step of a world to the first of the next, that step included."""
    return [b.ended - a.resumed for a, b in pairwise(taken) if a.world != b.world]
