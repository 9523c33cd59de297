"""Others who may have their hands on our jobs: training-operator, and whoever applies its CRD.

Kubeflow's training-operator and this operator serve the same kind. Two of them on one job would
fight over its pods, so this one steps back as soon as it sees the other at work:

only the other wrote the status ─► wait until it has been silent for QUIET, then take the job over
it wrote after we did           ─► leave the job alone, and say so, until somebody annotates it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic import assets
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.pytorchjob_shape import ADOPT_ANNOTATION

# Field manager of this operator's writes: the first word of its User-Agent.
US = "volcano-elastic"
# training-operator's program is called `manager` in its image, and names itself after that.
_FOREIGN = frozenset({"training-operator", "manager"})
QUIET = timedelta(minutes=5)
ALONE = "Left alone: training-operator"
"""How the message begins of a job that is not touched any more."""


@dataclass(frozen=True, slots=True)
class Yielded:
    """The job is left to another operator; `message` says why, and what to do."""

    message: str
    until: datetime | None
    """None: until somebody decides."""


def yield_to(job: PyTorchJob, pods: Sequence[Mapping[str, Any]], now: datetime) -> Yielded | None:
    """Return why the job is left to another operator; None if nobody else is at work on it."""
    foreign = max(_foreign(job, pods), default=None)
    if foreign is None or job.annotations.get(ADOPT_ANNOTATION) == "true":
        return None
    manager = foreign.manager
    if _contested(job, foreign):
        return Yielded(
            f"{ALONE} (field manager {manager}) works on this job too. Run it without the "
            f"pytorchjob scheme (--enable-scheme), then: kubectl annotate pytorchjob {job.name} "
            f"-n {job.namespace} {ADOPT_ANNOTATION}=true",
            None,
        )
    end = foreign.time + QUIET
    if _ours(job) is None and now < end:
        return Yielded(
            f"Waits: training-operator (field manager {manager}) worked on this job at "
            f"{moment.timestamp(foreign.time)}; it is taken over after "
            f"{QUIET // timedelta(minutes=1)} minutes of its silence",
            end,
        )
    return None


def left_alone(job: PyTorchJob) -> bool:
    """Return whether nothing is planned for the job: its status alone says it is another's."""
    foreign = max(_status_writes(job, _FOREIGN), default=None)
    if foreign is None or job.annotations.get(ADOPT_ANNOTATION) == "true":
        return False
    return _ours(job) is None or _contested(job, foreign)


def _contested(job: PyTorchJob, foreign: _Write) -> bool:
    """Both wrote. Saying so was a write too, hence what was said counts as well."""
    message = str((job.status.get("elastic") or {}).get("message") or "")
    ours = _ours(job)
    return message.startswith(ALONE) or (ours is not None and foreign.time >= ours.time)


def _ours(job: PyTorchJob) -> _Write | None:
    return max(_status_writes(job, frozenset({US})), default=None)


@dataclass(frozen=True, slots=True, order=True)
class _Write:
    time: datetime
    manager: str


def _foreign(job: PyTorchJob, pods: Sequence[Mapping[str, Any]]) -> Iterator[_Write]:
    yield from _status_writes(job, _FOREIGN)
    for pod in pods:
        for entry in pod["metadata"].get("managedFields") or ():
            # Who wrote the owner created the pod; kubelets and schedulers write other fields.
            if entry.get("manager") in _FOREIGN and "f:ownerReferences" in (
                (entry.get("fieldsV1") or {}).get("f:metadata") or {}
            ):
                yield from _write(entry)


def _status_writes(job: PyTorchJob, managers: frozenset[str]) -> Iterator[_Write]:
    for entry in job.managed_fields:
        if entry.get("manager") in managers and entry.get("subresource") == "status":
            yield from _write(entry)


def _write(entry: Mapping[str, Any]) -> Iterator[_Write]:
    time = moment.parse_optional(entry.get("time"))
    if time is not None:
        yield _Write(time, str(entry["manager"]))


# What the operator cannot do without: our fields, among Kubeflow's, of a job's elasticPolicy, and
# those that it writes, and reads back as its memory.
_NEEDED = (
    *(
        f"spec.elasticPolicy.{name}"
        for name in ("min", "max", "nodeUnit", "cooldownSeconds", "scaler", "coordinator")
    ),
    "status.queue",
    *(
        f"status.elastic.{name}"
        for name in assets.schema(assets.PYTORCHJOBS, "status")["properties"]["elastic"][
            "properties"
        ]
    ),
)


def missing_fields(crd: Mapping[str, Any], version: str = "v1") -> list[str]:
    """Return our fields that the CustomResourceDefinition of PyTorchJob lacks, e.g. because
    Kubeflow's was applied over ours: the API server drops those, so the operator must not write at
    all."""
    versions = (crd.get("spec") or {}).get("versions") or ()
    served = next((v for v in versions if v.get("name") == version and v.get("served")), None)
    if served is None:
        return [f"version {version}"]
    schema = (served.get("schema") or {}).get("openAPIV3Schema") or {}
    lacking = [path for path in _NEEDED if not _known(schema, path.split("."))]
    if "status" not in (served.get("subresources") or {}):
        lacking.append("the status subresource")
    return lacking


def _known(schema: Mapping[str, Any], path: Sequence[str]) -> bool:
    for name in path:
        properties = schema.get("properties") or {}
        if name not in properties:
            return bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        schema = properties[name]
    return True
