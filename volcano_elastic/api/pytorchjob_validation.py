"""What is wrong with a PyTorchJob: each field's path, and what would be right.

What Kubeflow accepts is accepted, but for what cannot be carried out. The API server may know
less than this (CEL rules are not everywhere), so the operator asks here again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from volcano_elastic.api import pod, quantity

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KINDS = ("Master", "Worker")
_WORDS = {
    "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
    "cleanPodPolicy": ("All", "Running", "None"),
    "managedBy": ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"),
    "scaler": ("volcano", "hpa", "none"),
    "coordinator": ("worker0", "dedicated"),
}
# Field of elasticPolicy to the smallest number that makes sense.
_NUMBERS = {
    "minReplicas": 1,
    "maxReplicas": 1,
    "min": 1,
    "max": 1,
    "nodeUnit": 1,
    "cooldownSeconds": 0,
    "maxRestarts": 0,
    "rdzvPort": 1,
    "nProcPerNode": 1,
}


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    message: str
    """What would be right, and what was found."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def validate(obj: Mapping[str, Any]) -> list[Problem]:
    """Empty if the job can be carried out."""
    return list(_validate(obj))


def _validate(obj: Mapping[str, Any]) -> Iterator[Problem]:
    name = (obj.get("metadata") or {}).get("name", "")
    # Its pods' and services' names begin with it, and services must be DNS-1035 labels.
    if not _NAME.fullmatch(name) or len(name) > 50:
        yield Problem(
            "metadata.name",
            "must be at most 50 of a-z, 0-9 and -, beginning with a letter and ending with a "
            f"letter or digit, found {name!r}",
        )
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        yield Problem("spec", "must be required")
        return
    replicas = spec.get("pytorchReplicaSpecs")
    if not isinstance(replicas, Mapping) or not replicas:
        yield Problem("spec.pytorchReplicaSpecs", "must be required: Worker, Master or both")
        return
    for kind, replica in replicas.items():
        path = f"spec.pytorchReplicaSpecs[{kind}]"
        if kind not in _KINDS:
            yield Problem(path, f"must be one of {_list(_KINDS)}, found {kind!r}")
        elif not isinstance(replica, Mapping):
            yield Problem(path, f"must be an object with a template, found {replica!r}")
        else:
            yield from _replica(path, kind, replica)
    if spec.get("elasticPolicy") is not None:
        yield from _elastic(spec, replicas)
    yield from _run_policy(spec.get("runPolicy") or {})


def _replica(path: str, kind: str, replica: Mapping[str, Any]) -> Iterator[Problem]:
    count = replica.get("replicas", 1)
    if kind == "Master" and count != 1:
        yield Problem(f"{path}.replicas", f"must be 1, found {count!r}")
    elif not _is_integer(count) or count < 1:
        yield Problem(f"{path}.replicas", f"must be at least 1, found {count!r}")
    yield from _word(path, replica, "restartPolicy")
    template = replica.get("template")
    pod_spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = pod_spec.get("containers") if isinstance(pod_spec, Mapping) else None
    path += ".template.spec.containers"
    if not isinstance(pod_spec, Mapping) or not isinstance(containers, list) or not containers:
        yield Problem(path, "must be specified")
        return
    for i, container in enumerate(containers):
        if not isinstance(container, Mapping) or not container.get("name"):
            yield Problem(f"{path}[{i}].name", "must be required")
        elif not container.get("image"):
            yield Problem(f"{path}[{i}].image", "must be required")
    if not any(isinstance(c, Mapping) and c.get("name") == "pytorch" for c in containers):
        yield Problem(path, "must have at least one container with name pytorch")
        return
    try:
        pod.requests(pod_spec)
    except quantity.QuantityError as error:
        yield Problem(f"{path}[*].resources", str(error))


def _elastic(spec: Mapping[str, Any], replicas: Mapping[str, Any]) -> Iterator[Problem]:
    elastic, path = spec["elasticPolicy"], "spec.elasticPolicy"
    if not isinstance(elastic, Mapping):
        yield Problem(path, f"must be an object, found {elastic!r}")
        return
    if "Worker" not in replicas:
        yield Problem(
            "spec.pytorchReplicaSpecs[Worker]", "must be configured if elastic policy is used"
        )
    sound = True
    for field, least in _NUMBERS.items():
        value = elastic.get(field)
        if value is not None and (not _is_integer(value) or value < least):
            sound = False
            yield Problem(
                f"{path}.{field}", f"must be an integer of at least {least}, found {value!r}"
            )
    yield from _word(path, elastic, "scaler")
    yield from _word(path, elastic, "coordinator")
    if elastic.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        yield Problem(f"{path}.nProcPerNode", "must not be used with spec.nprocPerNode")
    for i, pair in enumerate(elastic.get("rdzvConf") or ()):
        if not isinstance(pair, Mapping) or "key" not in pair or "value" not in pair:
            yield Problem(f"{path}.rdzvConf[{i}]", f"must have key and value, found {pair!r}")
    if not sound:
        return
    for short, long in (("min", "minReplicas"), ("max", "maxReplicas")):
        a, b = elastic.get(short), elastic.get(long)
        if a is not None and b is not None and a != b:
            yield Problem(f"{path}.{short}", f"must equal {long} ({b}) or be left out, found {a}")
    low_name = "min" if elastic.get("min") is not None else "minReplicas"
    high_name = "max" if elastic.get("max") is not None else "maxReplicas"
    low, high = elastic.get(low_name), elastic.get(high_name)
    if low is not None and high is not None and low > high:
        yield Problem(f"{path}.{low_name}", f"must be at most {high_name} ({high}), found {low}")
    unit = elastic.get("nodeUnit", 1)
    for name, value in ((low_name, low), (high_name, high)):
        if value is not None and value % unit:
            wanted = f"must be a multiple of nodeUnit ({unit}), found {value}"
            yield Problem(f"{path}.{name}", wanted)


def _run_policy(policy: Mapping[str, Any]) -> Iterator[Problem]:
    path = "spec.runPolicy"
    yield from _word(path, policy, "cleanPodPolicy")
    yield from _word(path, policy, "managedBy")
    for field in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
        value = policy.get(field)
        if value is not None and (not _is_integer(value) or value < 0):
            yield Problem(f"{path}.{field}", f"must be an integer of at least 0, found {value!r}")
    scheduling = policy.get("schedulingPolicy") or {}
    least = scheduling.get("minAvailable")
    if least is not None and (not _is_integer(least) or least < 1):
        yield Problem(
            f"{path}.schedulingPolicy.minAvailable",
            f"must be an integer of at least 1, found {least!r}",
        )
    try:
        quantity.parse(scheduling.get("minResources") or {})
    except quantity.QuantityError as error:
        yield Problem(f"{path}.schedulingPolicy.minResources", str(error))


def _word(path: str, raw: Mapping[str, Any], field: str) -> Iterator[Problem]:
    value = raw.get(field)
    if value and value not in _WORDS[field]:
        yield Problem(f"{path}.{field}", f"must be one of {_list(_WORDS[field])}, found {value!r}")


def _list(words: tuple[str, ...]) -> str:
    return ", ".join(words)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
