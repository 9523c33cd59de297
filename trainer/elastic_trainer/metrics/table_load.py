"""TableLoad: what a process holds of an embedding table, and what is asked of it; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic_trainer.metrics.exposition import Metric

Labels = tuple[tuple[str, str], ...]
HOT_IDS = 8
"""Told of each table."""
MOST_CHARACTERS = 1 << 15
"""So that it fits into a message to an agent, with its quotes escaped."""


@dataclass(frozen=True)
class TableLoad:
    rows: int = 0
    bytes: int = 0
    admitted: int = 0
    evicted: int = 0
    updated: int = 0
    updated_per_second: float = 0.0
    hot_ids: tuple[int, ...] = ()
    """Those that samples have most often, first the hottest."""
    hot_share: tuple[float, ...] = ()
    """Share of the table's samples here, for each of them."""


def read_table(found: dict[str, Any]) -> TableLoad:
    """Raises TypeError, KeyError or ValueError where that is none."""
    told = dict(found)
    ids, shares = told.pop("hot_ids"), told.pop("hot_share")
    rate = float(told.pop("updated_per_second", 0.0))
    numbers = {name: int(value) for name, value in told.items()}
    return TableLoad(
        **numbers,
        updated_per_second=rate,
        hot_ids=tuple(map(int, ids)),
        hot_share=tuple(map(float, shares)),
    )


def encoded(loads: Mapping[str, TableLoad], most: int = MOST_CHARACTERS) -> str:
    """Return the loads of tables, by name, as one text of so many characters at most: where there
    are too many tables without their hot ids, and if need be those with most rows alone."""
    text = _text(loads)
    if len(text) > most:
        loads = {name: replace(one, hot_ids=(), hot_share=()) for name, one in loads.items()}
        text = _text(loads)
    while len(text) > most:
        names = sorted(loads, key=lambda name: (-loads[name].rows, name))
        loads = {name: loads[name] for name in names[: len(names) // 2]}
        text = _text(loads)
    return text


def _text(loads: Mapping[str, TableLoad]) -> str:
    return json.dumps({name: asdict(one) for name, one in loads.items()}, separators=(",", ":"))


def decoded(text: str) -> dict[str, TableLoad]:
    """Raises ValueError where that is no text of `encoded`."""
    try:
        return {str(name): read_table(one) for name, one in json.loads(text).items()}
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected loads of tables by name, found {text[:80]!r}") from error


def together(loads: Sequence[TableLoad]) -> TableLoad:
    """Return what several processes hold of a table; shares are of all its samples, as far as these
    come where rows are updated."""
    total = sum(one.updated_per_second for one in loads)
    hot = dict[int, float]()
    for one in loads:
        weight = one.updated_per_second / total if total else 1 / len(loads)
        for number, share in zip(one.hot_ids, one.hot_share, strict=True):
            hot[number] = hot.get(number, 0.0) + share * weight
    most = sorted(hot, key=lambda number: (-hot[number], number))[:HOT_IDS]
    return TableLoad(
        rows=sum(one.rows for one in loads),
        bytes=sum(one.bytes for one in loads),
        admitted=sum(one.admitted for one in loads),
        evicted=sum(one.evicted for one in loads),
        updated=sum(one.updated for one in loads),
        updated_per_second=total,
        hot_ids=tuple(most),
        hot_share=tuple(round(hot[number], 6) for number in most),
    )


def skew(rates: Sequence[float]) -> float:
    """Return how many times the mean the busiest of several holders serves, in rows a second; 1
    where none serves any."""
    mean = sum(rates) / len(rates) if rates else 0.0
    return max(rates) / mean if mean else 1.0


def metrics(prefix: str, loads: Sequence[tuple[Labels, TableLoad]]) -> list[Metric]:
    """Return Prometheus' metrics of tables, each with its labels.

    Args:
        prefix: of their names, such as `table_`.
    """
    kinds = [
        ("rows", "Rows of a table.", "rows"),
        ("row_bytes", "Memory of them.", "bytes"),
        ("admitted_total", "Ids that got a row.", "admitted"),
        ("evicted_total", "Rows evicted.", "evicted"),
        ("updated_total", "Updates of rows.", "updated"),
    ]
    found = [
        Metric(prefix + name, text, getattr(one, attribute), labels)
        for name, text, attribute in kinds
        for labels, one in loads
    ]
    text = "Part of its samples that the hottest id has."
    found += [
        Metric(prefix + "hottest_share", text, one.hot_share[0] if one.hot_share else 0.0, labels)
        for labels, one in loads
    ]
    return found
