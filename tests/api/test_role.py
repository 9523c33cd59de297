"""api/role.py: the table of roles is sound, and the only place that names them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import volcano_elastic
from volcano_elastic.api import role

PACKAGE = Path(volcano_elastic.__file__).parent
# Each role's name as a word, and its label as a part of a pod's name.
NAMES = re.compile(
    "|".join(rf"\b{r.name}\b|^{r.label}$|-{r.label}-|\[{r.name}\]" for r in role.ROLES)
)
# Where lower-case "worker" is torch's process or a field of the coordinator's answers, no role.
TORCHS_WORKERS = {
    "operator/divergence_report.py",
    "operator/failure_report.py",
    "operator/straggler_report.py",
    "queue_policy/messages.py",
    "cluster_state/reason.py",
    "cli/describe.py",
    "cli/description_text.py",
    "cli/explain.py",
}


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that isn't a docstring, f-strings' parts included."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str):
            yield node.lineno, node.value


def named(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in literals(ast.parse(source)) if NAMES.search(text)]


def test_no_module_but_the_table_names_a_role() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name == "api/role.py":
            continue
        for line, text in named(path.read_text()):
            if name in TORCHS_WORKERS and text == "worker":
                continue
            found.append(f"{name}:{line}: {text!r}")
    assert not found, "take the name from api/role.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line", ['x = "Master"', 'x = f"{a}-worker-{i}"', 'x = "[Worker].replicas"', 'x = "worker"']
)
def test_the_search_finds_a_name_written_elsewhere(line: str) -> None:
    assert named(line)


def test_one_role_is_elastic_and_at_most_one_leads() -> None:
    assert [r.name for r in role.ROLES if r.elastic] == [role.elastic().name]
    assert sum(r.leads for r in role.ROLES) <= 1
    assert len({r.name for r in role.ROLES} | {r.label for r in role.ROLES}) == 2 * len(role.ROLES)


def test_roles_follow_each_other_in_task_priority() -> None:
    most = 100_000  # pods of a role that validation lets pass
    for before, after in pairwise(role.known()):
        last = before.task_priority((before.most_replicas or most) - 1)
        assert last > after.task_priority(0)
    assert role.known()[-1].task_priority(most) > 0
