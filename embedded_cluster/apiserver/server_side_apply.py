"""Server-side apply: merging by each list's own keys, and who applied which field.

Only the field sets of appliers are recorded (managedFields with operation Apply); what plain
updates own is not, so an apply conflicts with other appliers alone.
"""

from __future__ import annotations

import copy
from typing import Any

from embedded_cluster.apiserver.builtin_rule import schema_of
from embedded_cluster.apiserver.builtin_type import type_of
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.request import Target, WriteOptions
from embedded_cluster.apiserver.schema import (
    LIST_TYPE,
    MAP_TYPE,
    apply_defaults,
    below,
    identity,
)
from embedded_cluster.apiserver.status import StatusError, bad_request
from volcano_elastic.kube.resource import Object

# The way to a field: names, and for an element of a keyed list its keys as JSON.
Path = tuple[str, ...]
# Who applied: its name, and to which subresource.
Manager = tuple[str, str]
_MERGED = ("map", "set")
_UNOWNED = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace")}


def apply(
    old: Object,
    configuration: Object,
    target: Target,
    options: WriteOptions,
    now: str,
) -> Object:
    """`old` with the configuration in it, less what the manager applied before and now omits.

    With that go the defaults that it brought along, and the configuration does no longer.

    Raises:
        StatusError: 409, another manager applied other values, and this one doesn't force its own;
            400, two elements of a list have the same keys.
    """
    schema, manager = _schema(target.kind), (options.field_manager, target.subresource)
    wanted, have = _leaves(configuration, schema, alone=True), _leaves(old, schema)
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
    new: Object = copy.deepcopy(_merge(old, configuration, schema))
    kept = set(wanted).union(*others.values())
    gone = before - kept
    if gone:
        then, filled = copy.deepcopy(old), copy.deepcopy(configuration)
        alien = have.keys() - before
        _drop(then, schema, (), alien, _ways(alien), _ways(before))
        apply_defaults(then, schema)
        apply_defaults(filled, schema)
        brought = {path for path, one in _leaves(then, schema).items() if have.get(path) == one}
        gone |= brought - kept - _leaves(filled, schema).keys()
    _drop(new, schema, (), gone, _ways(gone), _ways(kept))
    mine: Object = {
        "manager": options.field_manager,
        "operation": "Apply",
        **({"subresource": target.subresource} if target.subresource else {}),
        "apiVersion": target.kind.api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": _tree(set(wanted) - _UNOWNED),
    }
    entries = {}
    for entry in old["metadata"].get("managedFields") or ():
        by, how, what = _manager(entry), entry.get("operation"), entry.get("fieldsV1") or {}
        if how == "Apply" and taken.get(by):
            entry = {**entry, "fieldsV1": _tree(_paths(what) - taken[by])}
        entries[by, how] = entry
    # An apply that changes nothing must not change its time either.
    if entries.get((manager, "Apply"), {}).get("fieldsV1") != mine["fieldsV1"]:
        entries[manager, "Apply"] = mine
    new["metadata"]["managedFields"] = [
        entry for (_, how), entry in entries.items() if how != "Apply" or entry.get("fieldsV1")
    ]
    return new


def _manager(entry: Object) -> Manager:
    return entry.get("manager", ""), entry.get("subresource") or ""


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


def _schema(kind: Kind) -> Object:
    if not kind.custom:
        return schema_of(type_of(kind))
    properties = {**below(kind.schema, "properties"), "metadata": schema_of("ObjectMeta")}
    return {**(kind.schema or {}), "properties": properties}


def _field(schema: Object, name: str) -> Object:
    return below(below(schema, "properties"), name) or below(schema, "additionalProperties")


def _atomic(schema: Object) -> bool:
    return bool(schema.get(MAP_TYPE) == "atomic")


def _merge(old: Any, new: Any, schema: Object) -> Any:
    if isinstance(new, dict) and isinstance(old, dict) and not _atomic(schema):
        result = dict(old)
        for name, value in new.items():
            if value is not None:
                result[name] = _merge(old.get(name), value, _field(schema, name))
        return result
    if isinstance(new, list) and isinstance(old, list) and schema.get(LIST_TYPE) in _MERGED:
        # As there: in the order of the configuration; what only the object has comes before what it
        # came before, where that can be told.
        known = {identity(one, schema): one for one in old}
        told = {identity(one, schema): one for one in new}
        items, ahead = [], dict(known)
        for which, one in told.items():
            while ahead and (first := next(iter(ahead))) != which:
                if which not in ahead and first in told:
                    break
                other = ahead.pop(first)
                items += [] if first in told else [other]
            ahead.pop(which, None)
            items.append(_merge(known.get(which), one, below(schema, "items")))
        return items + [other for first, other in ahead.items() if first not in told]
    return new


def _leaves(obj: Object, schema: Object, *, alone: bool = False) -> dict[Path, Any]:
    """Every leaf (scalar, atomic list or map, empty object) by its path.

    Raises:
        StatusError: 400, an element's keys are to be its `alone`, and another has them too.
    """
    found: dict[Path, Any] = {}

    def walk(value: Any, schema: Object, path: Path) -> None:
        parts = _parts(value, schema)
        seen: set[str] = set()
        for part, at in parts:
            if alone and part in seen:
                raise bad_request(f"apply: found duplicate entries for key {part[2:]}")
            seen.add(part)
            if (*path, part) != ("f:metadata", "f:managedFields"):
                inner = _field(schema, at) if isinstance(value, dict) else below(schema, "items")
                walk(value[at], inner, (*path, part))
        if path and not parts and value is not None:
            found[path] = value

    walk(obj, schema, ())
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


def _ways(paths: set[Path]) -> set[Path]:
    """These and all on the way to them."""
    return {path[:end] for path in paths for end in range(1, len(path) + 1)}


def _drop(
    value: Any, schema: Object, path: Path, gone: set[Path], to_gone: set[Path], kept: set[Path]
) -> None:
    """Take what is `gone` away in place, unless it or what is in it is kept by somebody.

    So go containers that this leaves empty, and with any of its fields the whole element of a list
    of which nobody keeps a field.
    """
    for part, at in _parts(value, schema):
        way = (*path, part)
        whole = way in to_gone and not part.startswith("f:")
        if way not in to_gone:
            continue
        if (whole or way in gone) and way not in kept:
            del value[at]
        elif isinstance(value[at], dict | list):
            inner = _field(schema, at) if isinstance(value, dict) else below(schema, "items")
            _drop(value[at], inner, way, gone, to_gone, kept)
            if not value[at]:
                del value[at]


def _parts(value: Any, schema: Object) -> list[tuple[str, Any]]:
    """Yield the parts of a value that are merged by themselves: the path's name, and key or index.

    From the end, so that what is at an index may be taken away.
    """
    if isinstance(value, dict) and not _atomic(schema):
        return [(f"f:{name}", name) for name in value]
    if isinstance(value, list) and schema.get(LIST_TYPE) in _MERGED:
        mark = "k" if schema[LIST_TYPE] == "map" else "v"
        told = [(f"{mark}:{identity(one, schema).decode()}", at) for at, one in enumerate(value)]
        return told[::-1]
    return []
