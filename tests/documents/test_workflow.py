"""The workflow of .github asks of a change what `.ci/run` asks of a landing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def workflow() -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "check.yaml").read_text())


def test_each_part_of_a_landing_is_a_part_of_the_workflow() -> None:
    landing = re.findall(r"^make .+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    matrix = workflow()["jobs"]["part"]["strategy"]["matrix"]["include"]
    # What installs comes first in each part by itself.
    asked = [line for line in landing if ".venv/ready" not in line]
    assert [one["command"] for one in matrix] == asked and len(asked) > 2


def test_the_workflow_may_only_read_and_names_actions_by_commit() -> None:
    found = workflow()
    assert found["permissions"] == {"contents": "read"}
    steps = found["jobs"]["part"]["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in used)
    # In YAML 1.1 `on` is true.
    assert "pull_request_target" not in found[True]
