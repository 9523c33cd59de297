"""Which errors are of the node, and which of the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_trainer.failures.failure import Exit, describe
from elastic_trainer.failures.node_fault import node_fault
from elastic_trainer.link import error_file

HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
    "assertions.\n"
)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("CUDA", "RuntimeError: No CUDA GPUs are available"),
        ("CUDA", "RuntimeError: No HIP GPUs are available"),
        ("CUDA", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have"),
        ("CUDA", "AcceleratorError: CUDA error: unspecified launch failure" + HINT),
        ("CUDA", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"),
        ("CUDA", "RuntimeError: HIP error: the operation cannot be performed in the present state"),
        ("CUDA", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up env"),
        ("CUDA", "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu."),
        ("CUDA", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda"),
        ("GPU hardware", "RuntimeError: CUDA error: uncorrectable ECC error encountered" + HINT),
        ("GPU hardware", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus"),
        ("InfiniBand", "NCCL WARN NET/IB : mlx5_0:1 Got async event : local catastrophic error"),
        ("InfiniBand", "DistBackendError: NCCL error: NET/IB : Got async fatal event: port error"),
        ("InfiniBand", "mlx5_core 0000:3b:00.0: device's health compromised - reached miss count"),
        ("cuDNN", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        ("cuDNN", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        ("cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasC"),
        (
            "NCCL",
            "DistBackendError: NCCL error in: ../torch/csrc/x.cpp:1970, unhandled system error",
        ),
        (
            "NCCL",
            "DistBackendError: NCCL error in: ../torch/csrc/x.cpp:1970, unhandled cuda error",
        ),
        (
            "data loader's processes",
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ",
        ),
        (
            "data loader's processes",
            "RuntimeError: DataLoader worker (pid(s) 71, 72) exited unexpectedly",
        ),
        (
            "shared memory",
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possib"
            "le that dataloader's workers are out of shared memory. Please try to raise your",
        ),
        (
            "shared memory",
            "RuntimeError: unable to write to file </torch_71_1_0>: No space left on device (28)",
        ),
        # The script's
        ("", "ValueError: no such luck"),
        ("", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ("", "RuntimeError: CUDA error: device-side assert triggered" + HINT),
        ("", "RuntimeError: CUDA error: an illegal memory access was encountered" + HINT),
        ("", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"),
        ("", "RuntimeError: CUDA error: invalid configuration argument" + HINT),
        ("", "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm("),
        ("", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you"),
        ("", "RuntimeError: DataLoader worker (pid 71) is killed by signal: Segmentation fault. "),
        ("", "CUDA error: no kernel image is available for execution on the device" + HINT),
        ("", "AssertionError: Torch not compiled with CUDA enabled"),
        # A peer's
        ("", "DistBackendError: NCCL error: remote process exited or there was a network error"),
        ("", "DistBackendError: NCCL communicator was aborted on rank 3."),
        ("", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=A"),
        ("", "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc] closed by peer"),
    ],
)
def test_a_nodes_own_errors_are_told_from_the_scripts_and_from_a_peers(
    fault: str, message: str
) -> None:
    assert node_fault(message, "", 1) == fault


def test_a_bus_error_is_told_by_the_signal() -> None:
    assert node_fault("killed by SIGBUS", "", -7) == "shared memory"
    assert node_fault("killed by SIGSEGV", "", -11) == ""
    assert node_fault("exited with code 1, without a word", "", 1) == ""


@pytest.mark.parametrize(
    "text",
    [
        "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]",
        "Connection reset by peer",
        "Broken pipe",
        "Socket Timeout",
    ],
)
def test_what_a_peers_end_raises_is_not_the_codes_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv(error_file.VARIABLE, str(path))
    error_file.write(RuntimeError, RuntimeError(text), None)
    error_file.own(RuntimeError, RuntimeError(text), None, 3)
    exit_ = Exit(round=1, rank=0, local_rank=0, pid=7, code=1, time=0.0, error_file=str(path))
    failed = describe(exit_, oom_killed=False)
    assert failed.message.endswith(text) and (failed.error, failed.node_fault) == ("", "")


STACK = """Traceback (most recent call last):
  File "train.py", line 3, in step
    raise ValueError("CUDA error: only quoted in the source")
{inner}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
RuntimeError: step 7 failed
"""


def test_an_error_that_was_wrapped_is_found_in_the_stack_and_source_code_is_not() -> None:
    message = "RuntimeError: step 7 failed"
    inner = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    assert node_fault(message, STACK.format(inner=inner), 1) == "CUDA"
    assert node_fault(message, STACK.format(inner="ValueError: something"), 1) == ""


def test_a_nodes_error_is_reported_with_its_kind_and_is_not_the_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv(error_file.VARIABLE, str(path))
    for text, fault in (("No CUDA GPUs are available", "CUDA"), ("shapes don't match", "")):
        error = RuntimeError(text)
        error_file.write(RuntimeError, error, None)
        error_file.own(RuntimeError, error, None, 3)
        assert json.loads(path.read_text())["message"]["message"] == f"RuntimeError: {text}"
        exit_ = Exit(round=1, rank=0, local_rank=0, pid=7, code=1, time=0.0, error_file=str(path))
        failed = describe(exit_, oom_killed=False)
        assert failed.node_fault == fault
        assert bool(failed.error) is not bool(fault)
        path.unlink()
