"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import json_path
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.status import bad_request

Selector = Callable[[Object], bool]
_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>!=|==|=)\s*(?P<value>[^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*$")
# Fields beside metadata.name and metadata.namespace by which Kubernetes selects.
_FIELDS: dict[str, list[str]] = {
    kind: fields.split()
    for kind, fields in {
        "pods": "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName "
        "spec.hostNetwork status.phase status.podIP status.nominatedNodeName",
        "events": "involvedObject.kind involvedObject.namespace involvedObject.name "
        "involvedObject.uid involvedObject.apiVersion involvedObject.resourceVersion "
        "involvedObject.fieldPath reason reportingComponent source type",
        "nodes": "spec.unschedulable",
        "namespaces": "status.phase",
        "secrets": "type",
        "services": "spec.clusterIP spec.type",
    }.items()
}


def labels(text: str) -> Callable[[Mapping[str, str]], bool]:
    """A test of a label map.

    Raises:
        StatusError: 400, the selector cannot be read.
    """
    tests = [_requirement(part) for part in _split(text) if part.strip()]
    return lambda found: all(test(found) for test in tests)


def parse(label_selector: str, field_selector: str, kind: Kind) -> Selector | None:
    """One test of an object, or None where everything matches.

    Raises:
        StatusError: 400, one of the two cannot be read or names a field that has no index.
    """
    tests: list[Selector] = []
    if label_selector.strip():
        by_label = labels(label_selector)
        tests.append(lambda obj: by_label(obj["metadata"].get("labels") or {}))
    for part in field_selector.split(","):
        if part.strip():
            tests.append(_field_test(part, kind))
    if not tests:
        return None
    return lambda obj: all(test(obj) for test in tests)


def matches(selector: Object | None, found: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects a label map; None and {} select everything."""
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        if found.get(key) != value:
            return False
    for one in (selector or {}).get("matchExpressions") or ():
        key, values = one.get("key", ""), one.get("values") or ()
        holds = {
            "In": key in found and found[key] in values,
            "NotIn": key not in found or found[key] not in values,
            "Exists": key in found,
            "DoesNotExist": key not in found,
        }
        if not holds.get(one.get("operator", ""), False):
            return False
    return True


def _split(text: str) -> list[str]:
    """At commas outside of parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _requirement(part: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.match(part):
        key = match["key"]
        values = {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda found: key in found and found[key] in values
        return lambda found: key not in found or found[key] not in values
    if match := _EQUAL.match(part):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda found: found.get(key) != value
        return lambda found: found.get(key) == value
    if match := _EXISTS.match(part):
        key, wanted = match["key"], not match["not"]
        return lambda found: (key in found) == wanted
    raise bad_request(
        f"unable to parse requirement: found {part.strip()!r}, expected key=value, key!=value, "
        "key in (a,b), key notin (a,b), key or !key"
    )


def _field_test(part: str, kind: Kind) -> Selector:
    match = _EQUAL.match(part.replace("\\", ""))
    if not match:
        raise bad_request(f"invalid selector: {part!r}; expected field=value or field!=value")
    field, value, negated = match["key"], match["value"], match["op"] == "!="
    if field not in ("metadata.name", "metadata.namespace") and field not in (
        () if kind.custom else _FIELDS.get(kind.plural, ())
    ):
        raise bad_request(f'field label not supported: "{field}" (of {kind.plural})')
    path = "source.component" if field == "source" else field
    return lambda obj: (_text(obj, path) == value) != negated


def _text(obj: Object, path: str) -> str:
    found = next(iter(json_path.find(path, obj)), None)
    if found is None:
        # Fields that are left out when false.
        return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(found).lower() if isinstance(found, bool) else str(found)
