"""Tells where a worker's main thread has got to, from another of its threads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from elastic_trainer.link.message import Whereabouts

RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Either makes torch record collectives: its flight recorder."""
MOST_COLLECTIVES = 8
"""The newest of them that are told."""
MOST_CHARACTERS = 2000


def whereabouts(step: int) -> Whereabouts:
    """Return them for this process, whose last applied step is `step`. Never fails."""
    return Whereabouts(step, _collectives(), flight_record(_dumps())[:MOST_CHARACTERS])


def _collectives() -> int:
    """Return how many collectives this process has begun in its default group; -1: not known."""
    torch_distributed = sys.modules.get("torch.distributed")
    try:
        if torch_distributed is None or not torch_distributed.is_initialized():
            return -1
        return int(torch_distributed.group.WORLD._get_sequence_number_for_group())
    except Exception:
        return -1  # no backend that counts, or the group is just going


def _dumps() -> list[str]:
    """Return what torch's flight recorders hold, as JSON, where they are on."""
    recorders = sys.modules.get("torch._C._distributed_c10d")
    on = any(os.environ.get(name, "0") != "0" for name in RECORDER_VARIABLES)
    if recorders is None or not on:
        return []
    found = []
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(recorders, name, None)
        if dump is None:
            continue
        try:
            text = dump()
            found.append(text.decode(errors="replace") if isinstance(text, bytes) else str(text))
        except Exception:
            continue
    return found


def flight_record(dumps: Sequence[str]) -> str:
    """Return a line for each of the newest collectives in a flight recorder's dumps."""
    entries: list[dict[str, Any]] = []
    for dump in dumps:
        try:
            told = json.loads(dump)
            entries += [one for one in told["entries"] if isinstance(one, dict)]
        except (ValueError, KeyError, TypeError):
            continue
    return "\n".join(
        f"collective {one.get('collective_seq_id', '?')}: {one.get('profiling_name', '?')} "
        f"{one.get('input_sizes', '')}, {one.get('state', '?')}"
        for one in entries[-MOST_COLLECTIVES:]
    )
