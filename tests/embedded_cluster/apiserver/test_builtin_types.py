"""builtin_types.txt says of the built-in kinds what the official client says.

`python tests/embedded_cluster/apiserver/test_builtin_types.py` writes it anew.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from kubernetes.client import models

from embedded_cluster.apiserver import builtin_type
from embedded_cluster.apiserver.builtin import BUILTIN

_FILE = Path(builtin_type.__file__).with_name("builtin_types.txt")
_HEAD = """\
# The fields of the types of the built-in kinds, of Kubernetes 1.37. NAME: FIELD=TYPE...
# ?: left out where it is empty, 0 or false (in Go: omitempty, and no pointer).
# test_builtin_types.py holds them to the official client, and writes this file anew.
"""
_ROOTS = (
    *("V1Namespace", "V1Node", "V1Pod", "V1Service", "CoreV1Event"),
    *("V1ConfigMap", "V1Secret", "V1ServiceAccount", "V1Lease", "V1PriorityClass"),
    *("V1ResourceQuota",),
    *("V2HorizontalPodAutoscaler", "V1CustomResourceDefinition", "V1Eviction"),
    *("V1Binding", "V1Scale"),
    *("V1MutatingWebhookConfiguration", "V1ValidatingWebhookConfiguration"),
)
# The client has them as strings.
_QUANTITIES = {
    *("ResourceRequirements.limits", "ResourceRequirements.requests"),
    *("VolumeResourceRequirements.limits", "VolumeResourceRequirements.requests"),
    *("NodeStatus.capacity", "NodeStatus.allocatable", "EmptyDirVolumeSource.sizeLimit"),
    *("ResourceFieldSelector.divisor", "PodSpec.overhead", "ContainerStatus.allocatedResources"),
    *("PodStatus.allocatedResources", "MetricTarget.value", "MetricTarget.averageValue"),
    *("MetricValueStatus.value", "MetricValueStatus.averageValue", "HPAScalingRules.tolerance"),
    *("ResourceQuotaSpec.hard", "ResourceQuotaStatus.hard", "ResourceQuotaStatus.used"),
}
_ANYTHING = ("CustomResourceSubresources.status",)
# A schema's; in its place, some fields of it may have a boolean (or a list, which CRDs may not).
_SCHEMAS = {
    "JSONSchemaProps.items": "JSONSchemaProps",
    "JSONSchemaProps.additionalProperties": "boolean|JSONSchemaProps",
}
_SCALARS: dict[Any, str] = {str: "string", bytes: "bytes", int: "integer", bool: "boolean"}
_SCALARS |= {float: "number", datetime: "time"}


def _name(model: Any) -> str:
    return re.sub(r"^V[12](?=[A-Z])", "", model.__name__)


def _type(annotation: Any, where: str, models_seen: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if where in _ANYTHING:
        return "any"
    if where in _SCHEMAS:
        return _SCHEMAS[where]
    if origin is Annotated:
        return _type(arguments[0], where, models_seen)
    if origin in (Union, UnionType):
        kinds = {_type(one, where, models_seen) for one in arguments if one is not type(None)}
        unions = {
            frozenset({"integer", "string"}): "intOrString",
            frozenset({"integer", "number"}): "number",
            frozenset({"bytes", "string"}): "bytes",
        }
        return kinds.pop() if len(kinds) == 1 else unions.get(frozenset(kinds), "any")
    if origin is list:
        return f"[{_type(arguments[0], where, models_seen)}]"
    if origin is dict:
        return f"{{{_type(arguments[1], where, models_seen)}}}"
    if annotation is str and where in _QUANTITIES:
        return "quantity"
    if hasattr(annotation, "model_fields"):
        models_seen.append(annotation)
        return _name(annotation)
    return _SCALARS.get(annotation, "any")


def _written() -> str:
    """The file as it should be; what is left out is not the client's to say, and stays."""
    lines = [line.split() for line in _FILE.read_text().splitlines() if not line.startswith("#")]
    omitted = {
        f"{name}{one.split('=')[0]}" for name, *fields in lines for one in fields if "?" in one
    }
    found: dict[str, str] = {}
    todo = [getattr(models, root) for root in _ROOTS]
    while todo:
        model = todo.pop()
        name = _name(model)
        if name in found:
            continue
        fields = {
            info.serialization_alias or field: info.annotation
            for field, info in model.model_fields.items()
        }
        found[name] = " ".join(
            f"{field}={_type(annotation, f'{name}.{field}', todo)}"
            + "?" * (f"{name}:{field}" in omitted)
            for field, annotation in sorted(fields.items())
        )
    return _HEAD + "".join(f"{name}: {fields}\n" for name, fields in sorted(found.items()))


def test_it_is_what_the_official_client_says() -> None:
    assert _FILE.read_text() == _written()


@pytest.mark.parametrize("kind", list(BUILTIN), ids=lambda kind: kind.qualified)
def test_every_built_in_kind_has_its_type(kind: Any) -> None:
    assert "metadata" in builtin_type.types()[builtin_type.type_of(kind)]


def test_every_rule_is_about_a_field_that_there_is() -> None:
    lines = _FILE.with_name("builtin_rules.txt").read_text().splitlines()
    places = [line.split() for line in lines if not line.startswith("#")]
    assert len(places) > 50
    types = builtin_type.types()
    for place, *words in places:
        name, _, paths = place.partition(".")
        for path in paths.split(","):
            *way, field = path.replace("[]", "").split(".")
            for part in way:
                at = builtin_type.struct_of(types[name][part])
                assert at in types, place
            assert field in types[at if way else name], place
        beside = [
            re.split("[:=]", word)[1] for word in words if word.startswith(("if:", "unless:"))
        ]
        where = at if way else name
        assert all(field in types[where] for field in beside), place
    for name, fields in builtin_type.types("builtin_lists.txt").items():
        for field, keys in fields.items():
            inner = types.get(builtin_type.struct_of(types[name][field]), {})
            assert types[name][field][0] == ("{" if keys == "{}" else "[")
            assert keys in ("*", "{}") or {*keys.split(",")} <= inner.keys()


if __name__ == "__main__":
    _FILE.write_text(_written())
