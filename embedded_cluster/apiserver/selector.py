"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from embedded_cluster.apiserver import json_path
from embedded_cluster.apiserver.builtin_rule import PATTERNS
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.status import bad_request
from volcano_elastic.kube.resource import Object

Selector = Callable[[Object], bool]
# A label's key, an operator (in, notin, exists, !, <, >) and its values.
_Requirement = tuple[str, str, set[str]]
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
# Each ends with a comma that is outside of parentheses. Possessive, as those below: a selector may
# be a megabyte, and to try its spaces and commas in other ways would take hours.
_PART = re.compile(r"((?:\([^()]*+\)|[^,])*+),")
_SET = re.compile(r"^\s*+(?P<key>[^\s!=,()]++)\s++(?P<op>in|notin)\s*+\((?P<values>[^()]*+)\)\s*+$")
_EQUAL = re.compile(
    r"^\s*+(?P<key>[^\s!=,()]++)\s*+(?P<op>!=|==|=)\s*+(?P<value>[^\s!=,()]*+)\s*+$"
)
_BEYOND = re.compile(
    r"^\s*+(?P<key>[^\s!=<>,()]++)\s*+(?P<op>[<>])\s*+(?P<value>[0-9]{1,18}+)\s*+$"
)
_EXISTS = re.compile(r"^\s*+(?P<not>!?)\s*+(?P<key>[^\s!=,()]++)\s*+$")
_NUMBER = re.compile(r"[0-9]{1,18}")
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


def of_query(query: Mapping[str, str], kind: Kind) -> Selector | None:
    """labelSelector and fieldSelector as one test; None where everything matches.

    Raises:
        StatusError: 400, one of the two cannot be read or names a field that has no index.
    """
    label_selector, field_selector = query.get("labelSelector", ""), query.get("fieldSelector", "")
    tests: list[Selector] = []
    if label_selector.strip():
        wanted = [_requirement(part) for part in _PART.findall(label_selector + ",")]
        for key, _, values in wanted:
            if not PATTERNS["qualified"].fullmatch(key):
                raise bad_request(f"labelSelector: expected the key of a label, found {key!r}")
            for value in values:
                if not PATTERNS["labelValue"].fullmatch(value):
                    raise bad_request(f"labelSelector: expected a label's value, found {value!r}")
        tests.append(lambda obj: _holds(wanted, obj["metadata"].get("labels") or {}))
    for part in field_selector.split(","):
        if part.strip():
            tests.append(_field_test(part, kind))
    if not tests:
        return None
    return lambda obj: all(test(obj) for test in tests)


def matches(selector: Object | None, found: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects a label map; None and {} select everything."""
    selector = selector or {}
    pairs = (selector.get("matchLabels") or {}).items()
    wanted: list[_Requirement] = [(key, "in", {value}) for key, value in pairs]
    for one in selector.get("matchExpressions") or ():
        operator = _OPERATORS.get(one.get("operator", ""), "")
        wanted.append((one.get("key", ""), operator, {*(one.get("values") or ())}))
    return _holds(wanted, found)


def _holds(wanted: list[_Requirement], found: Mapping[str, str]) -> bool:
    return all(_meets(found.get(key), operator, values) for key, operator, values in wanted)


def _meets(value: str | None, operator: str, values: set[str]) -> bool:
    match operator:
        case "in":
            return value in values
        case "notin":
            return value not in values
        case "exists":
            return value is not None
        case "!":
            return value is None
        case "<" | ">" if value and _NUMBER.fullmatch(value):
            found, (limit,) = int(value), map(int, values)
            return found < limit if operator == "<" else found > limit
    return False


def _requirement(part: str) -> _Requirement:
    if match := _SET.match(part):
        return match["key"], match["op"], {value.strip() for value in match["values"].split(",")}
    if match := _EQUAL.match(part):
        return match["key"], "notin" if match["op"] == "!=" else "in", {match["value"]}
    if match := _BEYOND.match(part):
        return match["key"], match["op"], {match["value"]}
    if match := _EXISTS.match(part):
        return match["key"], match["not"] or "exists", set()
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
