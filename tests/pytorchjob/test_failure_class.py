"""Classes of failures: whose a pod's end is, and that the trainer judges by the same texts."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_trainer.failures import node_fault

from volcano_elastic.pytorchjob import failure_class
from volcano_elastic.pytorchjob.failure_class import FailureClass, of_pod, of_restart, of_text

HARDWARE, SOFTWARE = FailureClass.HARDWARE, FailureClass.SOFTWARE
INTERRUPTION = FailureClass.INTERRUPTION


def test_operator_and_trainer_judge_by_the_same_rows() -> None:
    assert failure_class.TEXTS == node_fault.TABLE
    told = {
        code: what for code, (kind, what) in failure_class.EXIT_CODES.items() if kind == HARDWARE
    }
    # A shell, and so kubelet, says 128 + 9 where Python says -9.
    assert told == {
        128 - code if code < 0 else code: w for code, w in node_fault.EXIT_CODES.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, Ch 00000008, MMU Fault",
        "NVLink: fatal error detected on link 3",
        "NET/IB : mlx5_0:1 Got async event : local catastrophic error",
        "CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "DistBackendError: NCCL error in: x.cpp:1970, remote process exited",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "ValueError: batch_size must be positive",
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ",
    ],
)
def test_a_text_is_hardwares_to_both_or_to_neither(text: str) -> None:
    found = of_text(text)
    here = found[1] if found is not None and found[0] is HARDWARE else ""
    assert here == node_fault.node_fault(text, "", 1)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (HARDWARE, "Xid (PCI:0000:3b:00): 48, DBE"),
        (HARDWARE, "NVLink link 3 down"),
        (SOFTWARE, "Xid (PCI:0000:3b:00): 43, pid=77"),
        (SOFTWARE, "CUDA error: device-side assert triggered"),
        (None, "ValueError: nan"),
    ],
)
def test_xids_of_programs_are_no_nodes(kind: FailureClass | None, text: str) -> None:
    found = of_text(text)
    assert (found and found[0]) == kind


def failed(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T12:00:00Z"},
        "status": {"phase": "Failed"} | status,
    }


def ended(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "pytorch", "state": {"terminated": {"exitCode": 1} | state}}]


@pytest.mark.parametrize(
    ("kind", "pod"),
    [
        (INTERRUPTION, failed(reason="Evicted")),
        (INTERRUPTION, failed(reason="Preempting")),
        (INTERRUPTION, failed(reason="Terminated", containerStatuses=ended(exitCode=143))),
        (
            INTERRUPTION,
            failed(conditions=[{"type": "DisruptionTarget", "status": "True"}]),
        ),
        (HARDWARE, failed(reason="UnexpectedAdmissionError")),
        (HARDWARE, failed(containerStatuses=ended(exitCode=135))),
        (HARDWARE, failed(containerStatuses=ended(message="Xid (PCI:0): 79, x"))),
        (SOFTWARE, failed(containerStatuses=ended(exitCode=137, reason="OOMKilled"))),
        (
            HARDWARE,
            failed(containerStatuses=ended(message="NET/IB : Got async event : port error")),
        ),
        (
            SOFTWARE,
            failed(
                containerStatuses=ended(
                    message="CUDA error: no kernel image is available for execution"
                )
            ),
        ),
        (SOFTWARE, failed(containerStatuses=ended(exitCode=132))),
        (SOFTWARE, failed(containerStatuses=ended(exitCode=139))),
        (SOFTWARE, failed(containerStatuses=ended())),
    ],
)
def test_a_pods_end_has_its_class(kind: FailureClass, pod: dict[str, Any]) -> None:
    found = of_pod(pod, "pytorch")
    assert found is not None and found.kind is kind


def test_a_container_that_was_started_again_tells_why() -> None:
    pod = {
        "metadata": {},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "pytorch",
                    "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 1, "message": "GPU is lost"}},
                }
            ],
        },
    }
    found = of_restart(pod, "pytorch")
    assert found is not None and found.kind is HARDWARE and of_pod(pod, "pytorch") is None
