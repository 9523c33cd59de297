"""Small states in slots of shared memory, for tests."""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
import xxhash
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import Label, Slot, Slots


def label(step: int, state: Any, run: int = 1, training: str = "t") -> Label:
    blob = lay_out(state)
    return Label(training, run, step, 0, 1, False, len(blob.skeleton), blob.size)


def a_state(number: float) -> dict[str, Any]:
    values = torch.full((50,), number)
    cursor = {"epoch": 0, "position": 1, "step": int(number)}
    return {"model": {"a": values, "b": values[:7].double()}, "cursor": cursor}


def save(slots: Slots, step: int, training: str = "t") -> Slot:
    state = a_state(step)
    return slots.write(label(step, state, training=training), lay_out(state))


def steps(slots: Slots) -> list[int]:
    return [found.step for found in slots.sealed().values()]


def rewrite_label(slot: Slot, change: dict[str, str | None]) -> None:
    """Writes the slot's label with `change`, in which None takes a field away, and its digest."""
    content = bytearray(slot.path.read_bytes())
    (length,) = struct.unpack_from("<I", content)
    found = json.loads(content[4 : 4 + length]) | change
    body = json.dumps({name: value for name, value in found.items() if value is not None}).encode()
    head = struct.pack("<I", len(body)) + body
    head += xxhash.xxh3_128_digest(head)
    content[: len(head)] = head
    slot.path.write_bytes(content)
