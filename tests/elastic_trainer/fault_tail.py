"""The end of a faulty job: what its script does after the loop fails once, twice or always."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.elastic_trainer.fault_job import EXPORT, TAIL_FAULT, TAIL_FIRED, FaultyJob
from tests.elastic_trainer.torchrun_job import PATIENCE

ALWAYS = 100
RESTARTS = 1
"""The --max-restarts of a job whose script's end always fails."""
LOSSES = 3
"""Nodes that are lost until whoever starts others gives the job up."""
STRAGGLERS_SECONDS = 5.0
"""For those that wait for a job which can't go on."""


@dataclass(frozen=True, slots=True)
class TailFault:
    """How the script's end fails."""

    kind: str
    """`raise`, `kill` (SIGKILL to the worker) or `lose` (its node)."""
    rank: int
    """0, which exports, or -1, the last one, whichever node has it."""
    times: int

    @property
    def always(self) -> bool:
        return self.times >= ALWAYS

    @property
    def name(self) -> str:
        often = {1: "once", 2: "twice"}.get(self.times, "always")
        return f"{self.kind}_tail_{often}"


def choose(chance: random.Random) -> TailFault:
    kind = chance.choice(("raise", "kill", "lose"))
    # The same error twice, no step further, is the script's.
    times = (1, ALWAYS) if kind == "raise" else (1, 2, ALWAYS)
    return TailFault(kind=kind, rank=chance.choice((0, -1)), times=chance.choice(times))


class Tail:
    """The end of one job whose agents train. Every check is an AssertionError."""

    def __init__(
        self,
        job: FaultyJob,
        fault: TailFault,
        start: Callable[[int], None],
        tell: Callable[[str], None],
        fixed: bool,
    ) -> None:
        """
        Args:
            start: starts a pod's agent.
            fixed: the job needs all of its nodes.
        """
        self.job = job
        self.fault = fault
        self._start = start
        self._tell = tell
        self._fixed = fixed
        self._lost = 0
        for path in (*self._fired(), *job.folder.glob("final-*.pt")):
            path.unlink()
        new = job.folder / f"{TAIL_FAULT}.new"
        new.write_text(json.dumps(asdict(fault)))
        new.rename(job.folder / TAIL_FAULT)

    def play(self, spare: random.Random) -> None:
        """From the loop's end to that of the job, which succeeds in the end."""
        if self.fault.always:
            self._fails()
            pods = sorted(self.job.agents)
            self.end_all()
            (self.job.folder / TAIL_FAULT).unlink()
            self._tell("a new attempt of the same job, whose end does not fail")
            for index in pods:
                self._start(index)
        self._succeeds(spare)
        self.end_all()

    def end_all(self) -> None:
        for agent in self.job.agents.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGKILL)
            agent.wait(120)
        self.job.agents.clear()

    def _fails(self) -> None:
        """It never succeeds: no agent ends with 0, and there is no export."""
        first: float | None = None
        end = time.monotonic() + PATIENCE
        while True:
            codes = self._codes()
            assert 0 not in codes.values(), f"{self.fault.name}, and yet a node succeeded: {codes}"
            if self.fault.kind == "lose" and self._lose_nodes(lambda _: True) >= LOSSES:
                break
            needed = any(codes.values()) if self._fixed else codes[0]
            if first is None and needed:
                first = time.monotonic()
            if None not in codes.values():
                break
            if first is not None and time.monotonic() > first + STRAGGLERS_SECONDS:
                break
            assert time.monotonic() < end, f"{self.fault.name}: not failed yet: {self._situation()}"
            time.sleep(0.03)
        self._tell(f"failed for good: exit codes {self._codes()}")
        exported = (self.job.folder / EXPORT).exists()
        assert self.fault.rank != 0 or not exported, "the export failed, and yet it is there"

    def _succeeds(self, spare: random.Random) -> None:
        """All agents end with 0, but those in a lost node's place, and the export is there."""
        newcomers: set[int] = set()

        def comes_back(index: int) -> bool:
            back = index == 0 or self._fixed or spare.random() < 0.5
            if back and index:
                newcomers.add(index)
            return back

        end = time.monotonic() + PATIENCE
        while True:
            codes = self._codes()
            assert not any(codes.values()), f"{self.fault.name}: {self._situation()}"
            if self.fault.kind == "lose" and not self.fault.always:
                self._lose_nodes(comes_back)
            if all(code == 0 for pod, code in self._codes().items() if pod not in newcomers):
                break
            assert time.monotonic() < end, f"{self.fault.name}: not over: {self._situation()}"
            time.sleep(0.03)
        if not self.fault.always:
            fired = len(self._fired())
            assert fired == self.fault.times, f"{self.fault.name} came about {fired} times"
        self._tell(f"succeeded: exit codes {self._codes()}")
        assert (self.job.folder / EXPORT).exists(), "succeeded without its export"

    def _lose_nodes(self, comes_back: Callable[[int], bool]) -> int:
        for path in self._fired()[self._lost :]:
            if not (text := path.read_text()):
                break  # just being written
            self._lost += 1
            index = int(text)
            self._tell(f"node {index} is lost in the script's end")
            agent = self.job.agents.pop(index)
            os.kill(agent.pid, signal.SIGKILL)
            agent.wait(120)
            if comes_back(index):
                self._start(index)
        return self._lost

    def _fired(self) -> list[Path]:
        return sorted(self.job.folder.glob(f"{TAIL_FIRED}-*"), key=lambda path: len(path.name))

    def _codes(self) -> dict[int, int | None]:
        return {index: agent.poll() for index, agent in sorted(self.job.agents.items())}

    def _situation(self) -> str:
        told = self.job.status()
        return (
            f"exit codes {self._codes()}, {len(self._fired())} times, phase {told['phase']}, "
            f"{told.get('rounds', [])[-3:]}"
        )
