"""JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch. All pure."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.status import StatusError, bad_request

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


# Kubernetes' own limits: few operations make a large document that copies itself.
_OPERATIONS = 10_000
_COPIED_BYTES = 3 * 1024 * 1024


def accepted(custom: bool) -> list[str]:
    """The content types of a PATCH."""
    return [JSON, MERGE, APPLY] if custom else [JSON, MERGE, STRATEGIC, APPLY]


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386; shares what it does not change with `target`."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902, on a copy of `target`.

    Raises:
        StatusError: 400 for something that is no JSON patch, 422 where it does not apply.
    """
    if not isinstance(operations, list):
        raise bad_request(
            f"a JSON patch is a list of operations, found {type(operations).__name__}"
        )
    if len(operations) > _OPERATIONS:
        raise _too_large(f"at most {_OPERATIONS} operations, found {len(operations)}")
    document, copied = copy.deepcopy(target), 0
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request(f"JSON patch operation {number}: expected an object with op and path")
        try:
            if operation.get("op") == "copy":
                copied += len(orjson.dumps(_find(document, _pointer(operation["from"]))))
                if copied > _COPIED_BYTES:
                    raise _too_large(f"to copy at most {_COPIED_BYTES} bytes")
            document = _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise StatusError(
                422,
                "Invalid",
                f"the server rejected our request due to an error in our request: JSON patch "
                f"operation {number} ({operation.get('op')} {operation['path']}): {error}",
                {},
            ) from error
    return document


def _too_large(expected: str) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"a JSON patch: expected {expected}")


def _operate(document: Any, operation: Object) -> Any:
    op, path = operation.get("op"), _pointer(operation["path"])
    if op in ("add", "replace", "test") and "value" not in operation:
        raise ValueError("value is missing")
    if op == "add":
        return _add(document, path, operation["value"])
    if op == "replace":
        # The real server takes a replacement of what an object doesn't have as an addition.
        if isinstance(_find(document, path[:-1]), list):
            _find(document, path)
            return _add(_remove(document, path), path, operation["value"])
        return _add(document, path, operation["value"])
    if op == "remove":
        return _remove(document, path)
    if op == "test":
        try:
            found = _find(document, path)
        except (KeyError, IndexError):
            found = None
        if found != operation["value"]:
            raise ValueError(f"test failed, found {found!r}, expected {operation['value']!r}")
        return document
    if op in ("move", "copy"):
        source = _pointer(operation["from"])
        value = copy.deepcopy(_find(document, source))
        if op == "move":
            document = _remove(document, source)
        return _add(document, path, value)
    raise ValueError(f"unknown op {op!r}; expected add, remove, replace, move, copy or test")


def _pointer(text: Any) -> list[str]:
    if text == "":
        return []
    if not isinstance(text, str) or not text.startswith("/"):
        raise ValueError("a path starts with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _find(document: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(document, list):
            document = document[_index(part, len(document) - 1)]
        elif isinstance(document, dict):
            if part not in document:
                raise KeyError(f"nothing at {part!r}")
            document = document[part]
        else:
            raise KeyError(f"nothing below a {type(document).__name__} at {part!r}")
    return document


def _index(part: str, highest: int) -> int:
    if not part.isdecimal() or int(part) > highest:
        raise IndexError(f"index {part!r} is out of range (0 to {highest})")
    return int(part)


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        end = len(parent)
        parent.insert(end if path[-1] == "-" else _index(path[-1], end), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise TypeError(f"cannot add to a {type(parent).__name__}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent) - 1)]
    else:
        if path[-1] not in parent:
            raise KeyError(f"nothing at {path[-1]!r}")
        del parent[path[-1]]
    return document


# patchMergeKey of the lists in built-in kinds. `ports` differs between containers and services.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "conditions": "type",
    "addresses": "type",
    "imagePullSecrets": "name",
    "secrets": "name",
    "hostAliases": "ip",
    "podIPs": "ip",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
_SETS = frozenset({"finalizers"})


def merge_key(field: str, items: list[Any]) -> str | None:
    """The key by which the elements of a built-in kind's list are told apart, if they are."""
    if field == "ports":
        first = next((item for item in items if isinstance(item, dict)), {})
        return "containerPort" if "containerPort" in first else "port"
    return _MERGE_KEYS.get(field)


def strategic(target: Any, patch: Any) -> Any:
    """Kubernetes' strategic merge of built-in kinds, with its $patch directives."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return _plain({name: value for name, value in patch.items() if name != "$patch"})
    if patch.get("$patch") == "delete":
        return {}
    if patch.get("$patch", "merge") != "merge":
        raise bad_request(f"$patch: expected replace, merge or delete, found {patch['$patch']!r}")
    result: Object = dict(target) if isinstance(target, dict) else {}
    if isinstance(kept := patch.get("$retainKeys"), list):
        result = {name: value for name, value in result.items() if name in kept}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _strategic_list(name, result.get(name), value)
        else:
            result[name] = strategic(result.get(name), value)
    for name, order in patch.items():
        if name.startswith("$setElementOrder/") and isinstance(order, list):
            field = name.partition("/")[2]
            if isinstance(result.get(field), list):
                before = target.get(field) if isinstance(target, dict) else None
                result[field] = _ordered(field, result[field], order, before or [])
    return result


def _strategic_list(field: str, old: Any, new: list[Any]) -> list[Any]:
    before: list[Any] = old if isinstance(old, list) else []
    if field in _SETS:
        return _ordered(field, new + [item for item in before if item not in new], new, before)
    key = merge_key(field, [*before, *new])
    if key is None:
        return [_plain(item) for item in new]
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in new):
        return [_plain(item) for item in new if item.get("$patch") != "replace"]
    result = list(before)
    for item in new:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"strategic merge patch: an element of {field} has no {key}")
        at = next(
            (
                i
                for i, one in enumerate(result)
                if isinstance(one, dict) and one.get(key) == item[key]
            ),
            None,
        )
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(_plain(item))
        else:
            result[at] = strategic(result[at], item)
    return _ordered(field, result, new, before)


def _plain(value: Any) -> Any:
    """Without directives and nulls, as a part that is new."""
    if isinstance(value, dict):
        return {
            name: _plain(one)
            for name, one in value.items()
            if not name.startswith("$") and one is not None
        }
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _ordered(field: str, items: list[Any], order: list[Any], before: list[Any]) -> list[Any]:
    """As the real server: what `order` names in its order, then what it doesn't, as it was.

    Two that were there both keep to their order where they meet.
    """
    key = None if field in _SETS else merge_key(field, items)

    def identity(item: Any) -> str:
        return json.dumps(item.get(key) if key and isinstance(item, dict) else item)

    wanted = {identity(item): place for place, item in reversed([*enumerate(order)])}
    was = {identity(item): place for place, item in enumerate(before)}
    named = sorted((i for i in items if identity(i) in wanted), key=lambda i: wanted[identity(i)])
    others = [item for item in items if identity(item) not in wanted]
    result = []
    while named and others:
        first, other = was.get(identity(named[0])), was.get(identity(others[0]))
        earlier = first is not None and other is not None and other < first
        result.append((others if earlier else named).pop(0))
    return result + named + others
