"""Losses of nodes and resizes of sharded models; `--long` tries all 100 seeds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.elastic_trainer.torch_process import TorchProcess, module

pytestmark = pytest.mark.process

HARNESS = "tests.elastic_trainer.sharded_harness"
SCENES = "tests.elastic_trainer.sharded_scenes"
LIVES = {"restarted": [], "live on": ["--loop"], "in units": ["--loop", "--unit", "2"]}


@pytest.mark.parametrize("lives", LIVES.values(), ids=LIVES)
def test_losses_and_resizes_cost_no_committed_step_and_no_read_of_storage(
    pytestconfig: pytest.Config, lives: list[str]
) -> None:
    seeds = ["--seeds", "100"] if pytestconfig.getoption("--long") else ["--seeds", "2"]
    assert "nothing lost" in said_by(HARNESS, "--seed", "7", *seeds, *lives)


def scenes() -> list[str]:
    """Return the names of all; importing them would import what only their processes need."""
    text = Path(__file__).with_name(f"{SCENES.rpartition('.')[2]}.py").read_text()
    functions = [one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]


@pytest.mark.parametrize("scene", scenes())
def test_as_nodes_come_and_go(scene: str) -> None:
    said_by(SCENES, scene)


def said_by(name: str, *arguments: str) -> str:
    """Run a module; return what it said."""
    process = TorchProcess(module(name), *arguments)
    try:
        said, errors = process.communicate(timeout=3600)
    finally:
        process.kill()
    assert process.returncode == 0, said[-5000:] + errors[-5000:]
    return said
