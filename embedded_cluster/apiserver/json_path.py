"""The JSONPath of printer columns: `.spec.x`, `['a.b']`, `[0]`, `[-1:]`, `[*]`, `[?(@.a=="b")]`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

_Step = Callable[[Any], Iterator[Any]]
_TOKEN = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)
      | \[\s*(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\s*\]
      | \[\s*(?P<slice>-?\d*:-?\d*(?::-?\d*)?)\s*\]
      | \[\s*(?P<index>-?\d+)\s*\]
      | (?P<all>\[\s*\*\s*\])
      | \[\?\(\s*@(?P<left>(?:\.[^.=!<>\s)]+)+)\s*(?P<op>==|!=)\s*(?P<right>.+?)\s*\)\]
    """,
    re.VERBOSE,
)


def find(path: str, obj: Any) -> list[Any]:
    """Every value at `path`; empty where there is none or the path cannot be read."""
    found = [obj]
    for step in _steps(path):
        found = [value for one in found for value in step(one)]
    return found


@functools.lru_cache(maxsize=512)
def _steps(path: str) -> tuple[_Step, ...]:
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            return (lambda _: iter(()),)
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> _Step:
    if match["name"] == "*" or match["all"]:
        return _children
    if match["name"] or match["quoted"] is not None:
        name = (match["name"] or match["quoted"]).replace("\\.", ".")
        return lambda value: iter(
            [value[name]] if isinstance(value, dict) and name in value else []
        )
    if match["index"]:
        index = int(match["index"])
        return lambda value: iter(value[index:][:1] if isinstance(value, list) else [])
    if match["slice"]:
        bounds = slice(*(int(part) if part else None for part in match["slice"].split(":")))
        return lambda value: iter(value[bounds] if isinstance(value, list) else [])
    left, negated = match["left"], match["op"] == "!="
    right = match["right"].strip("'\"")
    return lambda value: (
        one
        for one in _children(value)
        if ([str(found) for found in find(left, one)] == [right]) != negated
    )


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    return iter(value if isinstance(value, list) else [])
