"""One run of a job, as history keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api.amount import Bytes, Cpu, Percent
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.estimate.histogram import Histogram
from volcano_elastic.brain.history.gpu_load import GpuLoad, GpuUse

BUSY = 0.95
"""Share of the time in which a pod used no more CPU than is told of it."""
_LATEST = 10
"""Samples that are kept one by one."""


@dataclass(frozen=True, slots=True)
class Sample:
    at: datetime
    used: Amounts


@dataclass(frozen=True, slots=True)
class PodLoad:
    """The resources that one pod's training container asked for and used, in all its lives."""

    role: str
    index: int
    requested: Amounts
    peak: Amounts
    cpu: Histogram[Cpu]
    memory: Histogram[Bytes]
    gpu: GpuLoad | None = None
    """None: it has none, or nobody measured them."""
    latest: tuple[Sample, ...] = field(default=(), compare=False)
    """Newest last; only since Brain's start, as the database doesn't have them."""

    @staticmethod
    def unused(role: str, index: int, requested: Amounts, since: datetime) -> PodLoad:
        nothing = Amounts(Cpu(0), Bytes(0))
        cpu, memory = Histogram(Cpu, since), Histogram(Bytes, since)
        return PodLoad(role, index, requested, nothing, cpu, memory)

    def with_sample(
        self, used: Amounts, at: datetime, requested: Amounts, gpu: GpuUse | None = None
    ) -> PodLoad:
        """Return the load with one sample more, of a pod that asks for `requested` now."""
        gpus = self.gpu
        if gpu is not None:
            gpus = (gpus or GpuLoad.unused(at)).with_sample(gpu, at)
        return replace(
            self,
            requested=requested,
            peak=self.peak.most_of(used),
            cpu=self.cpu.with_sample(used.cpu, at),
            memory=self.memory.with_sample(used.memory, at),
            gpu=gpus,
            latest=(*self.latest, Sample(at, used))[-_LATEST:],
        )

    def after(self, earlier: PodLoad) -> PodLoad:
        """Return the load with what was measured of the pod before."""
        gpu = self.gpu or earlier.gpu
        if self.gpu is not None and earlier.gpu is not None:
            gpu = self.gpu.after(earlier.gpu)
        return replace(
            self,
            peak=self.peak.most_of(earlier.peak),
            cpu=self.cpu.with_all_of(earlier.cpu),
            memory=self.memory.with_all_of(earlier.memory),
            gpu=gpu,
        )

    @property
    def usual(self) -> Amounts:
        """CPU that it did not exceed for 95 % of its time, and the most memory that it had."""
        return Amounts(self.cpu.percentile(BUSY) or Cpu(0), self.peak.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job from its creation to its end. Texts are empty where nobody told."""

    uid: str
    namespace: str
    name: str
    user: str = ""
    queue: str = ""
    image: str = ""
    data_set: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: datetime
    seen: datetime
    """When it was last written."""
    ended: datetime | None = None
    outcome: str = ""
    """Succeeded, Failed or Deleted; empty while it goes on."""
    restarts: int = 0
    out_of_memory: int = 0
    """Pods that ran out of memory at least once."""
    speeds: Mapping[int, float] = field(default_factory=dict)
    """Samples a second, by number of workers."""
    loads: tuple[PodLoad, ...] = ()
    checkpoint: Mapping[str, Bytes] = field(default_factory=dict)
    """Size of the newest one, by the role whose state it is; empty where nobody told."""

    def after(self, earlier: Run) -> Run:
        """Return the run with the loads that were measured before, and the end if it had one."""
        before = {(load.role, load.index): load for load in earlier.loads}
        now = {(load.role, load.index): load for load in self.loads}
        both = {
            place: load.after(before[place]) if place in before else load
            for place, load in now.items()
        }
        found = before | both
        ends = earlier if earlier.outcome else self
        return replace(
            self,
            loads=tuple(found[place] for place in sorted(found)),
            ended=ends.ended,
            outcome=ends.outcome,
            checkpoint=self.checkpoint or earlier.checkpoint,
        )

    @property
    def busiest(self) -> dict[str, Amounts]:
        """Return by role the most that any of its pods usually used."""
        found: dict[str, Amounts] = {}
        for load in self.loads:
            if load.peak.memory:
                found[load.role] = load.usual.most_of(found.get(load.role, load.usual))
        return found

    @property
    def busiest_gpus(self) -> dict[str, tuple[Bytes, Percent | None]]:
        """Return by role the most memory that GPUs of any pod had in use, and the greatest median
        of per cent of time in which they computed; None: not known."""
        found: dict[str, tuple[Bytes, Percent | None]] = {}
        for load in self.loads:
            if load.gpu is not None:
                most, busy = found.get(load.role, (Bytes(0), None))
                told = [one for one in (busy, load.gpu.usual) if one is not None]
                found[load.role] = max(most, load.gpu.peak), max(told) if told else None
        return found


def as_json(run: Run) -> dict[str, Any]:
    """Return what `volcano-elastic history --json` prints of a run; amounts as Kubernetes spells
    them."""
    return {
        "uid": run.uid,
        "namespace": run.namespace,
        "name": run.name,
        "user": run.user,
        "queue": run.queue,
        "image": run.image,
        "dataSet": run.data_set,
        "labels": dict(run.labels),
        "created": moment.timestamp(run.created),
        "ended": None if run.ended is None else moment.timestamp(run.ended),
        "outcome": run.outcome,
        "restarts": run.restarts,
        "outOfMemory": run.out_of_memory,
        "speeds": {str(size): speed for size, speed in sorted(run.speeds.items())},
        "checkpoint": {role: str(size) for role, size in sorted(run.checkpoint.items())},
        "pods": [
            {
                "role": load.role,
                "index": load.index,
                "requested": _spelled(load.requested),
                "usual": _spelled(load.usual),
                "peak": _spelled(load.peak),
                "gpu": None if load.gpu is None else _spelled_gpu(load.gpu),
            }
            for load in run.loads
        ],
    }


def anonymous(run: Run, salt: str) -> Run:
    """Return the run without anything that names somebody: equal texts stay equal under one salt,
    and say nothing else; labels are gone."""

    def hidden(text: str) -> str:
        return hashlib.sha256(f"{salt}\0{text}".encode()).hexdigest()[:16] if text else ""

    return replace(
        run,
        uid=hidden(run.uid),
        namespace=hidden(run.namespace),
        name=hidden(run.name),
        user=hidden(run.user),
        queue=hidden(run.queue),
        image=hidden(run.image),
        data_set=hidden(run.data_set),
        labels={},
    )


def _spelled_gpu(gpu: GpuLoad) -> dict[str, Any]:
    """Return the greatest use of memory, and the median of per cent of time."""
    busy = gpu.usual
    return {"memory": str(gpu.peak), "percent": None if busy is None else busy.count}


def _spelled(amounts: Amounts) -> dict[str, str]:
    return {"cpu": str(amounts.cpu), "memory": str(amounts.memory)}
