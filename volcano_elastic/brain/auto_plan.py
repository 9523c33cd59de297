"""The ScalePlan that Brain keeps for a job, and what is to be written of it. Pure.

It is its job's (owner reference) and lapses by itself, so that no job stays at a size that nobody
follows: Brain prolongs it while the job is in mode Live, and deletes it when it no longer is.

none there                            ─► create
expired                               ─► delete; the next one is made at the next occasion
another plan of that name             ─► left alone
says something else, or lapses soon   ─► patch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api.pytorchjob_shape import ANNOTATION_PREFIX
from volcano_elastic.api.scale_plan import (
    AUTO,
    TYPE_LABEL,
    InvalidPlan,
    Phase,
    RolePlan,
    ScalePlan,
    parse,
)
from volcano_elastic.brain.served_job import PlannedSize
from volcano_elastic.kube.resource import PYTORCHJOBS, SCALEPLANS

REASON_ANNOTATION = ANNOTATION_PREFIX + "reason"
LASTS = timedelta(hours=1)
"""How long a plan counts after Brain wrote it."""
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """The plan of a job that is there already."""

    plan: ScalePlan
    phase: str

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.EXPIRED, Phase.FAILED)

    @property
    def is_beaten(self) -> bool:
        """Return whether another plan, a person's, counts for the job."""
        return self.phase == Phase.SUPERSEDED


def name_of(job: Object) -> str:
    return f"{job['metadata']['name']}-brain"


def kept(job: Object, obj: Object) -> Kept | None:
    """Return the job's plan that Brain made; None: `obj` is another's."""
    meta = obj["metadata"]
    owners = {owner.get("uid") for owner in meta.get("ownerReferences") or ()}
    if meta.get("name") != name_of(job) or job["metadata"]["uid"] not in owners:
        return None
    try:
        plan = parse(obj)
    except InvalidPlan:
        return None
    if plan.manual:
        return None
    return Kept(plan, str((obj.get("status") or {}).get("phase") or ""))


def made(job: Object, size: PlannedSize) -> dict[str, Any]:
    """Return a new plan."""
    meta = job["metadata"]
    owner = {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": PYTORCHJOBS.kind,
        "name": meta["name"],
        "uid": meta["uid"],
    }
    return {
        "apiVersion": SCALEPLANS.api_version,
        "kind": SCALEPLANS.kind,
        "metadata": {
            "name": name_of(job),
            "namespace": meta.get("namespace", "default"),
            "labels": {TYPE_LABEL: AUTO},
            "annotations": {REASON_ANNOTATION: size.reason},
            "ownerReferences": [owner],
        },
        "spec": {
            "ownerJob": meta["name"],
            "expireSeconds": LASTS.total_seconds(),
            "replicaResourceSpecs": _spelled(size.roles),
        },
    }


def patch(there: Kept, size: PlannedSize | None, now: datetime) -> dict[str, Any] | None:
    """Return the merge patch that changes or prolongs a plan; None: it may stay.

    Args:
        size: None: what it says already.
    """
    plan = there.plan
    if size is None and plan.expires is not None and plan.expires - now > LASTS / 2:
        return None
    spec: dict[str, Any] = {"expireSeconds": round((now - plan.created + LASTS).total_seconds())}
    if size is None:
        return {"spec": spec}
    spec["replicaResourceSpecs"] = _spelled(size.roles)
    return {"metadata": {"annotations": {REASON_ANNOTATION: size.reason}}, "spec": spec}


def _spelled(roles: Mapping[str, RolePlan]) -> dict[str, Any]:
    found = {}
    for name, role in roles.items():
        one: dict[str, Any] = {} if role.replicas is None else {"replicas": role.replicas}
        amounts = {"cpu": role.cpu, "memory": role.memory}
        resource = {key: str(amount) for key, amount in amounts.items() if amount is not None}
        found[name] = one | ({"resource": resource} if resource else {})
    return found
