"""Compares the decisions of two versions of the planner on the same snapshots.

    python -m benchmarks.decisions --old REV [--new REV] [--snapshots N] [--seed S]
                                   [--traces FOLDER] [--save FOLDER] [--json]

Half of the snapshots are random ones, on the way of worlds in which something changes and plans are
carried out or not (tests/queue_policy/random_snapshots.py), and half are recorded in two simulated
weeks, without queues and with them: Philly's where `--traces` names the traces' folder, else small
generated ones, which have fewer plans. Each is saved as `volcano-elastic snapshot` saves it, and
planned by the planner of REV's tree and by the working tree's (or `--new`'s), in processes of their
own: both plan what the old one reads, without fields that it doesn't know. `--save` keeps the first
example of each class for `volcano-elastic plan --snapshot`.

Where plans differ, classes of difference are counted by snapshot: in what is decided (sizes, pods
that leave or move, who is admitted, who is blocked), and in what is only said or remembered.

Exits 0 if all plans are equal, 1 if some differ, 2 if they can't be compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks import planner_at_tree
from benchmarks.plan_differences import Difference, differences
from experiments.source import MissingTraces, Source
from tests.queue_policy.random_snapshots import (
    everything,
    history,
    with_bad_nodes,
    with_pods,
    with_quotas,
)
from volcano_elastic.api import queue_policy
from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.simulation import simulate
from volcano_elastic.snapshot import snapshot as values
from volcano_elastic.snapshot.codec import Observation, encode
from volcano_elastic.snapshot.snapshot import Queue, Snapshot

ROOT = Path(__file__).parents[1]
STEPS = 5
"""Snapshots of one random world."""
PER_NODE = 8
NOT_THE_PLANNERS = tuple(f":!{name}" for name in ("tests", "docs", "trainer", "e2e"))
"""Most of a tree's files, which no planner reads."""
LONGEST = 200
"""Characters of an example's text."""


class CannotCompare(Exception):
    """Says which of the two has no plans, and why."""


@dataclass(frozen=True, slots=True)
class Sample:
    kind: str
    """`random`, `week` or `week by queue`."""
    number: int
    observed: Observation


@dataclass(slots=True)
class Class:
    snapshots: int
    example: str


@dataclass(slots=True)
class Tally:
    """Snapshots by how the two plans of each are alike."""

    equal: int = 0
    said: int = 0
    """Decides the same, and says or remembers something else."""
    decided: int = 0
    """Decides something else."""

    @property
    def total(self) -> int:
        return self.equal + self.said + self.decided


@dataclass(slots=True)
class Report:
    kinds: dict[str, Tally] = field(default_factory=dict)
    """Those that the old planner could not read are not among them."""
    unread: dict[str, int] = field(default_factory=dict)
    """Snapshots that it could not read, by what it said."""
    missing: tuple[str, ...] = ()
    """Fields of snapshots that it does not know."""
    decided: dict[str, Class] = field(default_factory=dict)
    said: dict[str, Class] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(tally.total for tally in self.kinds.values())

    @property
    def equal(self) -> int:
        return sum(tally.equal for tally in self.kinds.values())

    def note(self, sample: Sample, found: Iterable[Difference]) -> list[str]:
        """Count what differs in a snapshot; return the classes that it is the first of."""
        tally = self.kinds.setdefault(sample.kind, Tally())
        by_class = {each.what: each for each in reversed(list(found))}
        if not by_class:
            tally.equal += 1
        elif any(each.decided for each in by_class.values()):
            tally.decided += 1
        else:
            tally.said += 1
        new = []
        for what, each in by_class.items():
            classes = self.decided if each.decided else self.said
            if what in classes:
                classes[what].snapshots += 1
            else:
                classes[what] = Class(1, f"{sample.kind} {sample.number}: {each.example}")
                new.append(what)
        return new


# Snapshots


def random_snapshots(count: int, number: int) -> list[Observation]:
    """Return snapshots on the way of random worlds, no two alike; the same ones for the same
    number."""
    found: dict[bytes, Observation] = {}

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.one_of(everything(), with_pods(), with_quotas(), with_bad_nodes()),
        st.integers(0, 1 << 30),
    )
    def draw(snapshot: Snapshot, chance: int) -> None:
        if len(found) < count:
            for seen, now in history(snapshot, Random(chance), Planner().plan, STEPS):
                observed = Observation(now, seen)
                found[encode(observed)] = observed

    draw()
    return list(found.values())[:count]


def recorded_snapshots(
    count: int, number: int, traces: Path | None
) -> Mapping[str, list[Observation]]:
    """Return snapshots of two simulated weeks, chosen at random from all that were planned.

    Raises:
        MissingTraces: the folder lacks them.
    """
    source, chance = Source(traces), Random(number)
    total = source.philly_sizes()[0]
    jobs = source.philly(total)[""]
    week = _week(jobs, (), total, count // 2, chance)
    queues = source.philly_queues(total)
    return {
        "week": week,
        "week by queue": _week(jobs, queues, total, count - len(week), chance),
    }


def _week(
    jobs: list[Any], queues: tuple[Queue, ...], total: int, wanted: int, chance: Random
) -> list[Observation]:
    policies = tuple(QueuePolicy(queue.name, name=queue.name) for queue in queues)
    config = SimulationConfig(total // PER_NODE, PER_NODE, queues=queues, policies=policies)
    kept: list[Observation] = []
    planner, seen = Planner(reports=False), 0

    def keep(snapshot: Snapshot, now: datetime) -> Plan:
        # Each of those seen so far is among the kept ones with the same chance.
        nonlocal seen
        seen += 1
        if len(kept) < wanted:
            kept.append(Observation(now, snapshot))
        elif (place := chance.randrange(seen)) < wanted:
            kept[place] = Observation(now, snapshot)
        return planner.plan(snapshot, now)

    simulate(jobs, config, keep)
    return sorted(kept, key=lambda each: each.time)


def samples(count: int, number: int, traces: Path | None) -> list[Sample]:
    """Return both kinds; random ones stand in where weeks have too few."""
    recorded = recorded_snapshots(count // 2, number, traces)
    drawn = random_snapshots(count - sum(map(len, recorded.values())), number)
    return [
        Sample(kind, i, observed)
        for kind, each in {"random": drawn, **recorded}.items()
        for i, observed in enumerate(each)
    ]


# Planners


@contextmanager
def tree_of(revision: str | None) -> Iterator[Path]:
    """Return the folder of a revision's sources while they are needed; None: the working tree.

    Raises:
        CannotCompare: git has no such revision.
    """
    if revision is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        archive = subprocess.run(
            ["git", "archive", revision, ".", *NOT_THE_PLANNERS], cwd=ROOT, capture_output=True
        )
        if archive.returncode:
            raise CannotCompare(f"{revision}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


class TreesPlanner:
    """Plans by the planner of a source tree, in a process of its own."""

    def __init__(self, name: str, tree: Path) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-P", planner_at_tree.__file__, str(tree)],
            env={"PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.fields: Mapping[str, list[str]] = self._answer()
        """Names of its snapshots' fields, by class."""

    def plan(self, path: Path) -> Any:
        """Return its plan of a saved snapshot as plain values, or `unread` and why; the file holds
        then what it has read.

        Raises:
            CannotCompare: it has ended; says why.
        """
        assert self._process.stdin is not None
        print(path, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise CannotCompare(f"{self._name}: {errors.strip()}")
        return json.loads(line)

    def __enter__(self) -> TreesPlanner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def compare(
    trees: tuple[Path, Path],
    names: tuple[str, str],
    found: Iterable[Sample],
    save: Path | None = None,
) -> Report:
    """Have both planners plan each snapshot.

    Args:
        trees: the old sources and the new ones.
        names: what errors call them.
        save: a folder for the first example of each class.

    Raises:
        CannotCompare: one of them has no planner that reads snapshots, or read none.
    """
    report = Report()
    with (
        TreesPlanner(names[0], trees[0]) as old,
        TreesPlanner(names[1], trees[1]) as new,
        tempfile.TemporaryDirectory(prefix="snapshots-") as folder,
    ):
        report.missing = tuple(_missing(old.fields))
        path = Path(folder) / "snapshot.json"
        for sample in found:
            path.write_bytes(encode(sample.observed))
            before = old.plan(path)
            if "unread" in before:
                report.unread[before["unread"]] = report.unread.get(before["unread"], 0) + 1
                continue
            after = new.plan(path)
            if "unread" in after:
                raise CannotCompare(f"{names[1]}: {after['unread']}")
            for what in report.note(sample, differences(sample.observed.snapshot, before, after)):
                if save is not None:
                    save.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, save / f"{_slug(what)}.json")
    if not report.total:
        said = "; ".join(report.unread) or "there were no snapshots"
        raise CannotCompare(f"{names[0]} could read none of the snapshots: {said}")
    return report


def _missing(theirs: Mapping[str, list[str]]) -> Iterator[str]:
    for made in {**vars(values), **vars(queue_policy)}.values():
        if isinstance(made, type) and is_dataclass(made) and made.__name__ in theirs:
            for each in fields(made):
                if each.name not in theirs[made.__name__]:
                    yield f"{made.__name__}.{each.name}"


def _slug(what: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in what).split()).lower()


# The report


def shown(report: Report, old: str, new: str) -> Iterator[str]:
    yield f"{report.total:,} snapshots, planned by {old} and by {new}: so many plans"
    yield f"{'':16}{'are equal':>12}{'only say something else':>26}{'decide something else':>24}"
    for kind, tally in report.kinds.items():
        yield f"{kind:16}{tally.equal:>12,}{tally.said:>26,}{tally.decided:>24,}"
    for said, count in report.unread.items():
        yield f"{count:,} more that {old} can't read: {said}"
    if report.missing:
        yield f"neither was shown what {old} doesn't know: {', '.join(report.missing)}"
    for title, classes in (("decided", report.decided), ("said", report.said)):
        if classes:
            yield f"\n{title} otherwise, in so many snapshots; an example, old | new:"
        for what, each in sorted(classes.items(), key=lambda item: -item[1].snapshots):
            cut = each.example if len(each.example) <= LONGEST else f"{each.example[:LONGEST]} …"
            yield f"{each.snapshots:>8,}  {what}\n          {cut}"


def main(argv: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", required=True, metavar="REV")
    parser.add_argument("--new", metavar="REV", help="default: the working tree")
    parser.add_argument("--snapshots", type=int, default=2000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--traces", type=Path, metavar="FOLDER")
    parser.add_argument("--save", type=Path, metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    names = (asked.old, asked.new or "the working tree")
    try:
        with tree_of(asked.old) as old, tree_of(asked.new) as new:
            found = samples(asked.snapshots, asked.seed, asked.traces)
            report = compare((old, new), names, found, asked.save)
    except (CannotCompare, MissingTraces) as error:
        print(f"decisions: {error}", file=sys.stderr)
        return 2
    if asked.json:
        say(json.dumps(asdict(report), indent=1))
    else:
        for line in shown(report, *names):
            say(line)
    return 0 if report.equal == report.total else 1


if __name__ == "__main__":
    sys.exit(main())
