"""Measures how long training pauses when a worker or node is lost, leaves or joins; beside
torchrun's c10d.

    python -m benchmarks.trainer [--tries N] [--c10d-tries N] [--event EVENT ...]
                                 [--system SYSTEM ...] [--megabytes N] [--nodes N] [--json]

Three torchrun agents (--nodes) with a worker each, on loopback, all in this machine. The
coordinator, and c10d's store, are worker 0's node's; the other events are the last node's. `loop`
trains by ElasticLoop, `sharded` by the same with FSDP2, whose states go to memory as often as costs
under 1 % (SHARDED_EVERY=N in the environment: every N steps), `checkpointer` in a loop of its own
with ElasticDataset and Checkpointer; `c10d` saves by torch.save and runs under torchrun's own
rendezvous, with its defaults but for two, without which it may never come back: its store isn't
shared with the workers (TORCH_DISABLE_SHARE_RDZV_TCP_STORE), and collectives give up after 30 s
instead of 30 min. Each worker notes the time after each of its steps, 10 ms apart; figures are
medians of the tries, of which c10d gets one, as it takes a minute where a node is lost.

`next step`: from the event to the first step in a world that knows of it; for a leave or a join,
which nobody is surprised by, from the last step of the old world. `whole`: from the same to the
first step with all nodes: torchft's survivors make one step more without the newcomer, which gets
the state meanwhile. `lost`: steps done again. `step`: the median time of a step before the
event, which is part of both figures; `later`: of those after a leave or a join, in the new world.
`torchft`, where build/torchft has it, begins a rank anew as something like torchrun would; its
lighthouse is on no node, so none of these events takes it away:

    pip install --no-deps --target build/torchft torchft==0.2.0
    pip install --target build/torchft opentelemetry-sdk opentelemetry-exporter-otlp-proto-http

`nvrx` is the in-process wrapper of NVIDIA's resiliency extension, at intervals of 0.1 s in place of
its 1 s: it begins a function anew with those that are left, and nobody joins it. It is measured
where build/nvrx has it:

    pip install --no-deps --target build/nvrx nvidia-resiliency-ext
    pip install --target build/nvrx psutil packaging setproctitle defusedxml

--megabytes has the state that large, by an embedding of which a step uses little, but whose
gradients go over the network all the same.

Each try is told on stderr as it begins and ends, and why one came to nothing. A run that is ended
by SIGTERM or Ctrl-C prints the rows that it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.endpoint import free_endpoint
from benchmarks.trainer_scripts import C10D, NVRX, SCRIPTS, SYSTEMS, TORCHFT
from benchmarks.trainer_torchft import FOLDER, NODE, start_lighthouse

NODES = 3
LATER_STEPS = 5
START_SECONDS = 120.0
LIMIT_SECONDS = 60.0
C10D_LIMIT_SECONDS = 240.0
"""After so long a system is taken not to recover from an event."""
NVRX_FOLDER = Path(__file__).parents[1] / "build" / "nvrx"
SECONDS_A_MEGABYTE = 0.3
"""More for a large state, of which a step alone may take seconds."""
SETTLE_SECONDS = 1.0
LAST_NODE = ("node killed", "node silent")
FIRST_NODE = ("worker 0's node killed", "worker 0's node silent")
EVENTS = ("worker killed", *LAST_NODE, *FIRST_NODE, "leave", "join")
_ANNOUNCED = ("leave", "join")


@dataclass(frozen=True, slots=True)
class Step:
    time: float
    step: int
    rank: int
    world: int
    round: int
    pid: int


@dataclass(frozen=True, slots=True)
class Try:
    next_step: float | None
    whole: float | None
    lost: int | None
    step: float | None = None
    later: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    event: str
    system: str
    tries: int
    recovered: int
    """Tries in which a next step came within the limit."""
    next_step_seconds: float | None
    whole_seconds: float | None
    lost_steps: int | None
    """The most of a try."""
    step_seconds: float | None
    """The median time of a step before the event."""
    later_seconds: float | None
    """That of the first ones in the new world, of a leave or a join."""
    ratio: float | None
    """How many times as long c10d took for its next step; at least, where it never did."""
    load: float
    """Load average a CPU, of the last minute."""


class NotWholeError(Exception):
    """A job's nodes don't train together; the text says what their logs end with."""


class Job:
    """One system's agents, and what their workers noted."""

    def __init__(
        self, system: str, folder: Path, nodes: int, megabytes: int = 0, most: int = NODES
    ) -> None:
        self.system = system
        self.megabytes = megabytes
        self.nodes = most
        """That the job has when it is whole."""
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(SCRIPTS[system])
        self.port = free_endpoint()
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._beside = []
        if system == TORCHFT:
            try:
                self._beside.append(start_lighthouse(folder, self.port))
            except RuntimeError as error:
                raise NotWholeError(str(error)) from error
        for node in range(nodes):
            self.start(node)

    def start(self, node: int) -> None:
        backend = "c10d" if self.system == C10D else "volcano-elastic"
        environment = {
            **os.environ,
            "VOLCANO_ELASTIC_POD_INDEX": str(node),
            "VOLCANO_ELASTIC_POD_IP": f"127.0.0.{node + 1}",
            "VOLCANO_ELASTIC_JOB": "benchmark/trainer",
            "VOLCANO_ELASTIC_PEERS": ",".join(
                f"127.0.0.{index + 1}" for index in range(self.nodes)
            ),
            "OMP_NUM_THREADS": "1",
            **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self.system == C10D else {}),
        }
        script = [str(self.script), str(self.folder), str(self.megabytes)]
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", f"1:{self.nodes}", "--nproc-per-node", "1", "--max-restarts", "100"),
            *("--rdzv-backend", backend, "--rdzv-id", "benchmark"),
            *("--rdzv-endpoint", f"127.0.0.1:{self.port}"),
            *script,
        ]
        if self.system == TORCHFT:
            environment["PYTHONPATH"] = str(FOLDER)
            environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{self.port}"
            command = [sys.executable, "-c", NODE, *script]
        if self.system == NVRX:
            place = {"RANK": node, "LOCAL_RANK": node, "WORLD_SIZE": self.nodes}
            environment |= {name: str(value) for name, value in place.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
            environment["PYTHONPATH"] = str(NVRX_FOLDER)
            command = [sys.executable, *script]
        with open(self.folder / f"agent-{node}.log", "ab") as log:
            self.agents[node] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def steps(self) -> list[Step]:
        found = []
        for path in self.folder.glob("steps-*"):
            for line in path.read_text().splitlines():
                words = line.split()
                if len(words) == 5:
                    numbers = [int(word) for word in words[1:]]
                    found.append(Step(float(words[0]), *numbers, pid=int(path.name[6:])))
        return sorted(found, key=lambda step: step.time)

    def whole(self, world: int) -> list[Step]:
        """Waits until `world` nodes have trained together for a while; all the steps so far.

        Raises NotWholeError if they don't.
        """
        limit = START_SECONDS + self.megabytes * SECONDS_A_MEGABYTE
        end = time.monotonic() + limit
        while time.monotonic() < end:
            steps = self.steps()
            seconds = max(SETTLE_SECONDS, 8 * (_step_seconds(steps) or 0.0))
            recent = [step for step in steps if step.time > time.time() - seconds]
            places = {(step.rank, step.world) for step in recent}
            if len(recent) > 5 * world and places == {(rank, world) for rank in range(world)}:
                return steps
            time.sleep(0.1)
        logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
        raise NotWholeError(
            f"expected {world} nodes to train together within {limit:.0f} s, found steps of "
            f"{sorted(places)} (rank, world) lately; their logs end with:\n{logs}"
        )

    def processes(self, node: int) -> list[int]:
        agent = self.agents[node].pid
        return [agent, *_descendants(agent)]

    def close(self) -> None:
        for node in self.agents:
            for pid in self.processes(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.agents[node].wait()
        for process in self._beside:
            process.kill()
            process.wait()


def once(job: Job, event: str, number: int) -> Try:
    """Makes the event happen to a job that is whole, and measures."""
    nodes = job.nodes
    before = job.whole(nodes - 1 if event == "join" else nodes)
    known = {step.pid for step in before}
    last_round = before[-1].round
    last = {step.rank: step for step in before}
    node = 0 if event in FIRST_NODE else nodes - 1
    gone: set[int] = set()
    at = time.time()
    if event == "worker killed":
        gone = {last[number % nodes].pid}
        os.kill(*gone, signal.SIGKILL)
    elif event in LAST_NODE + FIRST_NODE:
        gone = set(job.processes(node))
        for pid in gone:
            os.kill(pid, signal.SIGKILL if event.endswith("killed") else signal.SIGSTOP)
    elif event == "leave":
        job.agents[node].send_signal(signal.SIGTERM)
    else:
        job.start(node)
    wants_whole = event in ("worker killed", "join") and job.system != NVRX
    deadline = time.monotonic() + _limit(job.system) + job.megabytes * SECONDS_A_MEGABYTE
    while True:
        after = [
            step
            for step in job.steps()
            if step.time > at and (step.pid not in known or step.round > last_round)
        ]
        whole = [step for step in after if step.world == nodes] if wants_whole else []
        enough = _steps_of_one(after) if event in _ANNOUNCED else after
        least = LATER_STEPS if event in _ANNOUNCED else 1
        if time.monotonic() > deadline or (len(enough) >= least and (whole or not wants_whole)):
            break
        time.sleep(0.05)
    if not after:
        return Try(None, None, None)
    old = [step for step in job.steps() if step.pid in known and step.round <= last_round]
    newest = max(step.step for step in old)
    began = max(step.time for step in old) if event in _ANNOUNCED else at
    return Try(
        after[0].time - began,
        whole[0].time - began if whole else None,
        max(0, newest + 1 - after[0].step),
        _step_seconds(before),
        _step_seconds(after) if event in _ANNOUNCED else None,
    )


def _steps_of_one(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of whoever made the last one."""
    return [step for step in steps if step.pid == steps[-1].pid]


def _step_seconds(steps: Sequence[Step]) -> float | None:
    """Return the median time between the last steps of whoever made the last one."""
    times = [step.time for step in _steps_of_one(steps)][-9:]
    return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else None


def measure(
    system: str,
    event: str,
    tries: int,
    megabytes: int,
    most: int = NODES,
    say: Callable[[str], None] = lambda _: None,
) -> list[Try]:
    """Return the tries of an event; fewer where the job's nodes never trained together.

    Args:
        say: told how each try begins and ends.
    """
    found: list[Try] = []
    while len(found) < tries:
        with tempfile.TemporaryDirectory() as folder:
            nodes = most - 1 if event == "join" else most
            try:
                job = Job(system, Path(folder), nodes, megabytes, most)
            except NotWholeError as error:
                say(f"{event}, {system}: {error}")
                return found
            try:
                while len(found) < tries:
                    say(f"{event}, {system}: try {len(found) + 1} of {tries}")
                    found.append(once(job, event, len(found)))
                    say(_told(found[-1], job))
                    fresh = system in (C10D, NVRX) or event in FIRST_NODE
                    if found[-1].next_step is None or fresh:
                        # The next try gets a fresh job: c10d's often can't become whole, and
                        # another node hosts the coordinator now.
                        break
                    if len(found) < tries:
                        _restore(job, event)
            except NotWholeError as error:
                say(f"{event}, {system}: {error}")
                return found
            finally:
                job.close()
    return found


def _told(one: Try, job: Job) -> str:
    if one.next_step is None:
        limit = _limit(job.system) + job.megabytes * SECONDS_A_MEGABYTE
        return f"  no step in a world that knows of it within {limit:.0f} s"
    return f"  next step {_text(one.next_step)} s, whole {_text(one.whole)} s"


def _restore(job: Job, event: str) -> None:
    """Bring the job back to what it was before the event."""
    node = job.nodes - 1
    if event == "worker killed":
        return
    for pid in job.processes(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.agents[node].wait()
    if event == "join":
        job.whole(node)
    else:
        job.start(node)


def rows(
    systems: Sequence[str],
    events: Sequence[str],
    tries: int,
    c10d_tries: int,
    megabytes: int,
    nodes: int = NODES,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    for event in events:
        peer: float | None = None
        # c10d first: the others' ratios are to it.
        for system in sorted(systems, key=lambda name: name != C10D):
            if system == NVRX and event == "join":  # nobody joins it
                continue
            times = c10d_tries if system == C10D else tries
            found = measure(system, event, times, megabytes, nodes, say)
            pauses = [one.next_step for one in found if one.next_step is not None]
            wholes = [one.whole for one in found if one.whole is not None]
            steps = [one.step for one in found if one.step is not None]
            later = [one.later for one in found if one.later is not None]
            lost = [one.lost for one in found if one.lost is not None]
            pause = statistics.median(pauses) if pauses else None
            if system == C10D:
                peer = _limit(system) if pause is None else pause
            yield Row(
                event,
                system,
                len(found),
                len(pauses),
                pause,
                statistics.median(wholes) if wholes else None,
                max(lost, default=None),
                statistics.median(steps) if steps else None,
                statistics.median(later) if later else None,
                peer / pause if peer and pause and system != C10D else None,
                os.getloadavg()[0] / (os.cpu_count() or 1),
            )


def _limit(system: str) -> float:
    return C10D_LIMIT_SECONDS if system == C10D else LIMIT_SECONDS


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def _text(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trainer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--c10d-tries", type=int, default=1)
    parser.add_argument("--event", action="append", choices=EVENTS)
    parser.add_argument("--system", action="append", choices=SYSTEMS)
    parser.add_argument("--megabytes", type=int, default=0, help="of the state")
    parser.add_argument("--nodes", type=int, default=NODES, help="of the whole job")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # agents end too
    found: list[Row] = []
    optional = {TORCHFT: FOLDER / "torchft", NVRX: NVRX_FOLDER / "nvidia_resiliency_ext"}
    there = [one for one in SYSTEMS if one not in optional or optional[one].is_dir()]
    systems, events = given.system or there, given.event or EVENTS
    for one in set(systems) - set(there):
        parser.error(
            f"expected {one} in {optional[one]}, found none: --help says how it gets there"
        )
    asked = (given.tries, given.c10d_tries, given.megabytes, given.nodes)
    try:
        for row in rows(systems, events, *asked, say):
            found.append(row)
    except (KeyboardInterrupt, SystemExit):
        say("ended by a signal: what follows are the events that were measured before")
        _show(found, as_json=given.json)
        raise
    _show(found, as_json=given.json)
    return 0 if all(row.recovered for row in found) else 1


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(found: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return
    table = Table(
        "event",
        "system",
        "recovered",
        "next step (s)",
        "whole (s)",
        "lost",
        "step (s)",
        "later (s)",
        "c10d /",
        "load",
    )
    for row in found:
        table.add_row(
            row.event,
            row.system,
            f"{row.recovered}/{row.tries}",
            _text(row.next_step_seconds),
            _text(row.whole_seconds),
            "–" if row.lost_steps is None else str(row.lost_steps),
            _text(row.step_seconds),
            _text(row.later_seconds),
            "" if row.ratio is None else f"{row.ratio:.0f}",
            f"{row.load:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
