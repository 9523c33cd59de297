"""The PodGroup of a job: what must start together, and what that asks for.

minResources covers exactly the minimum's pods: what is allocated beyond it counts as elastic.
minTaskMember says how many of them each role has, so that Volcano starts no gang without its vital
pods. Their sum stays within minMember: above that, Volcano leaves roles out of account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from volcano_elastic.api import merge_patch, quantity
from volcano_elastic.api.pytorchjob import PyTorchJob

# Annotations of the job that mean something only there.
_NOT_COPIED = ("kubectl.kubernetes.io/", "kopf.", "volcano-elastic.io/")

# Whole units whose thousandths fit 64 bits. Volcano counts all but memory in those, and its
# scheduler ends with a panic where they overflow.
_MOST = (2**63 - 1) // 1000 * 1000

Amounts = Mapping[str, int]
"""By resource, in thousandths."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Amounts that the pods of one role ask for."""

    pods: tuple[Amounts, ...] = ()
    """Each of those that are there or about to come, in falling task priority."""
    further: Amounts = field(default_factory=dict)
    """One beyond these."""

    def first(self, count: int) -> dict[str, int]:
        """Return what the first `count` pods ask for together."""
        total = quantity.total(self.pods[:count])
        missing = max(0, count - len(self.pods))
        return quantity.total([total, {n: v * missing for n, v in self.further.items()}])


@dataclass(frozen=True, slots=True)
class Members:
    """The number of pods that must start together, in all and by role."""

    total: int
    by_role: Mapping[str, int] = field(default_factory=dict)
    """By the role's label, how many of `total` it has at least; empty: whichever pods there are."""


def min_member(job: PyTorchJob) -> int:
    """Return how many pods must start together; an explicit minAvailable wins."""
    explicit = job.run_policy.scheduling.min_available
    return job.min_members if explicit is None else explicit


def shares(job: PyTorchJob, members: int) -> dict[str, int]:
    """Return, by role's name, how many of `members` pods it has.

    Roles of a fixed number have all of theirs before the elastic one, each in falling task
    priority.
    """
    found = {}
    for name, replica in sorted(job.replicas.items(), key=lambda item: item[1].role.elastic):
        most = job.elastic.max if job.elastic and replica.role.elastic else replica.replicas
        found[name] = min(most, members)
        members -= found[name]
    return found


def members(
    job: PyTorchJob, existing: Mapping[str, Any] | None, live: Mapping[str, int]
) -> Members:
    """Return the gang's members: those of the minimum, by role unless minAvailable says otherwise.

    Numbers of a PodGroup that exists rise only as far as there are pods, `live` by role's name:
    above that Volcano skips the whole gang.
    """
    found = (existing or {}).get("spec") or {}
    now, by_role = int(found.get("minMember") or 0), found.get("minTaskMember") or {}
    total = min_member(job)
    if existing is not None and total > now:
        total = max(now, min(total, sum(live.values())))
    if job.run_policy.scheduling.min_available is not None:
        return Members(total)
    counts = {}
    for name, count in shares(job, total).items():
        label = job.replicas[name].role.label
        if existing is not None:
            count = min(count, max(int(by_role.get(label) or 0), live[name]))
        if count:
            counts[label] = count
    return Members(total, counts)


def min_resources(
    job: PyTorchJob, members: int, requests: Mapping[str, Requests]
) -> dict[str, str]:
    """Return what `members` pods, shared among the roles, ask for together, of what each role's
    pods ask for."""
    explicit = job.run_policy.scheduling.min_resources
    if explicit is not None:
        return {name: _text(name, quantity.milli(v)) for name, v in explicit.items()}
    total = quantity.total(
        requests[name].first(count) for name, count in shares(job, members).items() if count
    )
    return {name: _text(name, amount) for name, amount in total.items() if amount}


def _text(name: str, amount: int) -> str:
    return quantity.text(amount if name == "memory" else min(amount, _MOST))


def spec(job: PyTorchJob, members: Members, requests: Mapping[str, Requests]) -> dict[str, Any]:
    """Return what the PodGroup's spec should say; its queue is chosen once, at its creation."""
    found: dict[str, Any] = {
        "minMember": members.total,
        "minTaskMember": dict(members.by_role),
        "minResources": min_resources(job, members.total, requests),
    }
    if job.run_policy.scheduling.priority_class:
        found["priorityClassName"] = job.run_policy.scheduling.priority_class
    return found


def build(job: PyTorchJob, owner: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the PodGroup to create; `owner` is the owner reference."""
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
        "spec": {**spec, "queue": job.queue},
    }


def patch(existing: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch of the fields that differ, or None.

    Never a PUT: PodGroup has no status subresource, so that would erase the phase. The queue
    stays what it is.
    """
    found = existing.get("spec") or {}
    current = {name: found[name] for name in ("minMember", "priorityClassName") if name in found}
    current["minTaskMember"] = found.get("minTaskMember") or {}
    current["minResources"] = {
        name: _canonical(amount) for name, amount in (found.get("minResources") or {}).items()
    }
    difference = merge_patch.difference(current, spec)
    return {"spec": difference} if difference else None


def queue_in_force(job: PyTorchJob, existing: Mapping[str, Any] | None) -> str:
    """Return the PodGroup's queue, in which it stays whatever the job asks for by now."""
    if existing is None:
        return job.queue
    return str((existing.get("spec") or {}).get("queue") or "default")


def _canonical(amount: str | int | float) -> str:
    try:
        return quantity.text(quantity.milli(amount))
    except quantity.QuantityError:
        return str(amount)  # somebody else's nonsense differs from ours, and is replaced
