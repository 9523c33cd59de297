"""Messages of agents and the coordinator in a node check: `PUT /check`, as JSON.

An agent says again and again that it is there, with its newest report; each answer is its order. So
nothing is lost with a request, an answer, or a coordinator.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, TypeVar

from elastic_trainer.node_check.verdict import Verdict

PATH = "/check"
UNABLE = 75
"""Exit code of a trial's process that found no room on its device: that proves nothing. BSD's
EX_TEMPFAIL."""
NOTE_BYTES = 140
"""Most bytes that tell what went wrong; the coordinator reads requests up to 1,024 bytes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """The end of an agent's own part in its trial."""

    check: str = ""
    round: int = 0
    passed: bool = False
    seconds: float = 0.0
    unable: bool = False
    """It could not begin: nothing was found out."""
    note: str = ""
    """The reason why it failed."""


@dataclass(frozen=True)
class Presence:
    """An agent that takes part."""

    agent: str = ""
    node: str = ""
    pod_index: int = -1
    address: str = ""
    port: int = 0
    """Port of its store, for trials that it is first in."""
    report: Report | None = None


@dataclass(frozen=True)
class Wait:
    """Nothing to do for the moment."""

    seconds: float = 0.0
    """Until the next request."""


@dataclass(frozen=True)
class Trial:
    """Run this, unless it runs or is reported."""

    check: str = ""
    round: int = 0
    group: int = 0
    rank: int = 0
    size: int = 0
    address: str = ""
    port: int = 0
    seconds: float = 0.0
    """Until the next request."""


@dataclass(frozen=True)
class Over:
    """The check is over, or there is none; go on."""

    verdict: str = Verdict.UNKNOWN.value
    reason: str = ""


Order = Wait | Trial | Over
_ORDERS: dict[str, type[Order]] = {"wait": Wait, "trial": Trial, "over": Over}


def encode_presence(presence: Presence) -> bytes:
    told = dataclasses.asdict(presence)
    if told["report"] is not None:
        note = presence.report.note if presence.report is not None else ""
        plain = "".join(letter if letter.isprintable() else " " for letter in note)
        told["report"]["note"] = plain.encode()[:NOTE_BYTES].decode(errors="ignore")
    return json.dumps(told, ensure_ascii=False).encode()


def decode_presence(body: bytes) -> Presence:
    """Raises ValueError for anything else."""
    told = _object(body)
    report = told.pop("report", None)
    found = _value(Presence, told)
    if not found.agent:
        raise ValueError("expected an agent's name, found none")
    if report is None:
        return found
    if not isinstance(report, dict):
        raise ValueError(f"expected a report, found {report!r}")
    return dataclasses.replace(found, report=_value(Report, report))


def encode_order(order: Order) -> dict[str, Any]:
    kind = next(name for name, kind in _ORDERS.items() if isinstance(order, kind))
    return {"order": kind, **dataclasses.asdict(order)}


def decode_order(body: bytes) -> Order:
    """Raises ValueError for anything else."""
    told = _object(body)
    kind = _ORDERS.get(str(told.pop("order", "")))
    if kind is None:
        raise ValueError(f"expected an order, found {body[:100]!r}")
    return _value(kind, told)


def _object(body: bytes) -> dict[str, Any]:
    told = json.loads(body)
    if not isinstance(told, dict):
        raise ValueError(f"expected an object, found {body[:100]!r}")
    return told


def _value(kind: type[T], told: dict[str, Any]) -> T:
    """Makes a value of a message's fields; what another version adds is left out."""
    given = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in told or field.name == "report":
            continue
        value, default = told[field.name], field.default
        expected = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, expected) or isinstance(value, bool) != isinstance(default, bool):
            raise ValueError(f"{field.name}: expected {type(default).__name__}, found {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name}: expected a finite number, found {value!r}")
        given[field.name] = value
    return kind(**given)
