"""docs/kubeflow-compatibility.md: each row says something, and names tests that exist."""

from __future__ import annotations

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "kubeflow-compatibility.md"
WORDS = {"same", "better", "different", "added"}


def rows() -> list[list[str]]:
    """The cells of each row of each table, without heads."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    found = [[cell.strip() for cell in row] for row in cells]
    return [row for row in found if row[-1] != "test" and set(row[-1]) != {"-"}]


@functools.cache
def existing_tests() -> set[str]:
    """Names of the test functions of the project."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "e2e").glob("test_*.py")]
    definition = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
    return {name for file in files for name in definition.findall(file.read_text())}


def test_each_row_of_the_compatibility_tables_names_tests_that_exist() -> None:
    present = existing_tests()
    assert len(rows()) > 80
    for row in rows():
        name, verdict, _, named = row
        assert set(verdict.split(", ")) <= WORDS, row
        found = re.findall(r"`(\w+)`", named)
        assert found, f"{name}: names no test"
        missing = [test for test in found if test not in present]
        assert not missing, f"{name}: there is no {', '.join(missing)}"


def test_each_defect_that_is_tested_is_in_the_tables() -> None:
    named = set(re.findall(r"`(test_defect_\w+)`", DOCUMENT.read_text()))
    assert {test for test in existing_tests() if test.startswith("test_defect_")} == named
