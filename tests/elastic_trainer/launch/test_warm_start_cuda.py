"""Warm workers on a machine with NVIDIA's driver, which a stub stands for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elastic_trainer.launch.cuda import initialiser

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

STUB = """
static int initialised;
int cuInit(unsigned flags) { initialised = 1; return 0; }
int cuCtxGetCurrent(void **context) { *context = 0; return initialised ? 0 : 3; }
"""

SITE = """
import ctypes, os
driver = ctypes.CDLL("libcuda.so.1")  # mapped, as by torch's own libraries where there is a driver
if os.environ.get("STUB_INITIALISES") == "1":
    driver.cuInit(0)
"""

SCRIPT = """
import os, sys
from pathlib import Path
from elastic_trainer.launch.cuda import cuda_is_initialised
before = cuda_is_initialised()
mapped = "libcuda.so" in Path("/proc/self/maps").read_text()
name = Path("/proc/self/comm").read_text().strip()
Path(sys.argv[1], "found").write_text(f"{name} mapped={mapped} initialised={before}")
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The folder of a driver that is mapped by every Python process which finds it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make the stub of NVIDIA's driver with")
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "stub.c").write_text(STUB)
    (folder / "sitecustomize.py").write_text(SITE)
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", "libcuda.so.1", "stub.c"], cwd=folder, check=True)
    return folder


def run(tmp_path: Path, driver: Path, **environment: str) -> tuple[str, str]:
    """Return what the script found, and its agent's log."""
    paths = {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": f"{driver}:{os.getcwd()}"}
    job = Job(tmp_path, SCRIPT, nodes="1")
    try:
        job.start(0, environment={**paths, **environment}, cold=True)
        assert job.wait(0) == 0, job.logs()
    finally:
        job.close()
    return (tmp_path / "found").read_text(), (tmp_path / "agent-0.log").read_text()


def test_a_driver_that_is_mapped_but_not_initialised_leaves_workers_warm(
    tmp_path: Path, driver: Path
) -> None:
    found, log = run(tmp_path, driver)
    assert found == "ve-worker-0 mapped=True initialised=False"
    assert "cold" not in log


def test_after_cuinit_workers_start_cold_for_the_true_reason(tmp_path: Path, driver: Path) -> None:
    found, log = run(tmp_path, driver, STUB_INITIALISES="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
    assert not found.startswith("ve-worker") and "mapped=True" in found
    assert "workers start cold" in log and "sitecustomize" in log
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in log, "it would not help"


def test_a_preloaded_module_that_initialises_cuda_is_named(tmp_path: Path, driver: Path) -> None:
    (driver / "eager.py").write_text("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)\n")
    found, log = run(tmp_path, driver, VOLCANO_ELASTIC_PRELOAD="-torch._dynamo,eager")
    assert not found.startswith("ve-worker")
    assert "importing eager initialises CUDA" in log and "VOLCANO_ELASTIC_PRELOAD=-eager" in log


def test_torchrun_that_looks_for_gpus_is_told_how_to_do_so_without_cuda() -> None:
    told = "PYTORCH_NVML_BASED_CUDA_CHECK=1"
    assert told in initialiser({})
    assert told in initialiser({"PYTORCH_NVML_BASED_CUDA_CHECK": "0"})
    assert told not in initialiser({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
