"""Signs on a Node that elastic jobs had better leave it: taints, conditions and labels of monitors.

A table of data: whoever runs other monitors adds theirs (`--node-signal`). The operator only reads
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any


class Kind(StrEnum):
    TAINT = "taint"
    CONDITION = "condition"
    LABEL = "label"


@dataclass(frozen=True, slots=True)
class NodeSignal:
    kind: Kind
    key: str
    """Key of the taint or label, type of the condition; `*` stands for any characters."""
    value: str = "*"
    """Value of the taint or label; status of the condition."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}={self.value}"


_TABLE = """
# node-problem-detector, config/*.json of kubernetes/node-problem-detector: lasting problems
condition:KernelDeadlock=True
condition:ReadonlyFilesystem=True
condition:XfsShutdown=True
# and with Azure's plug-ins (AKS, "GPU health monitoring")
condition:GPUMissing=True
condition:NVLinkStatusInactive=True
condition:XIDErrors=True
condition:IBLinkFlapping=True
# NVSentinel, docs/INTEGRATIONS.md: fatal findings of its health monitors, and taints as documented
condition:GpuMemWatch=True
condition:GpuPcieWatch=True
condition:GpuInforomWatch=True
condition:GpuSmWatch=True
condition:GpuNvlinkWatch=True
condition:GpuMcuWatch=True
condition:GpuPmuWatch=True
condition:GpuDriverWatch=True
condition:SysLogsXIDError=True
condition:SysLogsSXIDError=True
condition:SysLogsGPUFallenOff=True
condition:NVSwitchFatalError=True
condition:NVSwitchDown=True
condition:CSPMaintenance=True
taint:nvidia.com/gpu-*error=*
taint:nvidia.com/syslog-*error=*
# Autopilot, README: ERR is a failed check, EVICT a failed deep diagnosis; MLBatch taints by it
label:autopilot.ibm.com/gpuhealth=ERR
label:autopilot.ibm.com/gpuhealth=EVICT
taint:autopilot.ibm.com/gpuhealth=EVICT
# aws-node-termination-handler, pkg/node: with TAINT_NODE
taint:aws-node-termination-handler/spot-itn=*
taint:aws-node-termination-handler/scheduled-maintenance=*
taint:aws-node-termination-handler/asg-lifecycle-termination=*
taint:aws-node-termination-handler/rebalance-recommendation=*
# GKE: spot, preemptible and maintained nodes
taint:cloud.google.com/impending-node-termination=*
# AKS: scheduled events, by its node-problem-detector
condition:PreemptScheduled=True
condition:TerminateScheduled=True
condition:RedeployScheduled=True
condition:RebootScheduled=True
# Karpenter 1, and cluster-autoscaler: nodes on their way out
taint:karpenter.sh/disrupted=*
taint:ToBeDeletedByClusterAutoscaler=*
"""


def parse(text: str) -> NodeSignal:
    """Return the signal in `KIND:KEY` or `KIND:KEY=VALUE`.

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    kind, colon, rest = text.partition(":")
    key, _, value = rest.partition("=")
    if not colon or kind not in tuple(Kind) or not key:
        kinds = ", ".join(Kind)
        raise ValueError(
            f"expected KIND:KEY or KIND:KEY=VALUE, KIND one of {kinds}; found {text!r}"
        )
    default = "True" if kind == Kind.CONDITION else "*"
    return NodeSignal(Kind(kind), key, value or default)


DEFAULTS: tuple[NodeSignal, ...] = tuple(
    parse(line) for line in _TABLE.splitlines() if line and not line.startswith("#")
)


def shown(node: Mapping[str, Any], signals: Sequence[NodeSignal]) -> str:
    """Return in words the first of `signals` that a Node shows; empty if it shows none."""
    told = list(_told(node))
    for signal in signals:
        for kind, key, value, words in told:
            if (
                kind is signal.kind
                and fnmatchcase(key, signal.key)
                and fnmatchcase(value, signal.value)
            ):
                return words
    return ""


def _told(node: Mapping[str, Any]) -> Iterable[tuple[Kind, str, str, str]]:
    """Yield kind, key and value of all that a Node tells, and how to say it."""
    for taint in (node.get("spec") or {}).get("taints") or ():
        key, value = taint.get("key") or "", taint.get("value") or ""
        yield Kind.TAINT, key, value, f"is tainted {key}{'=' if value else ''}{value}"
    for found in (node.get("status") or {}).get("conditions") or ():
        kind, status = found.get("type") or "", found.get("status") or ""
        yield Kind.CONDITION, kind, status, f"has condition {kind}={status}"
    for key, value in ((node.get("metadata") or {}).get("labels") or {}).items():
        yield Kind.LABEL, key, value or "", f"is labelled {key}={value}"
