"""x-kubernetes-validations of CRDs: rules in CEL, by the package common-expression-language.

What that package does not know is refused with the CRD: Kubernetes' own functions beyond CEL's
(quantities, URLs, addresses, dates). Costs are not estimated.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from typing import Any

from embedded_cluster.apiserver.schema import KEYS, children, identity
from embedded_cluster.apiserver.status import Cause, invalid_value, shown
from volcano_elastic.kube.resource import Object

RULES = "x-kubernetes-validations"
# With one of these wrong, a rule's assumptions about types may not hold: no rule is looked at.
_BLOCKING = (
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
)


def causes(obj: Object, old: Object | None, schema: Object, wrong: list[Cause]) -> list[Cause]:
    """Return the errors that the schema finds by its rules; `wrong`: errors of shape, some block
    rules."""
    if any(cause.reason in _BLOCKING for cause in wrong):
        return []
    return list(_walk(obj, old, schema, ""))


def check(schema: Object, path: str) -> Iterator[Cause]:
    """The rules of one schema (not of those within) that can't be read."""
    for number, rule in enumerate(schema.get(RULES) or ()):
        try:
            # That a rule is missing is another's to say.
            _program(rule.get("rule") or "true")
        except ValueError as error:
            where = f"{path}.{RULES}[{number}].rule"
            yield invalid_value(where, rule, f"compilation failed: {error}")


def _walk(value: Any, old: Any, schema: Object, path: str) -> Iterator[Cause]:
    if value is None:
        return
    for rule in schema.get(RULES) or ():
        cause = _failed(rule, value, old, path)
        if cause is not None:
            yield cause
    before = _before(old, schema)
    for key, one, sub, below in children(value, schema, path):
        yield from _walk(one, before(key, one), sub, below)


def _before(old: Any, schema: Object) -> Callable[[Any, Any], Any]:
    """Return a part's value in `old`, by its place; an element of a list by its keys, if it has
    some."""
    if isinstance(old, dict):
        return lambda key, _: old.get(key)
    known = {}
    if isinstance(old, list) and schema.get(KEYS):
        # Of elements that are alike, the first.
        known = {identity(was, schema): was for was in reversed(old)}
    return lambda _, one: known.get(identity(one, schema)) if known else None


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
