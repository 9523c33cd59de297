"""Validates a PyTorchJob, in Kubeflow's words where Kubeflow refuses it too.

A job that Kubeflow accepts is accepted, unless it could never run. The API server's own rules (the
CRD's) are some of these; webhooks and the operator ask for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from volcano_elastic.api import quantity, role, server_bounds, shape
from volcano_elastic.api.checkpoint_size import CHECKPOINT_ANNOTATION
from volcano_elastic.api.problem import Problem, forbidden, invalid, required, unsupported
from volcano_elastic.api.pytorchjob_defaults import bounds, end
from volcano_elastic.api.pytorchjob_shape import (
    CONTROLLER,
    CPU_LIMIT_ANNOTATION,
    ELASTIC_POLICY,
    INJECT_ANNOTATION,
    MOST_MEMORY_ANNOTATION,
    REPLICA,
    RUN_POLICY,
    SHARED_MEMORY_ANNOTATION,
)

CONTAINER = "pytorch"
BACKEND = "volcano-elastic"
"""Rendezvous backend: the trainer's own coordinator."""
TORCHRUN = "c10d"
"""Rendezvous backend: torchrun's own, and the default."""
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_RULE = (
    "should match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name', "
    " or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_NAME_LIMIT = 63
# As many as an indexed Job may run at once; clusters are not made for more.
_MOST_PODS = 100_000


def validate(obj: Mapping[str, Any]) -> list[Problem]:
    """Return no problem if the job can be carried out. `obj` may be any JSON object."""
    return list(_validate(obj))


def validate_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Problem]:
    """Return the edits that are refused. Both must be valid in themselves."""
    path = "spec.runPolicy"
    found = []
    if manager(old) != manager(new):
        found.append(invalid(f"{path}.managedBy", manager(new), "field is immutable"))
    if queue(old) != queue(new):
        # In Kubeflow's words. There it may be added later, without any effect.
        path += ".schedulingPolicy.queue"
        found.append(invalid(path, queue(new), f"{path} is immutable"))
    return found


def manager(obj: Mapping[str, Any]) -> object:
    """Return the controller that carries the job out. The job may be wrong in any field."""
    return run_policy(obj).get("managedBy") or CONTROLLER


def run_policy(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the runPolicy of a job that may be wrong in any field."""
    spec = obj.get("spec")
    found = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def queue(obj: Mapping[str, Any]) -> str:
    """The job's Volcano queue: the policy's, else the annotation's, else `default`."""
    policy = run_policy(obj).get("schedulingPolicy") or {}
    annotations = obj["metadata"].get("annotations") or {}
    return policy.get("queue") or annotations.get(QUEUE_ANNOTATION) or "default"


def _validate(obj: Mapping[str, Any]) -> Iterator[Problem]:
    meta, spec = obj.get("metadata"), obj.get("spec")
    yield from _metadata(meta if isinstance(meta, Mapping) else {})
    if not isinstance(spec, Mapping):
        yield required("spec", "must be required")
        return
    if spec.get("runPolicy") is not None:
        yield from shape.problems(RUN_POLICY, spec["runPolicy"], "spec.runPolicy")
    nproc = spec.get("nprocPerNode")
    if nproc is not None and not isinstance(nproc, str):
        yield invalid("spec.nprocPerNode", nproc, "must be a string: auto, cpu, gpu or a number")
    replicas = spec.get("pytorchReplicaSpecs")
    if not isinstance(replicas, Mapping) or not replicas:
        yield required("spec.pytorchReplicaSpecs", "must be required")
        return
    sound = True
    for kind, replica in replicas.items():
        for problem in _replica(kind, replica):
            sound = False
            yield problem
    if spec.get("elasticPolicy") is not None:
        if (sized := role.elastic().name) not in replicas:
            sound = False
            yield required(
                f"spec.pytorchReplicaSpecs[{sized}]",
                "must be configured if elastic policy is used",
            )
        for problem in _elastic(spec):
            sound = False
            yield problem
    roles = [found for kind in replicas if (found := role.named(kind)) is not None]
    if sound and not any(found.trains for found in roles):
        sound = False
        trains = " or ".join(known.name for known in role.known() if known.trains)
        yield required("spec.pytorchReplicaSpecs", f"must have a role that trains ({trains})")
    if sound:
        yield from _sizes(meta if isinstance(meta, Mapping) else {}, spec, replicas)


def _metadata(meta: Mapping[str, Any]) -> Iterator[Problem]:
    name = meta.get("name", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield invalid("metadata.name", name, _NAME_RULE)
    elif len(name) > _NAME_LIMIT:
        yield invalid("metadata.name", name, "should match: must be no more than 63 characters")
    for field in ("labels", "annotations"):
        given = meta.get(field)
        if given is not None:
            yield from shape.problems(shape.Named(shape.Text()), given, f"metadata.{field}")
    for name in (
        SHARED_MEMORY_ANNOTATION,
        MOST_MEMORY_ANNOTATION,
        CPU_LIMIT_ANNOTATION,
        CHECKPOINT_ANNOTATION,
    ):
        yield from _amount(meta, "metadata", name)
    annotations = meta.get("annotations")
    if isinstance(annotations, Mapping):
        yield from server_bounds.problems(annotations)


def _amount(meta: Mapping[str, Any], path: str, name: str) -> Iterator[Problem]:
    annotations = meta.get("annotations")
    found = annotations.get(name) if isinstance(annotations, Mapping) else None
    if found is None:
        return
    path += f".annotations[{name}]"
    try:
        if quantity.milli(found) <= 0:
            yield invalid(path, found, "must be more than 0")
    except quantity.QuantityError as error:
        yield invalid(path, found, str(error))


def _replica(kind: str, replica: Any) -> Iterator[Problem]:
    path = f"spec.pytorchReplicaSpecs[{kind}]"
    found_role = role.named(kind)
    if found_role is None:
        yield unsupported(path, kind, tuple(known.name for known in role.known()))
        return
    found = list(shape.problems(REPLICA, replica, path))
    if found:
        yield from found
        return
    template = replica.get("template") or {}
    yield from _containers(template, f"{path}.template.spec.containers")
    meta = template.get("metadata") or {}
    yield from _amount(meta, f"{path}.template.metadata", SHARED_MEMORY_ANNOTATION)
    count = replica.get("replicas")
    if count is None:
        count = found_role.default_replicas
    most = found_role.most_replicas
    if most == 1 and count != 1:
        yield forbidden(f"{path}.replicas", "must be 1")
    elif count is None or count < 1:
        yield forbidden(f"{path}.replicas", "must be at least 1")
    elif most is not None and count > most:
        yield forbidden(f"{path}.replicas", f"must be at most {most}")


def _containers(template: Mapping[str, Any], path: str) -> Iterator[Problem]:
    containers = (template.get("spec") or {}).get("containers") or []
    if not containers:
        yield required(path, "must be specified")
    for i, container in enumerate(containers):
        if not container.get("image"):
            yield required(f"{path}[{i}].image", "must be required")
    if not any(container["name"] == CONTAINER for container in containers):
        yield required(path, f"must have at least one container with name {CONTAINER}")


def _elastic(spec: Mapping[str, Any]) -> Iterator[Problem]:
    elastic, path = spec["elasticPolicy"], "spec.elasticPolicy"
    found = list(shape.problems(ELASTIC_POLICY, elastic, path))
    if found:
        yield from found
        return
    if elastic.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        yield forbidden(f"{path}.nProcPerNode", "must not be used with spec.nprocPerNode")
    if elastic.get("coordinator") == "dedicated":
        if elastic.get("rdzvBackend") != BACKEND:
            yield forbidden(f"{path}.coordinator", f"dedicated needs rdzvBackend: {BACKEND}")
        if elastic.get("rdzvHost"):
            yield forbidden(f"{path}.rdzvHost", "must not be used with coordinator: dedicated")
    for i, pair in enumerate(elastic.get("rdzvConf") or ()):
        for field in ("key", "value"):
            if not pair.get(field):
                # torchrun takes no option without a value.
                yield required(f"{path}.rdzvConf[{i}].{field}", "must be required")
    for short in ("min", "max"):
        a, b = elastic.get(short), elastic.get(f"{short}Replicas")
        if a is not None and b is not None and a != b:
            yield invalid(f"{path}.{short}", a, f"must equal {short}Replicas ({b}) or be left out")


def _sizes(
    meta: Mapping[str, Any], spec: Mapping[str, Any], replicas: Mapping[str, Any]
) -> Iterator[Problem]:
    """Check the fields against each other; each must be right by itself."""
    counts = replica_counts(replicas)
    elastic, path = spec.get("elasticPolicy"), "spec.elasticPolicy"
    for name, count in counts.items():
        if count > _MOST_PODS:
            field = f"spec.pytorchReplicaSpecs[{name}].replicas"
            yield invalid(field, count, f"must be at most {_MOST_PODS}")
            return
    if elastic is not None:
        sized = role.elastic().name
        workers = counts[sized]
        low, high = bounds(elastic, workers)
        low_name, high_name = (_name_of(elastic, short) for short in ("min", "max"))
        if low > _MOST_PODS:
            yield invalid(f"{path}.{low_name or high_name}", low, f"must be at most {_MOST_PODS}")
        if low > high:
            yield invalid(f"{path}.{low_name}", low, f"must be at most {high_name} ({high})")
        unit = elastic.get("nodeUnit") or 1
        given = [(name, value) for name, value in ((low_name, low), (high_name, high)) if name]
        for name, value in given:
            if value % unit:
                yield invalid(f"{path}.{name}", value, f"must be a multiple of nodeUnit ({unit})")
        if not given and workers % unit:
            why = f"must divide {sized}.replicas ({workers}), which here is both min and max"
            yield invalid(f"{path}.nodeUnit", unit, why)
        counts[sized] = high
    name = str(meta.get("name"))
    endings = [
        f"-{known.label}-{counts[known.name] - 1}"
        for known in role.known()[::-1]
        if known.name in counts
    ]
    longest = max(endings, key=len)
    if elastic is not None and elastic.get("coordinator") == "dedicated":
        longest = max(longest, "-coordinator", key=len)
    if len(name) <= _NAME_LIMIT < len(name + longest):
        yield invalid(
            "metadata.name",
            name,
            f"must be no more than {_NAME_LIMIT - len(longest)} characters: pods and services are "
            f"named {name}{longest}, and {_NAME_LIMIT} are allowed",
        )


def replica_counts(replicas: Mapping[str, Any]) -> dict[str, int]:
    """Return the pods that `spec.pytorchReplicaSpecs` asks for by role, defaults filled in."""
    counts = {}
    for known in role.known():
        if known.name in replicas:
            count = replicas[known.name].get("replicas")
            counts[known.name] = (known.default_replicas or 1) if count is None else count
    return counts


def _name_of(elastic: Mapping[str, Any], short: str) -> str:
    """The field that gives this end; empty where neither does."""
    if end(elastic, short) is None:
        return ""
    return short if elastic.get(short) is not None else f"{short}Replicas"


def asks_for_trainer(meta: Mapping[str, Any]) -> bool:
    """Return whether the job's annotation asks for the trainer in pods whose image lacks it."""
    return str((meta.get("annotations") or {}).get(INJECT_ANNOTATION, "false")) != "false"


def injected(meta: Mapping[str, Any], elastic: Mapping[str, Any] | None) -> bool:
    """Return whether its pods get the trainer: they meet in one of their own, by torchrun's
    rendezvous or ours."""
    if elastic is None or not asks_for_trainer(meta):
        return False
    known = (elastic.get("rdzvBackend") or TORCHRUN) in (TORCHRUN, BACKEND)
    return known and not elastic.get("rdzvHost") and not elastic.get("standalone")
