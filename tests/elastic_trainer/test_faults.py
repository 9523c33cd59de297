"""Random faults in CI's length; `python -m tests.elastic_trainer.fault_harness` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic_trainer.fault_job import shared_nursery
from tests.elastic_trainer.torch_process import TorchProcess, module

pytestmark = pytest.mark.process

HARNESS = "tests.elastic_trainer.fault_harness"
HOST_FAULTS = ("kill_coordinator_node", "freeze_coordinator_node", "part_network")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--seed", "12", "--faults", "9"], id="nodes come and go"),
        pytest.param(["--seed", "7", "--faults", "6", "--fixed"], id="the world stays"),
        pytest.param(["--seed", "3", "--faults", "4", "--tables"], id="rows of ids"),
        pytest.param(
            ["--seed", "5", "--faults", "5", "--stream", "--only", *HOST_FAULTS],
            id="hosts are lost and parted while shards are read",
        ),
    ],
)
def test_random_faults_lose_and_repeat_nothing(options: list[str], tmp_path: Path) -> None:
    arguments = (*options, "--folder", tmp_path)
    harness = TorchProcess(module(HARNESS), *arguments, within=shared_nursery())
    try:
        said, errors = harness.communicate(timeout=300)
    finally:
        harness.kill()
    assert harness.returncode == 0, said[-3000:] + errors[-5000:]
