"""docs/architecture.md: the states that it draws are the code's, and what it points to is there."""

from __future__ import annotations

import ast
import re
from inspect import getsource
from pathlib import Path
from types import ModuleType

import pytest

from volcano_elastic.operator import handover
from volcano_elastic.pytorchjob import desired, observed, size

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def table_of(module: ModuleType) -> str:
    """The docstring after its first paragraph."""
    assert module.__doc__ is not None
    return module.__doc__.partition("\n\n")[2].strip()


def states_of_a_pod() -> str:
    (declared,) = ast.parse(getsource(observed.State)).body
    assert isinstance(declared, ast.ClassDef)
    said = [ast.literal_eval(node.value) for node in declared.body if isinstance(node, ast.Expr)]
    assert len(said) == len(observed.State), "each state says what it is"
    return "\n".join(f"{s.value:<10} {text}" for s, text in zip(observed.State, said, strict=True))


@pytest.mark.parametrize(
    "table",
    [table_of(desired), states_of_a_pod(), table_of(size).split("\n\n")[0], table_of(handover)],
    ids=["job", "pod", "size", "handover"],
)
def test_states_are_drawn_as_the_code_has_them(table: str) -> None:
    assert f"```text\n{table}\n```" in TEXT, f"docs/architecture.md should draw\n{table}"


def test_docstrings_begin_with_their_verb_or_noun() -> None:
    """One that begins with one of these words leaves out what it is about."""
    packages = ("volcano_elastic", "embedded_cluster", "trainer", "tests", "e2e", "benchmarks")
    begins = re.compile(r'^ *"""(?:Of|As|What|Who|Whether)\b.*', re.MULTILINE)
    wrong = [
        f"{file.relative_to(ROOT)}: {found.strip()}"
        for package in packages
        for file in (ROOT / package).rglob("*.py")
        for found in begins.findall(file.read_text())
    ]
    assert wrong == []


def test_docstrings_of_the_control_plane_name_their_subject() -> None:
    """A field may be how many or where; modules, classes and functions are something."""
    wrong = [
        f"{file.relative_to(ROOT)}: {text.splitlines()[0]}"
        for package in ("volcano_elastic", "embedded_cluster")
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and text.startswith(("How ", "Where ", "Which "))
    ]
    assert wrong == []


def test_what_the_map_of_the_code_points_to_is_there() -> None:
    found = re.findall(r"`((?:volcano_elastic|trainer|tests|crds|benchmarks)/[\w/.-]+\.\w+)`", TEXT)
    assert len(found) > 20
    assert [name for name in found if not (ROOT / name).exists()] == []


def test_names_that_the_map_of_the_code_says_are_in_the_code() -> None:
    """One that was renamed leads nobody anywhere."""
    before, _, rest = TEXT.partition("### Its states")
    trainer = rest.partition("### The trainer: where do I change")[2].partition("###")[0]
    names = set(re.findall(r"`([A-Za-z_]\w*)`", before + trainer))
    assert {"ORDER_KEYS", "_OTHERWISE", "decide_hang"} <= names
    packages = ("volcano_elastic", "trainer", "crds", "manifests", "deploy")
    kinds = ("*.py", "*.yaml", "*.md", "*.tpl")
    files = [f for package in packages for kind in kinds for f in (ROOT / package).rglob(kind)]
    words = {word for f in files for word in re.findall(r"\w+", f.read_text())}
    assert names - words == set()
