"""Goodput of a job under faults: a box of ranks, broken again and again by a seed.

    python -m benchmarks.faults [--faults 60] [--minutes 30] [--nodes 8] [--ranks 4] [--seed N]
                                [--kind KIND ...] [--system SYSTEM ...] [--json]

Each system trains a tiny model on nodes that are agents on loopback, undisturbed for a while, then
under faults, which come at even distances, then undisturbed again. `ours` is ElasticLoop under this
project's rendezvous, `torchrun` DistributedDataParallel under stock torchrun (c10d), with a
checkpoint every ten seconds, as ours has, `torchft` its own loop, by default only where it is
installed (benchmarks/fault_torchft.py says how). Faults:

    kill worker    SIGKILL to one rank
    stop           SIGSTOP to one rank for some seconds
    partition      a node reaches no other agent, nor the coordinator, for some seconds (ours)
    node down      SIGKILL to a whole node; another is made in its place after a while
    coordinator    SIGKILL to the coordinator, or torchft's lighthouse; under torchrun to the node
                   that serves the store

Whoever ends is made anew at once, as an operator would, but for lost nodes. `throughput` is samples
a second that count under faults, over those of the undisturbed parts less the capacity that was
away; `lost` is the same in seconds of undisturbed training for a fault of each kind, from that one
to the next. `goodput` is what the job's own ledger says of the time under faults, in processes'
time; a node that is away is not in it. A step sleeps for a moment, in which a GPU would compute, so
that few cores can hold many ranks; figures are ratios within one run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fault_box import BATCH, Box, OurBox, TorchrunBox
from benchmarks.fault_torchft import FOLDER, TorchftBox
from volcano_elastic.pytorchjob.goodput import kept, read, share, summed

SYSTEMS: dict[str, type[Box]] = {"ours": OurBox, "torchrun": TorchrunBox, "torchft": TorchftBox}
KINDS = ("kill worker", "stop", "partition", "node down", "coordinator")
START_SECONDS = 300.0
LOOK_SECONDS = 0.1
LEDGER_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Result:
    system: str
    faults: dict[str, int]
    minutes: float
    ranks: int
    calm: float
    """Samples a second while nothing was broken."""
    broken: float
    """Samples a second that count, under faults."""
    away: float
    """Share of the ranks' time under faults in which their node was not there."""
    throughput: float
    """`broken` over `calm` less what was away."""
    goodput: float | None
    """By the job's own ledger; None where it has none."""
    milliseconds: dict[str, int] = field(default_factory=dict)
    """The ledger's uses, in processes' time."""
    lost: dict[str, float] = field(default_factory=dict)
    """Seconds of undisturbed training that a fault of each kind cost (mean)."""
    pauses: list[float] = field(default_factory=list)
    """Seconds without a step at each change of the world, where they are told."""


@dataclass(frozen=True, slots=True)
class Step:
    time: float
    step: int
    world: int


def samples_at(steps: Sequence[Step], moment: float) -> int:
    """Return the samples, until that time, of the steps that count in the end: one that was made
    again counts when it was made last, and what came after it before doesn't."""
    counting: list[Step] = []
    for one in steps:
        while counting and counting[-1].step >= one.step:
            counting.pop()
        counting.append(one)
    return BATCH * sum(one.world for one in counting if one.time <= moment)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    time: float
    away: float
    """Share of all nodes' seconds that nodes were away for, so far."""


def lost_seconds(
    steps: Sequence[Step], faults: Sequence[Fault], end: Fault, calm: float
) -> dict[str, float]:
    """Return, by kind, the mean over its faults of the seconds of undisturbed training that are
    missing between a fault and the next, less those in which a node was away.

    Args:
        end: of the time under faults.
        calm: samples a second of undisturbed training.
    """
    found: dict[str, list[float]] = {}
    for one, after in pairwise([*faults, end]):
        made = samples_at(steps, after.time) - samples_at(steps, one.time)
        there = after.time - one.time - (after.away - one.away)
        found.setdefault(one.kind, []).append(there - made / calm)
    return {kind: statistics.mean(lost) for kind, lost in sorted(found.items())}


class Run:
    """One system's job, from its start to its end."""

    def __init__(self, box: Box, chance: random.Random, away: tuple[float, float]) -> None:
        self.box, self.chance, self.away = box, chance, away
        self.done: Counter[str] = Counter()
        self.gone: dict[int, float] = {}
        """Nodes that are away, and until when."""
        self.away_seconds = 0.0
        """Sum over all nodes."""
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._ledger: dict[str, object] = {}
        self._asked = self._looked = time.monotonic()
        self.began = time.monotonic()

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:8.2f} {text}", file=sys.stderr, flush=True)

    def start(self) -> None:
        """Raises SystemExit: it doesn't train with all of its ranks in time."""
        for node in range(self.box.count):
            self.box.start_node(node)
        end, world = time.monotonic() + START_SECONDS, self.box.count * self.box.ranks
        while not (steps := self.steps()) or steps[-1].world < world:
            if time.monotonic() > end:
                raise SystemExit(
                    f"expected {world} ranks to train within {START_SECONDS:.0f} s, found "
                    f"{steps[-1:]}; with fewer cores give fewer --nodes or --ranks\n"
                    f"{self.box.logs()[-4000:]}"
                )
            self.pass_time(1)
        self.tell(f"{world} ranks train")

    def become_whole(self) -> None:
        """Wait until all ranks train, for so long as a start may take."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            self.pass_time(2)
            steps = [step for step in self.steps() if step.time > time.time() - 2]
            if steps and steps[-1].world == self.box.count * self.box.ranks:
                return
        self.tell("not whole again: what comes now counts as undisturbed all the same")

    def steps(self) -> list[Step]:
        found = []
        for path in self.box.folder.glob("steps-*"):
            for line in path.read_text().splitlines():
                words = line.split()
                if len(words) == 3:
                    found.append(Step(float(words[0]), int(words[1]), int(words[2])))
        return sorted(found, key=lambda step: step.time)

    def pass_time(self, seconds: float) -> None:
        """Let the job run; undo what is due, make anew what has ended."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self.away_seconds += len(self.gone) * (now - self._looked)
            self._looked = now
            due = [undo for at, undo in self._later if at <= now]
            self._later = [(at, undo) for at, undo in self._later if at > now]
            for undo in due:
                undo()
            for node, until in list(self.gone.items()):
                if until <= now:
                    del self.gone[node]
                    self.box.start_node(node)
            for node, agent in list(self.box.agents.items()):
                if agent.poll() is not None:
                    self.tell(f"node {node} ended with {agent.poll()}, is made anew")
                    self.box.kill_node(node)
                    self.box.start_node(node)
            self.box.mend()
            if now > self._asked + LEDGER_SECONDS:
                self._asked = now
                self.ledger()
            time.sleep(LOOK_SECONDS)

    def moment(self) -> Fault:
        """Return now, and how long nodes have been away, as the beginning of a fault."""
        return Fault("", time.time(), self.away_seconds / self.box.count)

    def ledger(self) -> dict[str, int]:
        """Return the milliseconds of each use so far; empty where there is no ledger."""
        self._ledger = kept(self._ledger, read(self.box.ledger()))
        return summed([self._ledger]) if self._ledger else {}

    # Faults; each says whether it could be done

    def break_it(self, kind: str) -> bool:
        node = self.chance.choice(sorted(self.box.agents))
        match kind:
            case "kill worker":
                return self._send(signal.SIGKILL, self._worker(node))
            case "stop":
                worker, seconds = self._worker(node), self.chance.uniform(0.5, 5)
                self._later.append(
                    (time.monotonic() + seconds, lambda: self._send(signal.SIGCONT, worker))
                )
                return self._send(signal.SIGSTOP, worker)
            case "partition":
                return self._part(node, self.chance.uniform(0.5, 5))
            case "node down":
                return self._lose(node)
            case _:
                host = self.box.host()
                if host not in self.box.agents:
                    return False
                processes = self.box.coordinator(host)
                if self.box.agents[host].pid in processes:
                    return self._lose(host)
                sent = [self._send(signal.SIGKILL, pid) for pid in processes]
                return any(sent)

    def _lose(self, node: int) -> bool:
        self.box.kill_node(node)
        self.gone[node] = time.monotonic() + self.chance.uniform(*self.away)
        return True

    def _part(self, node: int, seconds: float) -> bool:
        if not isinstance(self.box, OurBox):
            return False
        network = self.box.network
        network.part({node})
        self._later.append((time.monotonic() + seconds, lambda: network.join({node})))
        return True

    def _worker(self, node: int) -> int | None:
        workers = self.box.workers(node)
        return self.chance.choice(sorted(workers)) if workers else None

    def _send(self, number: signal.Signals, pid: int | None) -> bool:
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)
                return True
        return False


def measure(system: str, given: argparse.Namespace) -> Result:
    chance = random.Random(given.seed)
    kinds = [kind for kind in KINDS if kind in (given.kind or KINDS)]
    if not SYSTEMS[system].partitions:
        kinds = [kind for kind in kinds if kind != "partition"]
    if not kinds:
        raise SystemExit(f"{system} knows no {given.kind}: expected another --kind or --system")
    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        box = SYSTEMS[system](Path(folder), given.nodes, given.ranks, given.step_seconds)
        try:
            run = Run(box, chance, given.away)
            run.start()
            run.pass_time(given.settle)
            marks = [time.time()]
            run.pass_time(given.calm)
            marks.append(time.time())
            before, run.away_seconds = run.ledger(), 0.0
            faults: list[Fault] = []
            for number in range(given.faults):
                kind = chance.choice(kinds)
                began = run.moment()
                while not run.break_it(kind):
                    run.pass_time(LOOK_SECONDS)
                    kind, began = chance.choice(kinds), run.moment()
                faults.append(replace(began, kind=kind))
                run.done[kind] += 1
                run.tell(f"{number + 1:3} {kind}, {box.host()} hosts")
                run.pass_time(marks[1] + seconds * (number + 1) / given.faults - time.time())
            marks.append(time.time())
            after, away, end = run.ledger(), run.away_seconds, run.moment()
            run.become_whole()
            run.pass_time(given.settle)
            marks.append(time.time())
            run.pass_time(given.calm)
            marks.append(time.time())
            steps = run.steps()
            pauses = [pause for _, pause in box.pauses.values()] if isinstance(box, OurBox) else []
            if isinstance(box, OurBox):
                for number, (why, pause) in sorted(box.pauses.items()):
                    run.tell(f"round {number}, for {why}: {pause:.2f} s without a step")
        finally:
            box.close()
    at = [samples_at(steps, mark) for mark in marks]
    calm = (at[1] - at[0] + at[4] - at[3]) / (marks[1] - marks[0] + marks[4] - marks[3])
    broken = (at[2] - at[1]) / (marks[2] - marks[1])
    gone = away / (marks[2] - marks[1]) / given.nodes
    used = {use: after[use] - before.get(use, 0) for use in after}
    return Result(
        system=system,
        faults=dict(sorted(run.done.items())),
        minutes=given.minutes,
        ranks=given.nodes * given.ranks,
        calm=calm,
        broken=broken,
        away=gone,
        throughput=broken / (calm * (1 - gone)),
        goodput=share(used) if used else None,
        milliseconds=used,
        lost=lost_seconds(steps, faults, end, calm),
        pauses=pauses,
    )


def _table(results: Sequence[Result]) -> Table:
    table = Table(
        "system",
        "faults",
        "undisturbed (samples/s)",
        "under faults",
        "away",
        "throughput",
        "goodput (ledger)",
    )
    for one in results:
        table.add_row(
            one.system,
            str(sum(one.faults.values())),
            f"{one.calm:.0f}",
            f"{one.broken:.0f}",
            f"{one.away:.1%}",
            f"{one.throughput:.1%}",
            "–" if one.goodput is None else f"{one.goodput:.1%}",
        )
    return table


def _installed() -> list[str]:
    return [name for name, box in SYSTEMS.items() if box is not TorchftBox or FOLDER.is_dir()]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4, help="of each node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-seconds", type=float, default=0.2, help="that a step sleeps")
    parser.add_argument("--calm", type=float, default=60, help="seconds before, and after")
    parser.add_argument("--settle", type=float, default=20, help="seconds that count for nothing")
    parser.add_argument(
        "--away",
        type=float,
        nargs=2,
        default=(5, 15),
        metavar=("LEAST", "MOST"),
        help="seconds until another node comes for a lost one",
    )
    parser.add_argument("--kind", action="append", choices=KINDS, help="of faults")
    parser.add_argument("--system", action="append", choices=SYSTEMS)
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # all ends with us
    # What loses its parent becomes our child, and so ends with its node.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    results = []
    for system in given.system or _installed():
        results.append(found := measure(system, given))
        print(f"{system}: {found.throughput:.1%} of the throughput", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps([asdict(one) for one in results], indent=2))
        return 0
    Console().print(_table(results))
    for one in results:
        print(f"{one.system}: {one.faults}")
        lost = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in one.lost.items())
        print(f"lost by a fault (mean): {lost}")
        if one.goodput is not None:
            print(f"milliseconds of processes: {one.milliseconds}")
        if one.pauses:
            pause = statistics.median(one.pauses)
            print(f"{len(one.pauses)} changes, without a step for {pause:.2f} s each (median)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
