"""Keeps what workers hold of embedding tables, as agents tell it; pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.exposition import Metric
from elastic_trainer.metrics.table_load import TableLoad, skew, together
from elastic_trainer.protocol.message import Tables


def hear_tables(draft: Draft, agent: Agent, message: Tables) -> None:
    try:
        held = tuple(table_load.decoded(one) for one in message.loads)
    except ValueError:  # of another version
        return
    draft.put(replace(agent, tables=held))


def as_json(state: State) -> dict[str, dict[str, Any]]:
    """Return by a table's name what all workers hold of it, how many these are, and `skew`: rows
    that the busiest of them updates in a second, in means of all."""
    return {
        name: {
            **asdict(together(parts)),
            "holders": len(parts),
            "skew": round(_skew(parts), 4),
        }
        for name, parts in sorted(_by_name(state).items())
    }


def metrics(state: State) -> list[Metric]:
    """Return Prometheus' metrics of whole tables."""
    parts = _by_name(state)
    found = table_load.metrics(
        "all_table_", [((("table", name),), together(some)) for name, some in sorted(parts.items())]
    )
    text = "Rows a second of a table's busiest holder, in means of all."
    found += [
        Metric("all_table_skew", text, _skew(some), (("table", name),))
        for name, some in sorted(parts.items())
    ]
    return found


def _skew(parts: list[TableLoad]) -> float:
    return skew([one.updated_per_second for one in parts])


def _by_name(state: State) -> dict[str, list[TableLoad]]:
    found: dict[str, list[TableLoad]] = {}
    for agent in state.agents.values():
        for held in agent.tables if agent.attached else ():
            for name, load in held.items():
                found.setdefault(name, []).append(load)
    return found
