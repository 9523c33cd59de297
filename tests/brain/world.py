"""Runs as history keeps them, made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.run import PodLoad, Run

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def amounts(cpu: float, gib: float) -> Amounts:
    return Amounts(Cpu.cores(cpu), Bytes.gib(gib))


def load(index: int = 0, *used: Amounts, role: str = "Worker") -> PodLoad:
    found = PodLoad.unused(role, index, amounts(8, 16), NOW)
    for i, one in enumerate(used):
        found = found.with_sample(one, NOW + timedelta(minutes=i), amounts(8, 16))
    return found


def run(uid: str = "u1", **more: Any) -> Run:
    given = {
        "namespace": "team",
        "name": "resnet",
        "user": "ann",
        "queue": "vision",
        "image": "resnet:1",
        "data_set": "imagenet",
        "labels": {"team": "vision"},
        "created": NOW,
        "seen": NOW + timedelta(hours=3),
        "ended": NOW + timedelta(hours=3),
        "outcome": "Succeeded",
        "restarts": 2,
        "out_of_memory": 1,
        "speeds": {1: 30.0, 4: 100.0},
        "loads": (load(0, amounts(2, 3), amounts(1, 4)), load(1, amounts(1, 1))),
    }
    return Run(uid=uid, **(given | more))
