"""Losses of nodes and resizes of sharded models; `--long` tries all 100 seeds."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.elastic_trainer.sharded_harness import Counts, Store, Training, shared_memory
from tests.elastic_trainer.sharded_round import Round

pytestmark = pytest.mark.process

HARNESS = "tests.elastic_trainer.sharded_harness"


@pytest.mark.parametrize("lives", [[], ["--loop"]], ids=["restarted", "live on"])
def test_losses_and_resizes_cost_no_committed_step_and_no_read_of_storage(
    pytestconfig: pytest.Config, lives: list[str]
) -> None:
    seeds = ["--seeds", "100"] if pytestconfig.getoption("--long") else ["--seeds", "2"]
    command = [sys.executable, "-m", HARNESS, "--seed", "7", *seeds, *lives]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "nothing lost" in done.stdout


def test_after_four_of_six_nodes_left_the_two_mirror_each_other() -> None:
    # Each of the two has copies of the four nodes' parts, beside which there is a place for more.
    store = Store()
    try:
        with shared_memory() as folder:
            training = Training(1, folder, store, Counts())
            for number, nodes, fence in ((1, 6, 3), (2, 2, 6)):
                training.nodes = list(range(nodes))
                leavers = tuple(range(2, nodes))
                round_ = Round(number, tuple(range(nodes)), 1, False, 1, fence, leavers)
                stored, whole = training._stored(), training._whole_in_memory()
                assert training._train(round_) is None
                training._check(round_, whole, stored, None)
                for node in leavers:
                    shutil.rmtree(folder / f"node-{node}")
    finally:
        store.close()
