"""`volcano-elastic tune`, from a coordinator's status to what it prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from volcano_elastic.cli.observation import Trouble
from volcano_elastic.cli.tune import text, tuned

TOLD: dict[str, Any] = {
    "world": 4,
    "batch_seconds": {"compute": 0.25, "input": 0.15, "network": 0.1},
    "batch_samples": 32.0,
    "steps_per_second": 0.5,
    "loads": {
        "0": {"gpu_memory": 8 << 30, "gpu_memory_total": 80 << 30},
        "1": {"gpu_memory": 16 << 30, "gpu_memory_total": 80 << 30},
        "2": {"gpu_memory": None, "gpu_memory_total": None},
    },
}


def test_what_was_measured_and_what_would_change_is_told_with_how_much() -> None:
    found = tuned("train/bert", TOLD, 2)
    assert json.loads(json.dumps(found)) == {
        "job": "train/bert",
        "world": 4,
        "batchSeconds": {"compute": 0.25, "input": 0.15, "network": 0.1},
        "batchSamples": 32.0,
        "batchesPerStep": 4,
        "gpuMemoryInUse": 0.2,
        "loaderWorkers": {"now": 2, "then": 4, "factor": 1.643, "speedup": 1.429},
        "batchSize": {"now": 32, "then": 128, "factor": 4.0, "speedup": 1.176},
    }
    assert text(found).splitlines() == [
        "train/bert: a batch of 32 samples takes a rank 0.5 s (medians), 4 a step, on 4 nodes",
        "  50.0 %      0.25 s  work on it (compute)",
        "  30.0 %      0.15 s  waiting for data (input)",
        "  20.0 %       0.1 s  waiting for others' gradients (network)",
        "Data-loader workers: 2 -> 4: up to 1.43 times as fast; each wants a CPU of its own",
        "Batch of a rank: 32 -> 128 samples, 4 times as large at the same global batch: "
        "up to 1.18 times as fast",
    ]


def test_what_nobody_knows_is_said() -> None:
    found = text(tuned("train/bert", TOLD | {"loads": {}}, None))
    assert "1.6 times as many (--loader-workers says how many that is)" in found
    assert "nobody knows how much memory its GPUs have left" in found
    still = TOLD | {"batch_seconds": {"compute": 1.0, "input": 0.0, "network": 0.0}}
    shown = text(tuned("train/bert", still | {"steps_per_second": 1.0}, 2))
    assert "enough; ranks hardly wait for data" in shown
    assert "a step is one batch already" in shown


@pytest.mark.parametrize("spent", [None, {"compute": 0.0, "input": 0.0, "network": 0.0}])
def test_a_job_without_measured_batches_says_what_measures_them(spent: Any) -> None:
    with pytest.raises(Trouble, match=r"isn't measured yet.*ElasticLoop"):
        tuned("train/bert", TOLD | {"batch_seconds": spent}, 2)
