"""Losses of nodes and resizes of sharded models; `--long` tries all 100 seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

HARNESS = "tests.elastic_trainer.sharded_harness"


def test_losses_and_resizes_cost_no_committed_step_and_no_read_of_storage(
    pytestconfig: pytest.Config,
) -> None:
    seeds = ["--seeds", "100"] if pytestconfig.getoption("--long") else ["--seeds", "2"]
    command = [sys.executable, "-m", HARNESS, "--seed", "7", *seeds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "nothing lost" in done.stdout
