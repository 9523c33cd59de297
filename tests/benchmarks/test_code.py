"""Counts of the code, and the bounds that the house keeps to."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.code import (
    HOUSES,
    PLANNER,
    circles,
    count,
    imports,
    of_packages,
    thin_service,
)

ROOT = Path(__file__).parents[2]
THERE = [name for name in HOUSES if (ROOT / name / "__init__.py").exists()]


def test_the_planner_alone_keeps_to_its_lines_and_files() -> None:
    *_, alone = PLANNER
    sources = [path.read_text() for path in (ROOT / alone).glob("*.py")]
    lines, files, _ = count(sources)
    assert lines <= 3500 and files <= 18, f"{alone}: {lines} lines in {files} files"


def test_the_service_of_a_parameter_server_is_thin() -> None:
    files = thin_service(ROOT / "trainer/elastic_trainer")
    lines, _, _ = count([path.read_text() for path in files])
    names = [path.stem for path in files]
    assert {"service", "holder", "__main__"} <= set(names)
    assert lines < 1000, f"{lines} lines in {names}"


@pytest.mark.parametrize("house", THERE)
def test_no_import_climbs(house: str) -> None:
    graph = imports(ROOT / house)
    package = "elastic_trainer.parameter_server"
    # For type checkers alone.
    known = [[f"{package}.client", f"{package}.served_state"]]
    assert [circle for circle in circles(graph) if circle not in known] == []
    assert circles(of_packages(graph)) == []


def test_a_circle_is_found_over_other_modules_too() -> None:
    graph = {"a.x.m": {"a.y.m"}, "a.y.m": {"a.z.m"}, "a.z.m": {"a.x.n"}, "a.x.n": {"a.y.m"}}
    assert circles(graph) == [["a.x.n", "a.y.m", "a.z.m"]]
    assert circles(of_packages(graph)) == [["x", "y", "z"]]
