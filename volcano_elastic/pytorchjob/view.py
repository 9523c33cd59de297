"""A job and what is observed of it, as one value that everything is decided from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob import rendezvous
from volcano_elastic.pytorchjob.observed import Observed, Replica, replicas


@dataclass(frozen=True, slots=True)
class View:
    """A job and what is there of it, at one moment."""

    job: PyTorchJob
    """The job as its running pods know it."""
    observed: Observed
    now: datetime
    replicas: tuple[Replica, ...]
    """Pods of the job's roles, in falling task priority."""
    dropped: tuple[Replica, ...]
    """Pods of roles that an edit took out; nothing of theirs decides about the job."""
    in_force: rendezvous.InForce

    @property
    def all_replicas(self) -> tuple[Replica, ...]:
        return self.replicas + self.dropped


def look(job: PyTorchJob, observed: Observed, now: datetime) -> View:
    """Return the view of a job that may be touched."""
    found = replicas(job, observed)
    asked = tuple(r for r in found if r.role.name in job.replicas)
    in_force = rendezvous.in_force(job, _host(asked, observed))
    return View(
        job=in_force.job,
        observed=observed,
        now=now,
        replicas=asked,
        dropped=tuple(r for r in found if r.role.name not in job.replicas),
        in_force=in_force,
    )


def _host(asked: Sequence[Replica], observed: Observed) -> Mapping[str, Any] | None:
    """Return the pod that the job's others go by: the elastic role's pod 0 hosts the rendezvous."""
    live = (r for r in asked if r.live)
    host = min(live, key=lambda r: (not r.role.elastic, -r.role.priority, r.index), default=None)
    found = (pod for pod in observed.pods if host and pod["metadata"]["name"] == host.name)
    return next(found, None)
