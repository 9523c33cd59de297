"""The devices that scripts of loops train on: CPUs, or GPUs by `make test-gpu`."""

from __future__ import annotations

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
VARIABLE = "TEST_DEVICE"
DEVICE = f"""
device = os.environ.get("{VARIABLE}", "cpu")
if device == "cuda":  # each pod has its own, or shares one
    device += f":{{int(os.environ['VOLCANO_ELASTIC_POD_INDEX']) % torch.cuda.device_count()}}"
    torch.cuda.set_device(device)
"""
"""Lines of such a script."""
