"""Which nodes elastic jobs leave, by what monitors and clouds write on them."""

from __future__ import annotations

from typing import Any

import pytest

from volcano_elastic.api.node_signal import DEFAULTS, NodeSignal, parse, shown


def tainted(key: str, value: str = "") -> dict[str, Any]:
    return {"spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}}


def conditioned(kind: str, status: str = "True") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status}]}}


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            tainted("aws-node-termination-handler/spot-itn", "i1"),
            "is tainted aws-node-termination-handler/spot-itn=i1",
        ),
        (
            tainted("cloud.google.com/impending-node-termination"),
            "is tainted cloud.google.com/impending-node-termination",
        ),
        (tainted("nvidia.com/gpu-xid-error", "true"), "is tainted nvidia.com/gpu-xid-error=true"),
        (tainted("nvidia.com/gpu-nvlink-error", "x"), "is tainted nvidia.com/gpu-nvlink-error=x"),
        (conditioned("GpuMemWatch"), "has condition GpuMemWatch=True"),
        (conditioned("KernelDeadlock"), "has condition KernelDeadlock=True"),
        (conditioned("PreemptScheduled"), "has condition PreemptScheduled=True"),
        (
            {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "ERR"}}},
            "is labelled autopilot.ibm.com/gpuhealth=ERR",
        ),
        # What says nothing of the kind.
        (tainted("nvidia.com/gpu", "present"), ""),
        (tainted("node.kubernetes.io/memory-pressure"), ""),
        (tainted("karpenter.sh/unregistered"), ""),
        (conditioned("GpuMemWatch", "False"), ""),
        (conditioned("GpuMemWatch", "Unknown"), ""),
        (conditioned("Ready"), ""),
        ({"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "PASS"}}}, ""),
        ({}, ""),
    ],
)
def test_the_well_known_monitors_are_known(node: dict[str, Any], words: str) -> None:
    assert shown(node, DEFAULTS) == words


def test_others_are_added_as_text() -> None:
    assert parse("taint:example.com/broken") == NodeSignal(
        parse("taint:x").kind, "example.com/broken"
    )
    assert shown(tainted("example.com/broken", "y"), [parse("taint:example.com/*")])
    assert shown(conditioned("Disk"), [parse("condition:Disk")])
    assert not shown(conditioned("Disk", "False"), [parse("condition:Disk")])
    assert shown(conditioned("Net", "Unknown"), [parse("condition:Net=Unknown")])
    assert str(parse("label:a=b")) == "label:a=b"


@pytest.mark.parametrize("text", ["", "taint", "taint:", "pod:x", "taint:=y"])
def test_what_is_no_signal_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected KIND:KEY"):
        parse(text)
