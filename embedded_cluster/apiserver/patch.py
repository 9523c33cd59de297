"""JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch. All pure."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import orjson

from embedded_cluster.apiserver.schema import KEYS, LIST_TYPE, below
from embedded_cluster.apiserver.status import (
    StatusError,
    bad_request,
    unsupported_media_type,
)
from volcano_elastic.kube.resource import Object

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


# Kubernetes' own limits: few operations make a large document that copies itself.
_OPERATIONS = 10_000
_COPIED_BYTES = 3 * 1024 * 1024


def patched(target: Any, content_type: str, patch: Any, schema: Object | None) -> Any:
    """Return `target` with a patch, other than an apply, carried out.

    Args:
        schema: by which strategic patches merge; None where there are none.

    Raises:
        StatusError: 415 for a type that the kind doesn't take, 400 or 422 for a bad patch.
    """
    if content_type == JSON:
        return json_patch(target, patch)
    objects = (MERGE,) if schema is None else (MERGE, STRATEGIC)
    if content_type not in objects:
        raise unsupported_media_type(content_type, ", ".join((JSON, *objects, APPLY)))
    if not isinstance(patch, dict):
        raise bad_request(f"a patch of this type is an object, found {type(patch).__name__}")
    return (
        merge(target, patch)
        if schema is None or content_type == MERGE
        else strategic(target, patch, schema)
    )


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
        StatusError: 400 for something that is no JSON patch, 422 where it does not apply, 413 where
            it would do too much.
    """
    if not isinstance(operations, list):
        raise bad_request(f"expected a list of operations, found {type(operations).__name__}")
    if len(operations) > _OPERATIONS:
        raise _too_large(f"at most {_OPERATIONS} operations, found {len(operations)}")
    # Held by something, so that the whole document is a place like any within it.
    holder, copied = {"": copy.deepcopy(target)}, 0
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request(f"JSON patch operation {number}: expected an object with op and path")
        try:
            copied += _operate(holder, operation)
        except (LookupError, ValueError, TypeError) as error:
            raise StatusError(
                422,
                "Invalid",
                f"JSON patch operation {number} ({operation.get('op')} {operation['path']}): "
                f"{error}",
                {},
            ) from error
        if copied > _COPIED_BYTES:
            raise _too_large(f"to copy at most {_COPIED_BYTES} bytes")
    return holder.get("")


def _too_large(expected: str) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"a JSON patch: expected {expected}")


def _operate(holder: Object, operation: Object) -> int:
    """Carry one operation out, in place; the bytes that it copied."""
    op, size = operation.get("op"), 0
    match op:
        case "add" | "replace" | "test":
            if "value" not in operation:
                raise ValueError("value is missing")
            # A later operation may change what this one puts there, and a patch is tried again.
            value = copy.deepcopy(operation["value"])
        case "move":
            # Before the target is looked for, which may be within what this makes move up.
            value = _take(*_place(holder, operation.get("from")))
        case "copy":
            value = _get(*_place(holder, operation.get("from")))
            # Before it is made: a few of them could fill the memory.
            if (size := len(orjson.dumps(value))) > _COPIED_BYTES:
                return size
            value = copy.deepcopy(value)
        case "remove":
            value = None
        case _:
            raise ValueError(f"unknown op {op!r}; expected add, remove, replace, move, copy, test")
    parent, last = _place(holder, operation["path"])
    if op == "remove":
        _take(parent, last)
    elif op == "test":
        found = None
        with suppress(LookupError):
            found = _get(parent, last)
        if found != value:
            raise ValueError(f"test failed, found {found!r}, expected {value!r}")
    elif op == "replace" and isinstance(parent, list):
        parent[_index(last, len(parent) - 1)] = value
    else:
        # The real server takes a replacement of what an object doesn't have as an addition.
        _add(parent, last, value)
    return size


def _place(holder: Object, pointer: Any) -> tuple[Any, str]:
    """Return the container of the value that a JSON pointer leads to, and its name in it."""
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise ValueError("a path starts with /")
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
    parent: Any = holder
    for part in way:
        parent = _get(parent, part)
    return parent, last


def _get(parent: Any, name: str) -> Any:
    if isinstance(parent, list):
        return parent[_index(name, len(parent) - 1)]
    if not isinstance(parent, dict) or name not in parent:
        raise LookupError(f"nothing at {name!r}")
    return parent[name]


def _take(parent: Any, name: str) -> Any:
    value = _get(parent, name)
    del parent[int(name) if isinstance(parent, list) else name]
    return value


def _add(parent: Any, name: str, value: Any) -> None:
    if isinstance(parent, list):
        end = len(parent)
        parent.insert(end if name == "-" else _index(name, end), value)
    elif isinstance(parent, dict):
        parent[name] = value
    else:
        raise TypeError(f"cannot add to a {type(parent).__name__}")


def _index(name: str, highest: int) -> int:
    if not name.isdecimal() or int(name) > highest:
        raise LookupError(f"index {name!r} is out of range (0 to {highest})")
    return int(name)


def strategic(target: Any, patch: Any, schema: Object) -> Any:
    """Kubernetes' strategic merge of built-in kinds, with its $patch directives.

    Args:
        schema: of the target, with the list types and keys by which to merge.
    """
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
    of = below(schema, "properties")
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            found = result.get(field) or []
            if not isinstance(value, list) or not isinstance(found, list):
                raise bad_request(f"{name}: expected a list, and one at {field}")
            result[field] = [item for item in found if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _strategic_list(name, result.get(name), value, below(of, name))
        else:
            result[name] = strategic(result.get(name), value, below(of, name))
    for name, order in patch.items():
        if name.startswith("$setElementOrder/") and isinstance(order, list):
            field = name.partition("/")[2]
            if isinstance(result.get(field), list):
                before = target.get(field) if isinstance(target, dict) else None
                result[field] = _ordered(result[field], order, before or [], below(of, field))
    return result


def _strategic_list(field: str, old: Any, new: list[Any], schema: Object) -> list[Any]:
    if LIST_TYPE not in schema:
        return [_plain(item) for item in new]
    said = [item.get("$patch") if isinstance(item, dict) else None for item in new]
    if "replace" in said:
        return [_plain(item) for item, one in zip(new, said, strict=True) if one != "replace"]
    before: list[Any] = old if isinstance(old, list) else []
    key, result, deleted = _key(schema), list(before), set()
    # Of those that are there twice, the first.
    places = {_told(item, key): at for at, item in reversed([*enumerate(before)])}
    for item, one in zip(new, said, strict=True):
        if key and (not isinstance(item, dict) or key not in item):
            raise bad_request(f"strategic merge patch: an element of {field} has no {key}")
        told = _told(item, key)
        if one == "delete":
            deleted.add(places.pop(told, None))
        elif told in places:
            at = places[told]
            result[at] = strategic(result[at], item, below(schema, "items"))
        else:
            places[told] = len(result)
            result.append(_plain(item))
    left = [item for at, item in enumerate(result) if at not in deleted]
    return _ordered(left, new, before, schema)


def _key(schema: Object) -> str | None:
    """By which elements of a list are told apart: the first of its keys, in a strategic patch."""
    return next(iter(schema.get(KEYS) or ()), None)


def _told(item: Any, key: str | None) -> str:
    return json.dumps(item.get(key) if key and isinstance(item, dict) else item)


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


def _ordered(items: list[Any], order: list[Any], before: list[Any], schema: Object) -> list[Any]:
    """Order a list as the real server does: what `order` names in its order, then the rest as it
    was.

    Two that were there both keep to their order where they meet.
    """
    key = _key(schema)
    wanted = {_told(item, key): place for place, item in reversed([*enumerate(order)])}
    was = {_told(item, key): place for place, item in enumerate(before)}
    named = sorted(
        (one for one in items if _told(one, key) in wanted), key=lambda i: wanted[_told(i, key)]
    )
    others = [item for item in items if _told(item, key) not in wanted]
    result = []
    while named and others:
        first, other = was.get(_told(named[0], key)), was.get(_told(others[0], key))
        earlier = first is not None and other is not None and other < first
        result.append((others if earlier else named).pop(0))
    return result + named + others
