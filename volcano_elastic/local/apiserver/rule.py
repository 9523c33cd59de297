"""x-kubernetes-validations of CRDs: rules in CEL, by the package common-expression-language.

What that package does not know is refused with the CRD: Kubernetes' own functions beyond CEL's
(quantities, URLs, addresses, dates). Costs are not estimated.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from importlib.machinery import PathFinder
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.status import Cause, invalid_value, shown

_RULES = "x-kubernetes-validations"
# With one of these wrong, a rule's assumptions about types may not hold.
_BLOCKING = (
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
)


def causes(obj: Object, old: Object | None, schema: Object, wrong: list[Cause]) -> list[Cause]:
    """What the schema's rules say of `obj`, whose shape has `wrong` about it already."""
    if any(cause.reason in _BLOCKING for cause in wrong):
        if not _has_rules(schema):
            return []
        why = (
            "some validation rules were not checked because the object was invalid; correct the "
            "existing errors to complete validation"
        )
        return [invalid_value("<nil>", None, why)]
    return list(_walk(obj, old, schema, ""))


def check(schema: Object, path: str) -> Iterator[Cause]:
    """The rules of one schema (not of those within) that can't be read."""
    rules = schema.get(_RULES)
    if rules is None:
        return
    if not isinstance(rules, list):
        yield invalid_value(f"{path}.{_RULES}", rules, "must be a list")
        return
    for number, rule in enumerate(rules):
        text = rule.get("rule") if isinstance(rule, dict) else None
        try:
            if not isinstance(text, str):
                raise ValueError("expected a rule")
            _program(text)
        except ValueError as error:
            where = f"{path}.{_RULES}[{number}].rule"
            yield invalid_value(where, rule, f"compilation failed: {error}")


def _has_rules(schema: Object) -> bool:
    inner = [*(schema.get("properties") or {}).values()]
    inner += [schema.get("items"), schema.get("additionalProperties")]
    return _RULES in schema or any(_has_rules(one) for one in inner if isinstance(one, dict))


def _walk(value: Any, old: Any, schema: Object, path: str) -> Iterator[Cause]:
    if value is None:
        return
    for rule in schema.get(_RULES) or ():
        cause = _failed(rule, value, old, path)
        if cause is not None:
            yield cause
    if isinstance(value, dict):
        was = old if isinstance(old, dict) else {}
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, one in value.items():
            if name in properties:
                below = f"{path}.{name}" if path else name
                yield from _walk(one, was.get(name), properties[name], below)
            elif isinstance(extra, dict):
                yield from _walk(one, was.get(name), extra, f"{path}[{name}]")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        then = {_identity(one, keys): one for one in old} if keys and old else {}
        for number, one in enumerate(value):
            yield from _walk(
                one, then.get(_identity(one, keys)), schema["items"], f"{path}[{number}]"
            )


def _identity(item: Any, keys: Any) -> str:
    return shown([item.get(key) for key in keys] if isinstance(item, dict) else item)


def _failed(rule: Object, value: Any, old: Any, path: str) -> Cause | None:
    program, looks_back = _program(rule["rule"])
    variables = {"self": value}
    if looks_back:
        if old is None:
            return None
        variables["oldSelf"] = old
    try:
        if program.execute(variables) is True:
            return None
        words = rule.get("message") or f"failed rule: {rule['rule']}"
        if rule.get("messageExpression"):
            words = str(_program(rule["messageExpression"])[0].execute(variables))
    # The package lets any error of a rule out as what it is in Python.
    except Exception as error:
        words = f"rule evaluation error: {error}"
    field = path + str(rule.get("fieldPath") or "")
    reason = str(rule.get("reason") or "FieldValueInvalid")
    plain = isinstance(value, str | int | float) and not rule.get("fieldPath")
    start = {
        "FieldValueForbidden": "Forbidden",
        "FieldValueRequired": "Required value",
        "FieldValueDuplicate": f"Duplicate value: {shown(value)}" if plain else "Duplicate value",
    }.get(reason, f"Invalid value: {shown(value)}" if plain else "Invalid value")
    return Cause(field, reason, f"{start}: {words.strip()}")


@functools.lru_cache(maxsize=1024)
def _program(text: str) -> tuple[Any, bool]:
    """The rule, compiled, and whether it compares with the object as it was.

    Raises:
        ValueError: it is no CEL.
    """
    program = _cel().compile(text)
    return program, "oldSelf" in program.variables()


@functools.lru_cache(maxsize=1)
def _cel() -> Any:
    # The package's __init__ imports its command line, which would double this server's start.
    package = importlib.util.find_spec("cel")
    found = package and PathFinder.find_spec("cel.cel", package.submodule_search_locations)
    if not found or not found.loader:
        raise ImportError("expected the package common-expression-language, found none")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
