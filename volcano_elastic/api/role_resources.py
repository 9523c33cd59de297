"""CPU and memory that pods of a role ask for instead of what their template says, as
`status.elastic.resources` keeps it.

Requests and limits of the container that trains change; a limit keeps its proportion to the
request, as under Kubernetes' VerticalPodAutoscaler. All else stays the template's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from volcano_elastic.api import quantity
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob_validation import CONTAINER

FIELD = "resources"
"""Key in status.elastic."""
Object = Mapping[str, Any]
Amount = TypeVar("Amount", Cpu, Bytes)


@dataclass(frozen=True, slots=True)
class RoleResources:
    cpu: Cpu
    memory: Bytes
    message: str = ""
    """Why just these."""

    def __str__(self) -> str:
        return f"{self.cpu} CPU, {self.memory}"

    def same_as(self, other: RoleResources | None) -> bool:
        """Return whether both are as much, whatever the reasons."""
        return other is not None and (self.cpu, self.memory) == (other.cpu, other.memory)

    def as_status(self) -> dict[str, str]:
        return {"cpu": str(self.cpu), "memory": str(self.memory), "message": self.message}


def in_force(status: Object) -> dict[str, RoleResources]:
    """Return by role what pods ask for by the job's status."""
    return read((status.get("elastic") or {}).get(FIELD))


def read(found: Any) -> dict[str, RoleResources]:
    """Return by role what such a field says; roles of which it makes no sense are left out."""
    told = {}
    for role, one in found.items() if isinstance(found, Mapping) else ():
        try:
            cpu, memory = Cpu.parse(one["cpu"]), Bytes.parse(one["memory"])
        except (quantity.QuantityError, TypeError, KeyError):
            continue
        if cpu > Cpu(0) and memory > Bytes(0):
            told[role] = RoleResources(cpu, memory, str(one.get("message") or ""))
    return told


def requested(spec: Object) -> RoleResources:
    """Return what a pod's training container asks for; 0 of what it doesn't name."""
    for container in spec.get("containers") or ():
        if container.get("name") == CONTAINER:
            resources = container.get("resources") or {}
            asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
            return RoleResources(
                Cpu.parse(asked.get("cpu", 0)), Bytes.parse(asked.get("memory", 0))
            )
    return RoleResources(Cpu(0), Bytes(0))


def with_resources(template: Object, wanted: RoleResources) -> Object:
    """Return the pod template with what its training container asks for instead."""
    spec = template["spec"]
    containers = [
        {**c, "resources": _resources(c.get("resources") or {}, wanted)}
        if c.get("name") == CONTAINER
        else c
        for c in spec["containers"]
    ]
    return {**template, "spec": {**spec, "containers": containers}}


def _resources(given: Object, wanted: RoleResources) -> dict[str, Any]:
    requests, limits = dict(given.get("requests") or {}), dict(given.get("limits") or {})
    before = {**limits, **requests}
    if "cpu" in limits:
        limit = _in_proportion(Cpu.parse(limits["cpu"]), Cpu.parse(before["cpu"]), wanted.cpu)
        limits["cpu"] = str(limit)
    if "memory" in limits:
        had, asked = Bytes.parse(limits["memory"]), Bytes.parse(before["memory"])
        limits["memory"] = str(_in_proportion(had, asked, wanted.memory).whole_mebibytes())
    requests |= {"cpu": str(wanted.cpu), "memory": str(wanted.memory)}
    return {**given, "requests": requests, **({"limits": limits} if limits else {})}


def _in_proportion(limit: Amount, request: Amount, wanted: Amount) -> Amount:
    if not request:
        return max(limit, wanted)
    return max(wanted, wanted * (limit / request))
