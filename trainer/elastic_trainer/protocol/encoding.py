"""Encodes the messages of agents and the coordinator for the wire, and decodes them.

Field names are the proto's, so both go by reflection.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from elastic_trainer.proto import coordinator_pb2
from elastic_trainer.protocol.message import (
    AgentMessage,
    CoordinatorMessage,
    Electorate,
    Exclusion,
    Goodput,
    Group,
    Hello,
    Member,
    Moment,
    NewestCommit,
    Round,
    StatePart,
    WorkerReport,
)

_PARTS = ("round", "electorate", "host")
"""Fields that hold a value of their own, or nothing."""
_ENCODED: dict[tuple[type[object], str], type[object]] = {
    (Hello, "round"): Round,
    (Hello, "electorate"): Electorate,
}
"""Those that the wire has as bytes, by which they are known again: a round names all its members,
and they all tell of it."""
_LISTS = (
    *("members", "commits", "groups", "reports", "departed", "earlier", "keepers", "feeders"),
    *("excluded", "parts"),
)
"""Fields that hold values of their own."""
_PLAIN = (
    *("pids", "milliseconds", "compute", "waited", "network", "batches", "batch_samples"),
    *("digests", "diverged", "loads", "reduced", "shares", "names", "values"),
)
"""Fields that hold several numbers or texts."""

_VALUES = {
    kind.__name__: kind
    for kind in (
        Member,
        NewestCommit,
        Group,
        Exclusion,
        Goodput,
        Moment,
        StatePart,
        WorkerReport,
        *AgentMessage.__args__,
        *CoordinatorMessage.__args__,
    )
}


def encode_agent(message: AgentMessage) -> Any:
    """The wire's AgentMessage for a value."""
    return coordinator_pb2.AgentMessage(**{_snake(message): _to_proto(message)})


def encode_coordinator(message: CoordinatorMessage) -> Any:
    """The wire's CoordinatorMessage for a value."""
    return coordinator_pb2.CoordinatorMessage(**{_snake(message): _to_proto(message)})


def decode(envelope: Any) -> Any:
    """The value in an AgentMessage or CoordinatorMessage; None if this version doesn't know it."""
    kind = envelope.WhichOneof("message")
    return None if kind is None else _from_proto(getattr(envelope, kind))


def encode_value(value: Round | Electorate) -> bytes:
    """Return what a Hello holds of it: equal bytes for equal values."""
    return bytes(_to_proto(value).SerializeToString())


@lru_cache(maxsize=8)
def decode_value(kind: str, encoded: bytes) -> Any:
    """Return the value in what thousands tell a coordinator that was started anew, each of all."""
    return _from_proto(getattr(coordinator_pb2, kind).FromString(encoded))


def _snake(message: object) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(message).__name__).lower()


def _to_proto(value: Any) -> Any:
    kind = getattr(coordinator_pb2, type(value).__name__)
    fields = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, tuple):
            item = [_to_proto(one) if dataclasses.is_dataclass(one) else one for one in item]
        elif dataclasses.is_dataclass(item):
            item = _to_proto(item)
            if (type(value), field.name) in _ENCODED:
                item = item.SerializeToString()
        if item is not None:
            fields[field.name] = item
    return kind(**fields)


def _from_proto(proto: Any) -> Any:
    kind = _VALUES[type(proto).__name__]
    fields: dict[str, Any] = {}
    for name in _names(kind):
        item = getattr(proto, name)
        if name in _PARTS and not isinstance(item, int):
            if not proto.HasField(name):
                item = None
            elif isinstance(item, bytes):
                item = decode_value(_ENCODED[kind, name].__name__, item)
            else:
                item = _from_proto(item)
        elif name in _LISTS:
            parts: Iterable[Any] = item
            item = tuple(_from_proto(one) for one in parts)
        elif name == "goodput":
            item = _from_proto(item)
        elif name in _PLAIN:
            item = tuple(item)
        fields[name] = item
    return kind(**fields)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))
