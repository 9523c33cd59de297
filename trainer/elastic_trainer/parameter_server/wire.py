"""Tables' columns and settings as bytes and text, on their way between workers and servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings import row_optimizer
from elastic_trainer.embeddings.table import Entries, TableSettings

SERVERS_VARIABLE = "VOLCANO_ELASTIC_PARAMETER_SERVERS"
"""host:port of a job's servers with commas between, the first one first; set in its pods."""
MESSAGE_BYTES = 256 << 20
"""The most of a message: a batch's rows go in one."""
OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # A server that was restarted is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_OPTIMIZERS = {
    one.__name__: one
    for one in (
        row_optimizer.SGD,
        row_optimizer.Adagrad,
        row_optimizer.RowwiseAdagrad,
        row_optimizer.Adam,
    )
}
_INTEGERS = np.dtype("<i8")


def pack(numbers: NDArray[np.int64] | Sequence[int]) -> bytes:
    return np.asarray(numbers, dtype=_INTEGERS).tobytes()


def unpack(content: bytes) -> NDArray[np.int64]:
    """Raises ValueError where these are no whole numbers of 64 bits."""
    return np.frombuffer(content, dtype=_INTEGERS).astype(np.int64)


def pack_floats(rows: torch.Tensor) -> bytes:
    return bytes(rows.detach().contiguous().numpy().tobytes())


def unpack_floats(content: bytes, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Raises ValueError where these are no rows of that width."""
    return torch.from_numpy(read_floats(content, width, dtype).copy())


def read_floats(content: bytes | memoryview, width: int, dtype: torch.dtype) -> NDArray[Any]:
    """Return the same memory, to be read alone. Raises ValueError, as `unpack_floats`."""
    kind = np.float32 if dtype == torch.float32 else np.float64
    found = np.frombuffer(content, dtype=kind)
    return found.reshape(-1, width) if width else found.reshape(0, 0)


def pack_entries(entries: Entries) -> list[bytes]:
    return [
        pack(part.numpy()) if part.dtype == torch.int64 else pack_floats(part)
        for part in entries.tensors()
    ]


def unpack_entries(columns: Sequence[bytes], settings: TableSettings) -> Entries:
    widths = {"weights": settings.width, "state": settings.optimizer.state_width(settings.width)}
    parts = {}
    for field, content in zip(fields(Entries), columns, strict=True):
        if field.name in widths:
            parts[field.name] = unpack_floats(content, widths[field.name], settings.dtype)
        else:
            parts[field.name] = torch.from_numpy(unpack(content))
    if not widths["state"]:
        parts["state"] = parts["weights"].new_empty(len(parts["weights"]), 0)
    return Entries(**parts)


def write_settings(settings: TableSettings) -> str:
    """Return all of a table's settings as text, the same for the same ones."""
    optimizer = {"type": type(settings.optimizer).__name__, **asdict(settings.optimizer)}
    values: dict[str, Any] = {
        field.name: getattr(settings, field.name) for field in fields(settings)
    }
    dtype = str(settings.dtype).removeprefix("torch.")
    return json.dumps({**values, "optimizer": optimizer, "dtype": dtype}, sort_keys=True)


def read_settings(text: str) -> TableSettings:
    """Raises ValueError or TypeError for what is no table."""
    values = json.loads(text)
    optimizer = values.pop("optimizer")
    kind = _OPTIMIZERS.get(optimizer.pop("type"))
    if kind is None:
        raise ValueError(f"no such optimizer: expected one of {', '.join(_OPTIMIZERS)}")
    if "betas" in optimizer:
        optimizer["betas"] = tuple(optimizer["betas"])
    dtype = {"float32": torch.float32, "float64": torch.float64}.get(values.pop("dtype"))
    if dtype is None:
        raise TypeError("no such dtype: expected float32 or float64")
    return TableSettings(**values, optimizer=kind(**optimizer), dtype=dtype)
