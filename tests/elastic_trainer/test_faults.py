"""Random faults in CI's length; `python -m tests.elastic_trainer.fault_harness` has more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HARNESS = "tests.elastic_trainer.fault_harness"
HOST_FAULTS = ("kill_coordinator_node", "freeze_coordinator_node", "part_network")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--seed", "12", "--faults", "9"], id="nodes come and go"),
        pytest.param(["--seed", "7", "--faults", "6", "--fixed"], id="the world stays"),
        pytest.param(
            ["--seed", "5", "--faults", "5", "--only", *HOST_FAULTS], id="hosts are lost and parted"
        ),
    ],
)
def test_random_faults_lose_and_repeat_nothing(options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", HARNESS, *options, "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
