"""Defaults, required fields, choices and bounds of the built-in kinds: builtin_rules.txt."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from embedded_cluster.apiserver.builtin_type import struct_of, type_of, types
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.schema import KEYS, LIST_TYPE, MAP_TYPE
from embedded_cluster.apiserver.status import (
    Cause,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    shown,
    unsupported,
)
from volcano_elastic.kube.resource import Object

PATTERNS = {
    "grouped": re.compile(r"[^/]+/[^/]+"),
    "kind": re.compile(r"[A-Za-z]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"),
    "label": re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
    "labelValue": re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"),
    "port": re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?"),
    "qualified": re.compile(
        r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
    ),
    "trimmed": re.compile(r"\S(.*\S)?", re.DOTALL),
    "within": re.compile(r"(?!/)(?!(.*/)?\.\.(/|$)).*", re.DOTALL),
    "word": re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"),
}
_EMPTY: tuple[Any, ...] = (None, "", [], {})


@dataclass(frozen=True, slots=True)
class _Rule:
    """`way`: the fields that lead from the struct to the one that has `field`."""

    way: tuple[str, ...]
    field: str
    when: tuple[tuple[str, frozenset[str], bool], ...] = ()
    """Fields beside it, the values they may have (none: any), and whether that is to hold."""
    default: bytes | None = None
    """JSON, so that each object gets a value of its own."""
    dropped: bool = False
    required: bool = False
    forbidden: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    pattern: re.Pattern[str] | None = None
    unique: tuple[str, ...] = ()

    def places(self, struct: Object, path: str) -> Sequence[tuple[Object, str]]:
        """The structs that may have the field where the rule holds, and where those are."""
        if not self.way and not self.when:
            return ((struct, path),)
        found = [(struct, path)]
        for part in self.way:
            name = part.removesuffix("[]")
            inner = [(one.get(name), _below(at, name)) for one, at in found]
            if part == name:
                found = [(one, at) for one, at in inner if one is not None]
            else:
                found = [(e, f"{at}[{n}]") for ones, at in inner for n, e in enumerate(ones or ())]
        return [
            (one, at)
            for one, at in found
            if all(_said(one.get(field), of) == holds for field, of, holds in self.when)
        ]

    def causes(self, struct: Object, path: str) -> Iterable[Cause]:
        """Return the errors that the schema finds by its rules; `wrong`: errors of shape, some
        block rules."""
        value: Any = struct.get(self.field)
        place = _below(path, self.field)
        if value in _EMPTY:
            return (required(place),) if self.required else ()
        if self.forbidden:
            return (forbidden_field(place, "may not be set here"),) if value is not False else ()
        if self.choices and value not in self.choices:
            return (unsupported(place, value, self.choices),)
        if self.unique:
            return _twice(value, self.unique, place)
        why = ""
        if isinstance(value, str):
            if self.pattern and not self.pattern.fullmatch(value):
                why = f"must match '{self.pattern.pattern}'"
        elif self.least is not None and value < self.least:
            why = f"must be at least {self.least}"
        elif self.most is not None and value > self.most:
            why = f"must be at most {self.most}"
        return (invalid_value(place, value, why),) if why else ()


def _below(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _said(value: Any, of: frozenset[str]) -> bool:
    """Return whether a field has one of these values, if some are given, else whether it is set."""
    if of:
        return (value if isinstance(value, str) else shown(value)) in of
    return value not in _EMPTY and value is not False


def _alternatives(name: str) -> tuple[bool, list[str]]:
    """Return whether a struct needs one of its alternatives, and these: it may have only one."""
    match name:
        case "Probe":
            return True, ["exec", "grpc", "httpGet", "tcpSocket"]
        case "EnvVar":
            return False, ["value", "valueFrom"]
        case "Volume":
            return False, sorted(types()[name].keys() - {"name"})
    return False, []


def fill_defaults(kind: Kind, obj: Object) -> None:
    """In place, in an object that its type has taken (builtin_type.py)."""

    def fill(rules: _Rules, _: str, struct: Object, path: str) -> None:
        for rule in rules.fills:
            for holder, _ in rule.places(struct, path):
                if rule.dropped:
                    holder.pop(rule.field, None)
                elif rule.default is not None and holder.get(rule.field) in (None, ""):
                    holder[rule.field] = orjson.loads(rule.default)

    _walk(obj, type_of(kind), "", fill)


def causes(kind: Kind, obj: Object) -> list[Cause]:
    """Return the errors that the schema finds by its rules; `wrong`: errors of shape, some block
    rules."""
    found: list[Cause] = []

    def check(rules: _Rules, name: str, struct: Object, path: str) -> None:
        needed, alternatives = _alternatives(name)
        said = [field for field in alternatives if struct.get(field) not in (None, "")]
        if len(said) > 1:
            found.append(forbidden_field(f"{path}.{said[1]}", f"may not be beside {said[0]}"))
        elif needed and not said:
            found.append(required(path, f"must have one of {', '.join(alternatives)}"))
        for rule in rules.checks:
            # Most fields are not there.
            if rule.way or rule.required or rule.field in struct:
                for holder, at in rule.places(struct, path):
                    found.extend(rule.causes(holder, at))

    _walk(obj, type_of(kind), "", check)
    return found


def _twice(items: list[Object], fields: tuple[str, ...], path: str) -> Iterator[Cause]:
    seen = set()
    for number, one in enumerate(items):
        value = tuple(one.get(field) for field in fields)
        # That it is missing is another rule's to say.
        if all(value) and value in seen:
            yield duplicate(f"{path}[{number}].{fields[0]}", value[0])
        seen.add(value)


def _walk(
    struct: Object, name: str, path: str, visit: Callable[[_Rules, str, Object, str], None]
) -> None:
    """Have each struct within that has rules visited, with its type's name, and where it is."""
    rules = _rules().get(name)
    if rules is not None:
        visit(rules, name, struct, path)
    for field, inner, shape in _leading(name):
        # A default of a parent is there by now, and may be looked into as well.
        value = struct.get(field)
        if value is None:
            continue
        at = _below(path, field)
        if shape == "[":
            for number, one in enumerate(value):
                _walk(one, inner, f"{at}[{number}]", visit)
        elif shape == "{":
            for key, one in value.items():
                _walk(one, inner, f"{at}[{key}]", visit)
        # Where there is a choice, it may be a boolean.
        elif isinstance(value, dict):
            _walk(value, inner, at, visit)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one type: those that fill in or drop, and those that refuse."""

    fills: list[_Rule]
    checks: list[_Rule]


@functools.cache
def schema_of(wanted: str) -> Object:
    """A field's type as a CRD would have it, as far as merging goes: what is in it, lists' keys."""
    if wanted[0] in "[{":
        return {"items" if wanted[0] == "[" else "additionalProperties": schema_of(wanted[1:-1])}
    # A schema has schemas in it without end, but is never merged.
    if wanted not in types() or wanted == "JSONSchemaProps":
        return {}
    properties = {field: {**schema_of(inner)} for field, inner in types()[wanted].items()}
    for rule in _rules()[wanted].fills if wanted in _rules() else ():
        if rule.default is not None and not rule.way and not rule.when:
            properties[rule.field]["default"] = orjson.loads(rule.default)
    for field, keys in types("builtin_lists.txt").get(wanted, {}).items():
        sorts: dict[str, Object] = {"*": {LIST_TYPE: "set"}, "{}": {MAP_TYPE: "atomic"}}
        properties[field] |= sorts.get(keys) or {LIST_TYPE: "map", KEYS: keys.split(",")}
    return {"properties": properties}


@functools.cache
def _rules() -> dict[str, _Rules]:
    found: dict[str, _Rules] = {}
    for line in Path(__file__).with_name("builtin_rules.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        place, *words = line.split()
        name, _, fields = place.partition(".")
        said, when = _words(words)
        of = found.setdefault(name, _Rules([], []))
        for path in fields.split(","):
            *way, field = path.split(".")
            rule = _Rule(tuple(way), field, when, **said)
            if said.keys() & {"default", "dropped"}:
                of.fills.append(rule)
            if said.keys() - {"default", "dropped"}:
                of.checks.append(rule)
    return found


def _words(words: list[str]) -> tuple[dict[str, Any], tuple[tuple[str, frozenset[str], bool], ...]]:
    said: dict[str, Any] = {}
    when = []
    for word in words:
        sort, _, what = word.partition(":")
        if sort in ("if", "unless"):
            field, _, values = what.partition("=")
            when.append((field, frozenset(filter(None, values.split("|"))), sort == "if"))
        elif sort == "unique":
            said["unique"] = tuple(what.split("+"))
        elif word in ("!", "-", "x"):
            said[{"!": "required", "-": "forbidden", "x": "dropped"}[word]] = True
        elif word.startswith("~"):
            said["pattern"] = PATTERNS[word[1:]]
        elif word.startswith("="):
            said["default"] = word[1:].encode()
        elif word.startswith((">=", "<=")):
            said["least" if word[0] == ">" else "most"] = int(word[2:])
        else:
            said["choices"] = tuple(word.split("|"))
    return said, tuple(when)


@functools.cache
def _leading(name: str) -> tuple[tuple[str, str, str], ...]:
    """The fields of a type by which one gets to a type with rules: that type, and [ or { around."""
    return tuple(
        (field, inner, wanted[0] if wanted[0] in "[{" else "")
        for field, wanted in types()[name].items()
        if (inner := struct_of(wanted)) in types() and _matters(inner, frozenset({name}))
    )


def _matters(name: str, seen: frozenset[str]) -> bool:
    if name in _rules() or name in seen:
        return name in _rules()
    inner = {struct_of(wanted) for wanted in types()[name].values()} & types().keys()
    return any(_matters(one, seen | {name}) for one in inner)
