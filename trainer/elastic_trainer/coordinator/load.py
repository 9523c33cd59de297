"""Keeps what agents' containers use, as they tell it; pure."""

from __future__ import annotations

from typing import Any

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import Load


def hear_load(draft: Draft, agent: Agent, message: Load) -> None:
    draft.put(replace(agent, load=message))


def as_json(state: State) -> dict[str, dict[str, Any]]:
    """Return by pod index what the containers of connected agents use: CPUs, bytes, of what all
    their GPUs have, and per cent of time in which these compute; null where that isn't
    measured."""
    return {
        str(agent.pod_index): {
            "cpus": round(agent.load.cpus, 3),
            "memory": agent.load.memory_bytes,
            "gpu_memory": _measured(agent.load.gpu_memory_bytes),
            "gpu_memory_total": _measured(agent.load.gpu_memory_total_bytes),
            "gpu_percent": _measured(agent.load.gpu_percent),
        }
        for agent in state.agents.values()
        if agent.load is not None
    }


def _measured(number: int) -> int | None:
    return None if number < 0 else number
