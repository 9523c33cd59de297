"""Training jobs under random faults, by a seed: nothing lost, nothing repeated, the same model.

    python -m tests.elastic_trainer.fault_harness --faults 200 --seed 7

torchrun agents on loopback train a small ElasticLoop; agents that end are started anew, as an
operator would. Between faults the job has moments or longer; now and then it must become whole.
After some faults the script comes to its end, which fails, too; the next job trains the same model
further. Afterwards the record of what each rank took is replayed in one process.

With VOLCANO_ELASTIC_SUCCESSION=0 agents elect no other host of the coordinator, and no fault takes
its node away.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tests.elastic_trainer.fault_job import (
    NODES,
    TABLES,
    TAIL_FAULT,
    FaultyJob,
    FaultyNursery,
)
from tests.elastic_trainer.fault_kinds import Faults
from tests.elastic_trainer.fault_oracle import (
    check_commits,
    check_last_step,
    check_model,
    check_samples,
)
from tests.elastic_trainer.fault_tail import RESTARTS, Tail, choose
from tests.elastic_trainer.loop.devices import VARIABLE
from tests.elastic_trainer.torchrun_job import children, gone

WHOLE_SECONDS = 60.0
"""For a job left alone to become whole."""
COMMITS_SEEN_EVERY = 0.03
LATE = "did not come out of round"
"""Said by an agent whose worker was not broken out of its round's collectives."""
FAULTS_A_JOB = 20
ENOUGH_RESTARTS = 1000
_PR_SET_CHILD_SUBREAPER = 36


class Harness:
    def __init__(
        self, job: FaultyJob, chance: random.Random, fixed: bool, only: Collection[str] = ()
    ) -> None:
        self.job = job
        self.chance = chance
        self.fixed = fixed
        self.faults = Faults(job, chance, self.tell, fixed)
        if only:
            self.faults.keep(only)
        self.commits: set[tuple[int, int]] = set()
        """Run and step of each commit that was there to see."""
        self.done: Counter[str] = Counter()
        self.slowest = 0.0
        self.epochs = 0
        self._restarts = ENOUGH_RESTARTS
        self._began = time.monotonic()

    # ---- the world around the job

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.2f} {text}", flush=True)

    def pass_time(self, seconds: float) -> None:
        """Lets the job run; starts what has ended, undoes what is to last only so long."""
        wanted, agents = self.faults.wanted, self.job.agents
        end = time.monotonic() + seconds
        while True:
            self.faults.undo_due()
            self._see_commits()
            for index in sorted(wanted - self.faults.away):
                agent = agents.get(index)
                if agent is None or (agent.poll() is not None and self._ended(index)):
                    self._start(index)
            for index, agent in list(agents.items()):
                if index not in wanted and agent.poll() is not None:
                    del agents[index]
            if time.monotonic() >= end:
                return
            time.sleep(COMMITS_SEEN_EVERY)

    def _start(self, index: int) -> None:
        self.job.start(index, restarts=self._restarts)

    def _ended(self, index: int) -> bool:
        self.tell(f"node {index} ended with {self.job.agents[index].returncode}")
        return True

    def _see_commits(self) -> None:
        self.commits.update(commit.identity for commit in self.faults.storage.commits())

    def become_whole(self) -> None:
        """Left alone, all the nodes that should be there train together."""
        began = time.monotonic()
        first: int | None = None
        while time.monotonic() < began + WHOLE_SECONDS:
            self.pass_time(0.05)
            told = self.job.status()
            if told["phase"] == "running" and told["world"] == len(self.faults.wanted):
                first = told["step"] if first is None else first
                if told["step"] > first + 5:
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    return
            else:
                first = None
        for node in self.job.agents:
            worker = self.faults.process(node, "ve-worker")
            self.tell(f"node {node}: worker {worker}, threads {threads(worker)}")
            self.faults.send(signal.SIGUSR1, worker)
        self.pass_time(0.5)
        raise AssertionError(
            f"not whole after {WHOLE_SECONDS} s: {len(self.faults.wanted)} nodes wanted; "
            f"{json.dumps({**told, 'rounds': told.get('rounds', [])[-3:]})}"
        )

    # ---- the whole story

    def run(self, faults: int) -> None:
        while self.done.total() < faults:
            self._one_job(min(FAULTS_A_JOB, faults - self.done.total()) - 1)
        self.check()

    def _one_job(self, faults: int) -> None:
        """So many faults in the loop, and one in the script's end."""
        self.become_whole()
        self.tell("whole")
        end = self.done.total() + faults
        since = 0
        while self.done.total() < end:
            fault = self.chance.choice(self.faults.kinds)
            if fault():
                self.done[fault.__name__] += 1
                since += 1
                self.tell(f"{self.done.total():3} {fault.__name__}")
            if since and self.chance.random() < 0.25:
                since = 0
                self.become_whole()
                self.tell(f"whole, {len(self.faults.wanted)} nodes")
            self.pass_time(self.chance.choice((0, 0.02, 0.1, 0.5, 1.5)) * self.chance.random())
        self.become_whole()
        while self.faults.lasting:
            self.pass_time(COMMITS_SEEN_EVERY)
        self._see_leavers_out()
        self._end()

    def _see_leavers_out(self) -> None:
        """Wait until those that were told to leave have: they aren't to succeed."""
        end = time.monotonic() + WHOLE_SECONDS
        while leaving := self.job.agents.keys() - self.faults.wanted:
            assert time.monotonic() < end, f"told to leave, and still there: {sorted(leaving)}"
            self.pass_time(COMMITS_SEEN_EVERY)

    def _end(self) -> None:
        fault = choose(self.chance)
        self.done[fault.name] += 1
        self.tell(f"{self.done.total():3} {fault.name}, rank {fault.rank}")
        if fault.always:
            # Agents that were started with more restarts would not come to their end.
            self._restarts = RESTARTS
            agents = [self.job.agents[index] for index in sorted(self.faults.wanted)]
            self.faults.send(signal.SIGTERM, *(agent.pid for agent in agents))
            for agent in agents:
                agent.wait(30)
        self.become_whole()
        tail = Tail(self.job, fault, self._start, self.tell, self.fixed)
        newest = max(
            (path.read_text().splitlines()[-1].split() for path in self._step_logs()),
            key=lambda words: int(words[0]),
        )
        self.epochs = int(newest[1]) + 2
        enough, told = self.job.folder / "enough", self.job.folder / "enough.new"
        told.write_text(str(self.epochs))
        told.rename(enough)
        tail.play(self.chance)
        self._see_commits()
        check_last_step(
            self.job.folder, check_samples(self.job.folder, self.epochs, self.job.shards)
        )
        enough.unlink()
        (self.job.folder / TAIL_FAULT).unlink(missing_ok=True)
        self._restarts = ENOUGH_RESTARTS

    def _step_logs(self) -> list[Path]:
        return [path for path in self.job.folder.glob("steps-*") if path.stat().st_size]

    def check(self) -> None:
        report = check_samples(self.job.folder, self.epochs, self.job.shards)
        check_commits(self.job.folder, self.commits, self.faults.damaged)
        # Two ranks' gradients are summed in one order only, but for those of a row.
        exact = self.fixed and self.job.model is not TABLES
        tolerance = 0.0 if exact else 1e-6
        # Not before here, as forks of a process that has used CUDA could not use it.
        device = os.environ[VARIABLE]
        model = check_model(
            self.job.folder, report, tolerance, self.job.shards, self.job.model, device
        )
        print(f"{dict(sorted(self.done.items()))}")
        print(
            f"{self.done.total()} faults, {report.runs} runs, {report.steps} steps: {report.lost} "
            f"samples lost, {report.repeated} repeated, {report.undone} undone and done again; "
            f"0 of {len(self.commits)} commits lost; slowest to be whole {self.slowest:.1f} s; "
            f"parameters differ from one process' by {model:.1e}"
        )
        late = sum(log.read_text().count(LATE) for log in self.job.folder.glob("agent-*.log"))
        print(f"{late} workers did not come out of a round that was over, and were started anew")


def threads(pid: int | None) -> list[str]:
    """Name, state and, in the kernel, the wait of each of a process's threads."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            found.append(f"{name} {rest.split()[0]} {(task / 'wchan').read_text()}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixed", action="store_true", help="two nodes, never more nor fewer")
    parser.add_argument("--stream", action="store_true", help="shards, instead of a dataset")
    parser.add_argument("--tables", action="store_true", help="a model with embedding tables")
    parser.add_argument("--only", nargs="+", metavar="FAULT", help="kinds, as they are printed")
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the model")
    options = parser.parse_args()
    if options.device == "cuda" and options.tables:
        parser.error("--device cuda goes without --tables, whose rows are on the CPU")
    os.environ[VARIABLE] = options.device  # nodes have it from here
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # all ends with us
    # What loses its parent becomes our child, so that nothing left behind goes unseen.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    nursery = FaultyNursery()
    # Commits that were damaged on purpose would be warned about at each look.
    logging.getLogger("elastic_trainer.store.storage").setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        nodes = "2:2" if options.fixed else f"1:{NODES}"
        job = FaultyJob(folder, nursery, nodes, stream=options.stream, tables=options.tables)
        try:
            chance = random.Random(options.seed)
            Harness(job, chance, options.fixed, options.only or ()).run(options.faults)
            time.sleep(0.5)
            left = [
                name
                for name, pid in children(os.getpid()).items()
                if not gone(pid) and pid != nursery.pid
            ]
            assert not left, f"left behind: {left}"
        except BaseException:
            if options.folder is None:
                print(job.logs())
            raise
        finally:
            job.close()
            nursery.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
