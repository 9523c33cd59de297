"""Two planners are compared on what both can read, and what one decides otherwise is found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decisions import (
    CannotCompare,
    Sample,
    TreesPlanner,
    compare,
    main,
    samples,
    tree_of,
)
from benchmarks.plan_differences import differences
from tests.queue_policy.world import EIGHT, NOW, job, pods, seconds, world
from volcano_elastic.snapshot.codec import Observation, decode, encode

FORGETFUL = """

_plan = plan


def plan(snapshot, now):
    made = _plan(snapshot, now)
    made.decisions = made.decisions[1:]
    return made
"""
"""A planner that leaves out its first decision."""
NAMES = ("one", "other")
A = job("a", 1, 8, 2)
SEEN = world(EIGHT, [A, job("b", 3, 3)], pods(A, "n1", "n1"))


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with tree_of("HEAD") as found:
        yield found


def changed(tree: Path, copy: Path, module: str, old: str, new: str) -> Path:
    """Return a copy of the tree whose module says `new` for `old`, or at its end."""
    shutil.copytree(tree, copy, symlinks=True)
    path = copy / f"volcano_elastic/{module}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new) if old else text + new)
    return copy


@pytest.mark.process
def test_a_tree_decides_as_itself_and_not_as_one_that_forgets(tree: Path, tmp_path: Path) -> None:
    found = samples(24, 1, None)
    assert {sample.kind for sample in found} == {"random", "week", "week by queue"}
    report = compare((tree, tree), NAMES, found)
    assert (report.total, report.equal, report.missing) == (len(found), len(found), ())
    other = changed(tree, tmp_path / "copy", "queue_policy/plan", "", FORGETFUL)
    report = compare((tree, other), NAMES, found)
    assert 0 < report.equal < report.total
    assert any(": grows → stays" in what for what in report.decided)
    assert not any("→ grows" in what for what in report.decided), "nothing was added"


@pytest.mark.process
def test_sources_without_a_planner_or_a_revision_that_is_not_there_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "volcano_elastic").mkdir()
    (tmp_path / "volcano_elastic/__init__.py").touch()
    with pytest.raises(CannotCompare, match="one: it has no planner that reads snapshots: No mod"):
        compare((tmp_path, tmp_path), NAMES, [])
    assert main(["--old", "no-such-revision"]) == 2
    assert "decisions: no-such-revision: " in capsys.readouterr().err


@pytest.mark.process
def test_both_plan_what_the_old_planner_has_read(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_bytes(encode(Observation(NOW, SEEN)))
    fields = (
        "    cooldown: timedelta | None = None",
        "    cooldown: timedelta = timedelta(minutes=1)",
    )
    with TreesPlanner(
        "old", changed(tree, tmp_path / "copy", "snapshot/snapshot", *fields)
    ) as planner:
        assert planner.plan(path)["decisions"]
    assert {job.cooldown for job in decode(path.read_bytes()).snapshot.jobs} == {seconds(60)}


@pytest.mark.process
def test_a_planner_that_can_read_nothing_is_not_compared(tree: Path, tmp_path: Path) -> None:
    fields = ("    job: str | None = None", "    job: int = 0")
    old = changed(tree, tmp_path / "copy", "snapshot/snapshot", *fields)
    with pytest.raises(CannotCompare, match="one could read none of the snapshots: a broken"):
        compare((old, tree), NAMES, [Sample("random", 0, Observation(NOW, SEEN))])


def plan(**parts: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"unchanged": {}, "blocked": {}, "queues": {}, "memory": {}}
    return empty | {"decisions": [], "admitted": []} | parts


def decision(new: int, *remove: str, message: str = "") -> dict[str, Any]:
    fixed = {"reason": "GrewIntoIdle", "protect": [], "dry_run": False}
    return {"job": "ns/a", "old": 2, "new": new, "remove": [*remove], "message": message, **fixed}


def classes(old: dict[str, Any], new: dict[str, Any]) -> set[tuple[bool, str]]:
    return {(each.decided, each.what) for each in differences(SEEN, old, new)}


RUNS = "a job with pods on nodes"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (plan(decisions=[decision(3)]), plan(), (True, f"{RUNS}: grows → stays")),
        (
            plan(decisions=[decision(3)]),
            plan(decisions=[decision(4)]),
            (True, f"{RUNS}: grows, to another size"),
        ),
        (
            plan(decisions=[decision(1, "x")]),
            plan(decisions=[decision(1, "y")]),
            (True, f"{RUNS}: shrinks, by other pods"),
        ),
        (
            plan(decisions=[decision(3)]),
            plan(decisions=[decision(3, message="as nobody waits")]),
            (False, f"{RUNS}: grows (GrewIntoIdle), in other words"),
        ),
        (
            plan(admitted=["ns/b"]),
            plan(),
            (True, "a job that waits: admitted by the old one alone"),
        ),
        (
            plan(admitted=["ns/b"]),
            plan(blocked={"ns/b": "no room"}),
            (True, "a job that waits: blocked for the new one alone"),
        ),
        (
            plan(unchanged={"ns/a": {"why_not_more": "NoRoom", "why_not_less": "AtMin"}}),
            plan(unchanged={"ns/a": {"why_not_more": "AtMax", "why_not_less": "AtMin"}}),
            (False, "why not more: NoRoom → AtMax"),
        ),
        (
            plan(queues={"q": {"free": 1, "jobs": 2}}),
            plan(queues={"q": {"free": 2}}),
            (False, "figure free"),
        ),
        (
            plan(memory={"unplaced": {"ns/a": {"times": 1}}, "gone": {}}),
            plan(memory={"unplaced": {"ns/a": {"times": 2, "node_came": False}}}),
            (False, "remembered unplaced"),
        ),
    ],
)
def test_a_difference_is_of_one_class(
    old: dict[str, Any], new: dict[str, Any], found: tuple[bool, str]
) -> None:
    assert classes(old, new) == {found}
    assert classes(old, old) == classes(new, new) == set()


def test_what_only_one_of_the_planners_says_is_not_compared() -> None:
    old = plan(memory={"unplaced": {"ns/a": {"times": 1}}})
    new = plan(memory={"unplaced": {"ns/a": {"times": 1, "node_came": True}}, "freed": {"x": 1}})
    assert classes(old, new | {"blocked_pods": {"ns/x": "no room"}}) == set()
    assert classes({**old, "stays": old.pop("unchanged")}, new) == set(), "under its old name"
