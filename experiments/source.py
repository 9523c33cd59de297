"""The traces: real ones, which are no part of this repository, or small generated ones."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.simulator.curve import CurveTable, amdahl, read_table
from volcano_elastic.simulator.elasticity import DEFAULT, Elasticity
from volcano_elastic.simulator.queue import read_queues
from volcano_elastic.simulator.trace import TraceJob, read_trace
from volcano_elastic.snapshot.snapshot import Queue

EFFICIENT = "min=1,max=efficient(0.5)"
"""For the Pollux set: as far as the curve is worth it."""

MOVIELENS = Path("build/movielens/recbole/dataset_example/ml-100k")


class MissingTraces(FileNotFoundError):
    """The folder of traces is not there, or not complete."""


@dataclass(frozen=True, slots=True)
class Source:
    folder: Path | None
    """None: generated workloads, small enough for a test."""
    movielens: Path = MOVIELENS

    def _lines(self, name: str) -> list[str]:
        assert self.folder is not None
        path = self.folder / name
        try:
            raw = path.read_bytes()
            return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode().splitlines()
        except OSError as error:
            raise MissingTraces(
                f"{path}: {error.strerror}; the experiments need the traces of Philly and Pollux, "
                "which are no part of this repository: give their folder with --traces, or "
                "--quick for small generated ones"
            ) from error

    def ratings(self) -> Path:
        """The folder of MovieLens ml-100k."""
        for kind in ("inter", "user", "item"):
            if not (path := self.movielens / f"ml-100k.{kind}").is_file():
                raise MissingTraces(
                    f"{path}: no such file; MovieLens ml-100k is no part of this repository: "
                    "`make movielens` gets it, --movielens names another folder, and --quick takes "
                    "generated ratings"
                )
        return self.movielens

    @property
    def real(self) -> bool:
        return self.folder is not None

    def pollux_nodes(self) -> tuple[int, int]:
        """(nodes, GPUs a node) of the cluster that the set was made for."""
        return (16, 4) if self.real else (4, 4)

    def pollux(self, elastic: str = EFFICIENT) -> dict[str, list[TraceJob]]:
        nodes, per_node = self.pollux_nodes()
        if self.folder is None:
            return {name: _generated(int(name), nodes * per_node, elastic) for name in ("1", "2")}
        return read_trace(
            self._lines("pollux_jobs.csv"),
            "pollux_jobs.csv",
            cluster=nodes * per_node,
            elasticity=Elasticity(elastic),
            table=self._table(),
        )

    def _table(self) -> CurveTable:
        return read_table(self._lines("pollux_speed.csv"), "pollux_speed.csv")

    def published(self) -> dict[str, float]:
        """Mean completion of Pollux's eight workloads by policy, as its authors simulated it."""
        if self.folder is None:
            return {}
        rows = [line.split(",") for line in self._lines("pollux_published.csv")[1:]]
        return {
            policy: fmean(float(row[3]) for row in rows if row[:2] == [policy, "1.0"])
            for policy in sorted({row[0] for row in rows})
        }

    def philly(self, total: int, elastic: str = DEFAULT) -> dict[str, list[TraceJob]]:
        if self.folder is None:
            return {"": _generated(3, total, elastic, queues=("q", "r"))}
        return read_trace(
            self._lines("philly_week.csv"),
            "philly_week.csv",
            cluster=total,
            elasticity=Elasticity(elastic),
        )

    def philly_months(
        self, total: int, elastic: str, queues: Sequence[str], begin: float, end: float
    ) -> list[TraceJob]:
        """The jobs of some queues that were submitted between two times, in seconds of the trace,
        but for those below 5 minutes and above 1,000 GPU-hours, as in `philly`."""
        if self.folder is None:
            return _generated(5, total, elastic, queues)
        name = "philly_jobs.csv.gz"
        head, *lines = self._lines(name)
        wanted = []
        for line in lines:
            _, submit, queue, gpus, duration = line.split(",")
            area = int(gpus) * int(duration)
            if queue in queues and begin <= int(submit) < end and int(duration) >= 300:
                wanted += [line] if area < 3_600_000 and int(gpus) <= total else []
        found = read_trace([head, *wanted], name, cluster=total, elasticity=Elasticity(elastic))
        return found[""]

    def philly_jobs(self) -> list[tuple[float, str, int, float]]:
        """Submission, queue, GPUs and seconds of each job of Philly, but for those below 5
        minutes."""
        if self.folder is None:
            rng = random.Random(11)
            return [
                (
                    rng.uniform(0, 4 * 7 * 86_400.0),
                    rng.choice("qr"),
                    rng.choice([1, 1, 1, 2, 4, 8]),
                    300 + 3000 * math.exp(rng.gauss(0.5, 1.0)),
                )
                for _ in range(1200)
            ]
        rows = [line.split(",") for line in self._lines("philly_jobs.csv.gz")[1:]]
        return [(float(r[1]), r[2], int(r[3]), float(r[4])) for r in rows if int(r[4]) >= 300]

    def philly_sizes(self) -> Sequence[int]:
        """Clusters in GPUs, 8 a node."""
        return (512, 384) if self.real else (32, 24)

    def philly_queues(self, total: int) -> tuple[Queue, ...]:
        if self.folder is None:
            half = {GPU: 1000 * total // 2}
            return (Queue("q", deserved=half), Queue("r", deserved=half))
        name = "philly_week_queues.csv"
        return read_queues(self._lines(name), name, resource=GPU, total=total)


def _generated(
    seed: int, cluster: int, elastic: str, queues: Sequence[str] = ("default",)
) -> list[TraceJob]:
    """Forty jobs that would keep the cluster busy if they scaled perfectly."""
    rng = random.Random(seed)
    stretch, made = Elasticity(elastic), []
    submit = 0.0
    for i in range(40):
        gpus = rng.choice([1, 1, 1, 2, 4, 8])
        curve = amdahl(rng.choice([0.01, 0.036, 0.2]), cluster)
        seconds = 300 * math.exp(rng.gauss(0.5, 1.0))
        sizes = stretch(gpus, cluster, curve)
        work = seconds * curve[gpus]
        made.append(
            TraceJob(f"j{i}", rng.choice(queues), submit, gpus, work, curve, sizes.min, sizes.max)
        )
        submit += round(rng.expovariate(1.1 * cluster / (2.8 * 820)))
    return made
