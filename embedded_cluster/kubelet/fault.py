"""Faults on request: an annotation on a pod or a node, which the kubelet obeys.

On a pod: `kill` (SIGKILL to a container), `oom` (the same, told as OOMKilled), `evict` (the pod
Fails as under node pressure), each done once, whereupon the kubelet removes the annotation; and
`freeze`, which holds for as long as the annotation does: processes stop where they are, and nothing
is heard of them. `kill/NAME`, `oom/NAME` and `freeze/NAME` mean one container; else it is all.

On a node, for as long as the annotation holds, its lease is no longer renewed, its kubelet tells
nothing and hears of nothing: `down`, its processes are gone; `frozen`, they stop where they are;
`partitioned`, only the kubelet is cut off from the API server, and they go on. One may become
another. `down/5` begins five seconds after it was asked for, when the API server may be away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from volcano_elastic.kube.resource import Object

ANNOTATION = "local.volcano-elastic.io/fault"
NodeFaultKind = Literal["down", "frozen", "partitioned"]
PodFaultKind = Literal["kill", "oom", "evict", "freeze"]


@dataclass(frozen=True, slots=True)
class PodFault:
    kind: PodFaultKind
    container: str | None = None
    """None: all of the pod's."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    kind: NodeFaultKind
    after: float = 0.0
    """Seconds until it begins."""


def annotated(obj: Object) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(ANNOTATION, ""))


def parse(text: str) -> PodFault | None:
    """None if it is no fault that a pod can have."""
    kind, _, container = text.partition("/")
    if kind not in get_args(PodFaultKind):
        return None
    return PodFault(cast(PodFaultKind, kind), container or None)


def parse_node(text: str) -> NodeFault | None:
    """None if it is no fault that a node can have."""
    kind, _, after = text.partition("/")
    if kind not in get_args(NodeFaultKind) or (after and not after.isdigit()):
        return None
    return NodeFault(cast(NodeFaultKind, kind), float(after or 0))
