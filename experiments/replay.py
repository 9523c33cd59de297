"""Runs a year's jobs on nodes with CPUs, memory and GPUs, under requests that somebody decides.

A job's pods are placed all at once, oldest job first, with backfill. Limits of memory are the most
that a run asked for; a pod that reaches its limit ends the run, which begins anew with more as the
operator gives it (D5), from a checkpoint of half an hour before at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from experiments.profile import YearsJob
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.pytorchjob.out_of_memory import more_memory

MEASURED = 180.0
"""Seconds after which a run is judged by what it uses, and that a nearly full pod takes to be."""
STEADY = 1800.0
"""Seconds after which it may ask for less memory than it did."""
_CHECKPOINT = 1800.0
_SCANNED = 100
"""Jobs of the queue that are tried for backfill."""


class Decider(Protocol):
    """Says what pods ask for."""

    def begins(self, job: YearsJob) -> Amounts: ...
    def runs(self, job: YearsJob, asked: Amounts, at: float) -> Amounts:
        """Return what it asks for after so many seconds of a run."""

    def fills(self, job: YearsJob, asked: Amounts, held: Bytes) -> Bytes | None:
        """Return what a pod that is nearly full asks for; None: as it does."""

    def ran_out(self, job: YearsJob, asked: Amounts) -> None:
        """Hears that a run ended for lack of memory."""

    def ended(self, job: YearsJob, asked: Amounts) -> None: ...


@dataclass(slots=True)
class Node:
    gpus: int
    cpu: int
    memory: int

    def fits(self, asked: Amounts) -> int:
        return min(
            self.gpus, self.cpu // asked.cpu.count, self.memory // max(1, asked.memory.count)
        )

    def take(self, asked: Amounts, pods: int) -> None:
        self.gpus -= pods
        self.cpu -= pods * asked.cpu.count
        self.memory -= pods * asked.memory.count


def share(node: Node, pods: int) -> Amounts:
    """Return the most that each of a job's pods may ask for, so that it can be placed at all."""
    together = min(node.gpus, pods)
    return Amounts(Cpu(node.cpu // together), Bytes(node.memory // together))


def least_of(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(min(one.cpu, other.cpu), min(one.memory, other.memory))


@dataclass(slots=True)
class Segment:
    """A time in which a job's pods asked for the same."""

    job: YearsJob
    asked: Amounts
    begin: float
    end: float = 0.0


@dataclass(slots=True)
class Replayed:
    segments: list[Segment] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds from submission to the first start, by job."""
    out_of_memory: list[tuple[float, str]] = field(default_factory=list)
    """When, and which job."""
    end: float = 0.0


@dataclass(slots=True)
class _Running:
    job: YearsJob
    asked: Amounts
    placed: list[tuple[Node, int]]
    begin: float
    done: float
    """Seconds of the job's length that were done before."""
    segment: Segment
    life: int
    limit: Bytes
    """The most memory that a pod may use."""
    is_over: bool = False


class Replay:
    """One run of the year.

    Args:
        node: what each node has, of `nodes`.
    """

    def __init__(self, jobs: Sequence[YearsJob], nodes: int, node: Node, by: Decider) -> None:
        self._by, self._node = by, Node(node.gpus, node.cpu, node.memory)
        self._nodes = [Node(node.gpus, node.cpu, node.memory) for _ in range(nodes)]
        self._events: list[tuple[float, int, str, _Running | YearsJob, int]] = []
        self._count = 0
        self._queue: list[tuple[YearsJob, Amounts | None, float]] = []
        self.found = Replayed()
        for job in jobs:
            self._at(job.submit, "submit", job, 0)

    def run(self) -> Replayed:
        while self._events:
            now, _, what, about, life = heapq.heappop(self._events)
            if isinstance(about, YearsJob):
                self._queue.append((about, None, 0.0))
                self._place(now)
            elif life in (about.life, -1) and not about.is_over:
                self._happens(now, what, about)
        self.found.end = max((s.end for s in self.found.segments), default=0.0)
        return self.found

    def _at(self, time: float, what: str, about: _Running | YearsJob, life: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, what, about, life))

    def _place(self, now: float) -> None:
        kept, refused = [], list[tuple[int, Amounts]]()
        for number, (job, asked, done) in enumerate(self._queue):
            if number >= _SCANNED:
                kept += self._queue[number:]
                break
            if not any(node.gpus for node in self._nodes):
                kept += self._queue[number:]
                break
            wanted = asked or least_of(self._by.begins(job), share(self._node, job.pods))
            # There is no room for more where there was none for less.
            beaten = any(
                pods <= job.pods and less.cpu <= wanted.cpu and less.memory <= wanted.memory
                for pods, less in refused
            )
            placed = None if beaten else self._room(job.pods, wanted)
            if placed is None:
                refused += [] if beaten else [(job.pods, wanted)]
                kept.append((job, asked, done))
                continue
            for node, pods in placed:
                node.take(wanted, pods)
            self.found.waits.setdefault(job.name, now - job.submit)
            segment = Segment(job, wanted, now)
            self.found.segments.append(segment)
            running = _Running(job, wanted, placed, now, done, segment, 0, wanted.memory)
            self._at(now + job.length - done, "ends", running, 0)
            for judged in (MEASURED, STEADY):
                if job.length - done > judged:
                    self._at(now + judged, "measured", running, -1)
            self._watch(now, running)
        self._queue = kept

    def _room(self, pods: int, asked: Amounts) -> list[tuple[Node, int]] | None:
        """Return where the pods go, fullest nodes first."""
        found, left = [], pods
        for node in sorted(self._nodes, key=lambda node: node.gpus):
            here = min(left, node.fits(asked))
            if here > 0:
                found.append((node, here))
                left -= here
            if not left:
                return found
        return None

    def _watch(self, now: float, running: _Running) -> None:
        """Foresees what its memory comes to at what it asks for now."""
        job, asked = running.job, running.asked.memory

        def after(memory: Bytes) -> float | None:
            at = job.reaches(memory)
            if at is None or at > job.length:
                return None
            # A run that begins anew loads what it had, within its first minute.
            return max(now, running.begin + max(at - running.done, 60.0))

        # Equal to its limit it still runs.
        limit = running.limit
        out = None if job.need.memory <= limit else after(limit + Bytes(1))
        near = after(asked * 0.9)
        end = running.begin + job.length - running.done
        if near is not None and near + MEASURED < min(end, out or end):
            self._at(near + MEASURED, "fills", running, running.life)
        if out is not None and out < end:
            self._at(out, "runs out", running, running.life)

    def _happens(self, now: float, what: str, running: _Running) -> None:
        job, asked = running.job, running.asked
        if what == "measured":
            self._ask(now, running, self._by.runs(job, asked, now - running.begin))
        elif what == "fills":
            held = job.held(running.done + now - running.begin)
            more = self._by.fills(job, asked, held)
            if more is not None and more > asked.memory:
                self._ask(now, running, Amounts(asked.cpu, more))
        elif what == "ends":
            self._leave(now, running)
            self._by.ended(job, running.asked)
            self._place(now)
        else:
            self._leave(now, running)
            self.found.out_of_memory.append((now, job.name))
            self._by.ran_out(job, asked)
            most = share(self._node, job.pods).memory
            memory = min(more_memory(asked.memory, running.limit), most)
            passed = now - running.begin
            done = running.done + max(0.0, passed - min(passed, _CHECKPOINT))
            self._queue.insert(0, (job, Amounts(asked.cpu, memory), done))
            self._place(now)

    def _ask(self, now: float, running: _Running, wanted: Amounts) -> None:
        """Resizes pods where they are, as far as their nodes have room."""
        asked = running.asked
        wanted = least_of(wanted, share(self._node, running.job.pods))
        more = Amounts(wanted.cpu - asked.cpu, wanted.memory - asked.memory)
        if wanted == asked or any(
            node.cpu < more.cpu.count * pods or node.memory < more.memory.count * pods
            for node, pods in running.placed
        ):
            return
        for node, pods in running.placed:
            node.cpu -= more.cpu.count * pods
            node.memory -= more.memory.count * pods
        running.segment.end = now
        running.asked, running.segment = wanted, Segment(running.job, wanted, now)
        running.limit = max(running.limit, wanted.memory)
        self.found.segments.append(running.segment)
        if wanted.memory != asked.memory:
            # What was foreseen at the old request is void, but for its end.
            running.life += 1
            end = running.begin + running.job.length - running.done
            self._at(end, "ends", running, running.life)
            self._watch(now, running)
        if more.cpu < Cpu(0) or more.memory < Bytes(0):
            self._place(now)

    def _leave(self, now: float, running: _Running) -> None:
        running.is_over = True
        running.segment.end = now
        for node, pods in running.placed:
            node.gpus += pods
            node.cpu += pods * running.asked.cpu.count
            node.memory += pods * running.asked.memory.count
