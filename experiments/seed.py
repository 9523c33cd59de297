"""E5: two jobs of 175 CPUs on 320, the second 300 s after the first (ElasticDL's experiment 1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.source import Source
from experiments.table import markdown, verdict
from experiments.trial import Result, Scheduling, Trial, run_all
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.curve import amdahl
from volcano_elastic.simulator.trace import TraceJob

CPUS, SIZE, APART, LENGTH = 320, 175, 300.0, 650.0
PUBLISHED = 1100.0


@dataclass(frozen=True, slots=True)
class Case:
    label: str
    least: int = 44
    most: int = SIZE
    cpus: int = CPUS
    pause: float = 0.0

    def jobs(self) -> list[TraceJob]:
        curve = amdahl(0.0, CPUS)
        return [
            TraceJob(name, "default", at, SIZE, SIZE * LENGTH, curve, self.least, self.most)
            for name, at in (("older", 0.0), ("newer", APART))
        ]

    def trial(self, scheduling: Scheduling) -> Trial:
        # As many nodes of equal size as make exactly that many CPUs.
        per_node = next(n for n in (16, 14, 1) if self.cpus % n == 0 or n == 1)
        config = SimulationConfig(self.cpus // per_node, per_node, resource="cpu", pause=self.pause)
        return Trial(self.label, {"": self.jobs()}, config, scheduling)

    @property
    def oracle(self) -> float:
        """Seconds to the end of both when the older keeps its size, T = 2D - (f/d)(D - τ) with
        d = 175, f = C - d; or, where one job can fill the cluster, all work over the capacity."""
        if self.most >= self.cpus:
            return 2 * SIZE * LENGTH / self.cpus
        left = self.cpus - SIZE
        return 2 * LENGTH - left / SIZE * (LENGTH - APART)


CASES = (
    Case("min 44"),
    Case("newcomer's min 150 of 145 free", least=150),
    Case("min 44, 298 of 320 usable", cpus=298),
    Case("min 44, pause 5 s", pause=5.0),
    Case("min 150, pause 5 s", least=150, pause=5.0),
    Case("min 44, max 320", most=CPUS),
)
SHOWN = ("rigid gangs", CASES[0].label, CASES[1].label)
"""In the picture."""


def section(source: Source, processes: int, pictures: Path | None = None) -> str:
    rigid, *elastic = run_all(
        [CASES[0].trial(Scheduling.RIGID), *(c.trial(Scheduling.ELASTIC) for c in CASES)],
        processes,
    )
    rows = [["rigid gangs", *_cells(rigid), "1,300"]]
    verdicts = ""
    for case, result in zip(CASES, elastic, strict=True):
        rows.append([case.label, *_cells(result), f"{case.oracle:,.0f}"])
        pauses = case.pause * max(run.resizes for run in result.first.runs)
        if case.most >= case.cpus:
            continue
        limit = round(1.03 * case.oracle + pauses, 1)
        verdicts += verdict(f"{case.label}: all done after", result.found.makespan, limit)
    head = ["", "all done after, s", "mean completion, s", "newer waits, s", "resizes", "oracle, s"]
    text = (
        markdown(head, rows)
        + f"\nPublished: {PUBLISHED:,.0f} s elastic, 1,300 s rigid. Targets are 1.03 × the oracle, "
        "plus the pauses of the job that had most.\n\n" + verdicts
    )
    if pictures is not None:
        from experiments.picture import save, two_jobs

        cases = {"rigid gangs": rigid.first.runs, **{r.trial.label: r.first.runs for r in elastic}}
        shown = {label: cases[label] for label in SHOWN}
        text += save(two_jobs(shown, CPUS), pictures, "seed", "CPUs held by each of the two jobs")
    return text


def _cells(result: Result) -> list[str]:
    runs = result.first.runs
    return [
        f"{result.found.makespan:,.0f}",
        f"{result.found.mean_completion:,.0f}",
        f"{runs[1].wait:,.0f}",
        f"{sum(run.resizes for run in runs)}",
    ]
