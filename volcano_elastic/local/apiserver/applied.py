"""Server-side apply: merging by each list's own keys, and who applied which field.

Only the field sets of appliers are recorded (managedFields with operation Apply); what plain
updates own is not, so an apply conflicts with other appliers alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.options import Target, WriteOptions
from volcano_elastic.local.apiserver.patch import merge_key
from volcano_elastic.local.apiserver.status import StatusError, bad_request

# The way to a field: names, and for an element of a keyed list its keys as JSON.
Path = tuple[str, ...]
# Who applied: its name, and to which subresource.
Manager = tuple[str, str]
# Beside the one by which strategic patches merge.
_MORE_KEYS = {"ports": ["protocol"], "topologySpreadConstraints": ["whenUnsatisfiable"]}
_KEY_DEFAULTS = {"protocol": "TCP"}
_UNOWNED = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace")}


def apply(
    old: Object,
    configuration: Object,
    target: Target,
    options: WriteOptions,
    now: str,
    fill_defaults: Callable[[Object], object],
) -> Object:
    """`old` with the configuration in it, less what the manager applied before and now omits.

    With that go the defaults that it brought along: those that `fill_defaults` gives to what was
    applied before, and no longer to the configuration.

    Raises:
        StatusError: 409, another manager applied other values, and this one doesn't force its own;
            400, two elements of a list have the same keys.
    """
    kind, manager = target.kind, (options.field_manager, target.subresource)
    wanted, have = _leaves(configuration, kind, alone=True), _leaves(old, kind)
    others = {
        _manager(entry): _paths(entry.get("fieldsV1") or {})
        for entry in old["metadata"].get("managedFields") or ()
        if entry.get("operation") == "Apply"
    }
    before = others.pop(manager, set())
    taken = {
        name: {path for path in paths & wanted.keys() if wanted[path] != have.get(path)} - _UNOWNED
        for name, paths in others.items()
    }
    if any(taken.values()) and not options.force:
        raise _conflict(taken)
    new: Object = copy.deepcopy(_merge(old, configuration, kind.schema, "", kind))
    kept = set(wanted).union(*others.values())
    gone = before - kept
    if gone:
        then, now_ = copy.deepcopy(old), copy.deepcopy(configuration)
        for path in {_whole_element(path, before) for path in have.keys() - before}:
            _remove(then, path)
        fill_defaults(then)
        fill_defaults(now_)
        brought = {path for path, value in _leaves(then, kind).items() if have.get(path) == value}
        gone |= brought - kept - _leaves(now_, kind).keys()
    dropped = {_whole_element(path, kept) for path in gone}
    for path in sorted(dropped, key=len, reverse=True):
        if not any(other[: len(path)] == path for other in kept):
            _remove(new, path)
    mine: Object = {
        "manager": options.field_manager,
        "operation": "Apply",
        **({"subresource": target.subresource} if target.subresource else {}),
        "apiVersion": kind.api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": _tree(set(wanted) - _UNOWNED),
    }
    entries = []
    for entry in old["metadata"].get("managedFields") or ():
        by, what = _manager(entry), entry.get("fieldsV1") or {}
        if entry.get("operation") != "Apply":
            entries.append(entry)
        # An apply that changes nothing must not change its time either.
        elif by == manager and what == mine["fieldsV1"]:
            mine = entry
        elif by != manager:
            left = _tree(_paths(what) - taken[by]) if taken.get(by) else what
            entries.append({**entry, "fieldsV1": left})
    entries.append(mine)
    new["metadata"]["managedFields"] = [
        one for one in entries if one.get("operation") != "Apply" or one.get("fieldsV1")
    ]
    return new


def _manager(entry: Object) -> Manager:
    return entry.get("manager", ""), entry.get("subresource") or ""


def _whole_element(path: Path, kept: set[Path]) -> Path:
    """The outermost list element on the way to `path` of which nobody keeps any field."""
    for end, part in enumerate(path, start=1):
        element = path[:end]
        if part.startswith("k:") and not any(other[:end] == element for other in kept):
            return element
    return path


def _conflict(taken: dict[Manager, set[Path]]) -> StatusError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager[0]}"',
            "field": "." + ".".join(part.partition(":")[2] for part in path),
        }
        for manager, paths in taken.items()
        for path in sorted(paths)
    ]
    words = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    return StatusError(409, "Conflict", f"Apply failed with {count}: {words}", {"causes": causes})


def _keys(field: str, items: list[Any], schema: Object | None, kind: Kind) -> list[str] | None:
    """The keys of a list whose elements are merged one by one; None for an atomic list."""
    if not kind.custom or field == "ownerReferences":
        key = merge_key(field, items)
        return [key, *_MORE_KEYS.get(field, ())] if key else None
    if (schema or {}).get("x-kubernetes-list-type") == "map":
        return list((schema or {}).get("x-kubernetes-list-map-keys") or ()) or None
    return None


def _below(schema: Object | None, name: str) -> Object | None:
    found = ((schema or {}).get("properties") or {}).get(name)
    if found is None:
        found = (schema or {}).get("additionalProperties")
    return found if isinstance(found, dict) else None


def _items(schema: Object | None) -> Object | None:
    found = (schema or {}).get("items")
    return found if isinstance(found, dict) else None


def _atomic(schema: Object | None) -> bool:
    return (schema or {}).get("x-kubernetes-map-type") == "atomic"


def _merge(old: Any, new: Any, schema: Object | None, field: str, kind: Kind) -> Any:
    if isinstance(new, dict) and isinstance(old, dict) and not _atomic(schema):
        result = dict(old)
        for name, value in new.items():
            if value is not None:
                result[name] = _merge(old.get(name), value, _below(schema, name), name, kind)
        return result
    if isinstance(new, list) and isinstance(old, list):
        if field == "finalizers":
            return old + [one for one in new if one not in old]
        keys = _keys(field, [*old, *new], schema, kind)
        if keys is not None:
            found = {_identity(one, keys): place for place, one in enumerate(old)}
            items = list(old)
            for one in new:
                place = found.get(_identity(one, keys))
                if place is None:
                    items.append(one)
                else:
                    items[place] = _merge(items[place], one, _items(schema), "", kind)
            return items
    return new


def _identity(item: Any, keys: list[str]) -> str:
    if isinstance(item, dict):
        item = {key: item.get(key, _KEY_DEFAULTS.get(key)) for key in keys}
    return json.dumps(item, sort_keys=True, separators=(",", ":"))


def _leaves(obj: Object, kind: Kind, *, alone: bool = False) -> dict[Path, Any]:
    """Every leaf (scalar, atomic list or map, empty object) by its path.

    Raises:
        StatusError: 400, each key is to be there `alone`, and an element has another's.
    """
    found: dict[Path, Any] = {}

    def walk(value: Any, schema: Object | None, field: str, path: Path) -> None:
        if isinstance(value, dict) and value and not _atomic(schema):
            for name, one in value.items():
                if path == ("f:metadata",) and name == "managedFields":
                    continue
                walk(one, _below(schema, name), name, (*path, f"f:{name}"))
            return
        if isinstance(value, list) and value:
            if field == "finalizers":
                found.update({(*path, f"v:{json.dumps(one)}"): one for one in value})
                return
            keys = _keys(field, value, schema, kind)
            if keys is not None:
                told = [f"k:{_identity(one, keys)}" for one in value]
                if alone and (twice := [one for n, one in enumerate(told) if one in told[:n]]):
                    raise bad_request(f"{field}: found duplicate entries for key {twice[0][2:]}")
                for one, key in zip(value, told, strict=True):
                    walk(one, _items(schema), "", (*path, key))
                return
        if path and value is not None:
            found[path] = value

    walk(obj, kind.schema, "", ())
    return found


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        place = tree
        for part in path:
            place = place.setdefault(part, {})
    return tree


def _paths(tree: Any) -> set[Path]:
    found: set[Path] = set()

    def walk(place: Any, path: Path) -> None:
        below = [name for name in place if name != "."] if isinstance(place, dict) else []
        for name in below:
            walk(place[name], (*path, name))
        if not below and path:
            found.add(path)

    walk(tree, ())
    return found


def _remove(obj: Any, path: Path) -> None:
    """Take the field at `path` away in place, and containers on the way that it leaves empty."""
    steps: list[tuple[Any, Any]] = []
    place: Any = obj
    for part in path:
        sort, _, name = part.partition(":")
        at: Any = name
        if sort == "k":
            wanted = json.loads(name)
            if not isinstance(place, list):
                return
            found = [_identity(one, list(wanted)) for one in place]
            same = _identity(wanted, list(wanted))
            at = found.index(same) if same in found else None
        elif sort == "v":
            value = json.loads(name)
            at = place.index(value) if isinstance(place, list) and value in place else None
        elif not isinstance(place, dict) or name not in place:
            return
        if at is None:
            return
        steps.append((place, at))
        place = place[at]
    holder, at = steps.pop()
    del holder[at]
    while steps and not holder:
        inner, (holder, at) = holder, steps.pop()
        if holder[at] is inner:
            del holder[at]
