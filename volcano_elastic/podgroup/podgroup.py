"""The PodGroup of a job: what must start together, and what that asks for.

minResources covers exactly the minimum's pods: what is allocated beyond it counts as elastic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volcano_elastic.api import merge_patch, quantity
from volcano_elastic.api.pytorchjob import PyTorchJob

# Annotations of the job that mean something only there.
_NOT_COPIED = ("kubectl.kubernetes.io/", "kopf.", "volcano-elastic.io/")

# Whole units whose thousandths fit 64 bits. Volcano counts all but memory in those, and its
# scheduler ends with a panic where they overflow.
_MOST = (2**63 - 1) // 1000 * 1000

Requests = Mapping[str, Mapping[str, int]]
"""By role's name, what one of its pods asks for, in thousandths: as the API server made it
(LimitRange, overhead, injected sidecars), or as the operator is going to make it."""


def min_member(job: PyTorchJob) -> int:
    """Return how many pods must start together; an explicit minAvailable wins."""
    explicit = job.run_policy.scheduling.min_available
    return job.min_members if explicit is None else explicit


def min_resources(job: PyTorchJob, members: int, requests: Requests) -> dict[str, str]:
    """Return what the first `members` pods in falling task priority ask for together."""
    explicit = job.run_policy.scheduling.min_resources
    if explicit is not None:
        return {name: _text(name, quantity.milli(v)) for name, v in explicit.items()}
    total: dict[str, int] = {}
    for role, count in _first(job, members).items():
        for name, amount in requests[role].items():
            total[name] = total.get(name, 0) + amount * count
    return {name: _text(name, amount) for name, amount in total.items() if amount}


def _first(job: PyTorchJob, members: int) -> dict[str, int]:
    """Return how many of the first `members` pods in falling task priority each role has."""
    found = {}
    for name, spec in job.replicas.items():
        most = job.elastic.max if job.elastic and spec.role.elastic else spec.replicas
        found[name] = min(most, members)
        members -= found[name]
    return found


def _text(name: str, amount: int) -> str:
    return quantity.text(amount if name == "memory" else min(amount, _MOST))


def build(job: PyTorchJob, owner: Mapping[str, Any], requests: Requests) -> dict[str, Any]:
    """The PodGroup to create; `owner` is the owner reference."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "annotations": {
                name: value
                for name, value in job.annotations.items()
                if not name.startswith(_NOT_COPIED)
            },
            "ownerReferences": [dict(owner)],
        },
        "spec": _spec(job, min_member(job), requests) | {"queue": job.queue},
    }


def patch(
    job: PyTorchJob, existing: Mapping[str, Any], live: int, requests: Requests
) -> dict[str, Any] | None:
    """Merge patch of the fields that differ, or None.

    Never a PUT: PodGroup has no status subresource, so that would erase the phase. The queue
    stays what it is. minMember rises only as far as there are pods (`live` of them), since
    above that Volcano skips the whole gang.
    """
    found = existing.get("spec") or {}
    members, now = min_member(job), int(found.get("minMember") or 0)
    if members > now:
        members = max(now, min(members, live))
    wanted = _spec(job, members, requests)
    current = {name: found[name] for name in ("minMember", "priorityClassName") if name in found}
    current["minResources"] = {
        name: _canonical(amount) for name, amount in (found.get("minResources") or {}).items()
    }
    difference = merge_patch.difference(current, wanted)
    return {"spec": difference} if difference else None


def queue_in_force(job: PyTorchJob, existing: Mapping[str, Any] | None) -> str:
    """A PodGroup stays in its queue, whatever the job asks for by now."""
    if existing is None:
        return job.queue
    return str((existing.get("spec") or {}).get("queue") or "default")


def _canonical(amount: str | int | float) -> str:
    try:
        return quantity.text(quantity.milli(amount))
    except quantity.QuantityError:
        return str(amount)  # somebody else's nonsense differs from ours, and is replaced


def _spec(job: PyTorchJob, members: int, requests: Requests) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "minMember": members,
        "minResources": min_resources(job, members, requests),
    }
    if job.run_policy.scheduling.priority_class:
        spec["priorityClassName"] = job.run_policy.scheduling.priority_class
    return spec
