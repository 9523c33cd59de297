"""Faults on request: an annotation on a pod or a node, which the kubelet obeys.

On a pod: `kill` (SIGKILL to a container), `oom` (the same, told as OOMKilled), `evict` (the pod
Fails as under node pressure), each done once, whereupon the kubelet removes the annotation; and
`freeze`, which holds for as long as the annotation does: processes stop where they are, and nothing
is heard of them. `kill/NAME`, `oom/NAME` and `freeze/NAME` mean one container; else it is all.

On a node: `down`, for as long as the annotation holds: its processes are gone, its lease is no
longer renewed, and nothing is told of its pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from volcano_elastic.kube.resource import Object

ANNOTATION = "local.volcano-elastic.io/fault"
NODE_DOWN = "down"
PodFaultKind = Literal["kill", "oom", "evict", "freeze"]


@dataclass(frozen=True, slots=True)
class PodFault:
    kind: PodFaultKind
    container: str | None = None
    """None: all of the pod's."""


def annotated(obj: Object) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(ANNOTATION, ""))


def parse(text: str) -> PodFault | None:
    """None if it is no fault that a pod can have."""
    kind, _, container = text.partition("/")
    if kind not in get_args(PodFaultKind):
        return None
    return PodFault(cast(PodFaultKind, kind), container or None)


def is_down(node: Object) -> bool:
    return annotated(node) == NODE_DOWN
