"""Keeps pods off nodes for other reasons than room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Node, Task
from volcano_elastic.scheduler_conf.configuration import PluginOption

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def predicates(session: Session, option: PluginOption) -> Functions:
    def predicate(task: Task, node: Node) -> str | None:
        if missing := unsupported(task.spec):
            return f"node(s) can't be judged: the embedded scheduler has no {missing}"
        tolerations = task.spec.get("tolerations") or ()
        taints = (*node.taints, _UNSCHEDULABLE) if node.unschedulable else node.taints
        for taint in taints:
            if taint.get("effect") == "PreferNoSchedule":
                continue
            if not any(tolerates(toleration, taint) for toleration in tolerations):
                return f"node(s) had untolerated taint {{{taint.get('key')}}}"
        selector = task.spec.get("nodeSelector") or {}
        if any(node.labels.get(key) != value for key, value in selector.items()):
            return "node(s) didn't match Pod's node affinity/selector"
        affinity = (task.spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        terms = (required or {}).get("nodeSelectorTerms") or ()
        if required is not None and not any(term_matches(term, node) for term in terms):
            return "node(s) didn't match Pod's node affinity/selector"
        return None

    return Functions(predicate=predicate)


def unsupported(spec: Mapping[str, Any]) -> str | None:
    """Return what the pod insists on and this scheduler doesn't do; better no place than a wrong
    one."""
    affinity = spec.get("affinity") or {}
    for name in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(name) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return name
    for constraint in spec.get("topologySpreadConstraints") or ():
        if constraint.get("whenUnsatisfiable") == "DoNotSchedule":
            return "topologySpreadConstraints"
    return "resourceClaims" if spec.get("resourceClaims") else None


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    exists = toleration.get("operator") == "Exists"
    return exists or (toleration.get("value") or "") == (taint.get("value") or "")


def term_matches(term: Mapping[str, Any], node: Node) -> bool:
    """All of a term's expressions; a term without any matches nothing."""
    labels = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    return bool(labels or fields) and (
        all(_matches(expression, node.labels) for expression in labels)
        and all(_matches(expression, {"metadata.name": node.name}) for expression in fields)
    )


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                left, right = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return left > right if operator == "Gt" else left < right
    return False
