"""The devices that scripts of loops train on: CPUs, or GPUs by `make test-gpu`."""

from __future__ import annotations

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
VARIABLE = "TEST_DEVICE"
DEVICE = f"""
device = os.environ.get("{VARIABLE}", "cpu")
if device == "cuda":  # each worker has its own, or shares one
    local, local_rank = (int(os.environ[f"LOCAL_{{one}}"]) for one in ("WORLD_SIZE", "RANK"))
    worker = int(os.environ["VOLCANO_ELASTIC_POD_INDEX"]) * local + local_rank
    device += f":{{worker % torch.cuda.device_count()}}"
    torch.cuda.set_device(device)
"""
"""Lines of such a script."""
