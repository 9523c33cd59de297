"""A replicated state as a commit: one file in torch's own format, which `torch.load` reads."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from elastic_trainer.store.commit import Commit
from elastic_trainer.store.content import Content
from elastic_trainer.store.storage import Storage

STATE = "state.pt"


def write_replica(
    storage: Storage, *, step: int, run: int, state: dict[str, Any], round_: int = 0
) -> Commit:
    """Raises StorageError as Storage.write."""
    rest = {name: part for name, part in state.items() if name != "cursor"}
    await_devices(rest)
    return storage.write(
        step=step,
        run=run,
        cursor=state["cursor"],
        round_=round_,
        files={STATE: lambda file: torch.save(rest, cast(Any, file))},
    )


def await_devices(state: Any) -> None:
    """Return once all that this thread has asked of devices is done in the state's tensors: what
    writes them is another thread (store/answer.py), whose copies don't wait for this one's."""
    devices = {leaf.device for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(device)


def read_replica(storage: Storage, commit: Commit) -> dict[str, Any]:
    """Raises StorageError as Storage.load."""
    return decode_replica(commit, storage.load(commit, STATE))


def decode_replica(commit: Commit, content: Content) -> dict[str, Any]:
    """Return the state of which `content` is a commit's file."""
    state = torch.load(cast(Any, content), map_location="cpu", weights_only=True)
    return {**state, "cursor": dict(commit.cursor)}
