"""Measures what a checkpoint of a large state costs training, and what loading it costs a restart.

    python -m benchmarks.checkpoint [--mebibytes 1024] [--repeats 5]

The least of several saves, as other load only adds; the first is told apart, as it touches fresh
pages. `warm memcpy` copies the same tensors into buffers that have been written before, with the
same threads.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.chain import Relay
from elastic_trainer.checkpoint.state_value import from_plain
from elastic_trainer.checkpoint.transfer import give, take
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.digest import REPLICATED
from elastic_trainer.store.replica import read_replica, write_replica
from elastic_trainer.store.slot import Label, Slots, payload_size
from elastic_trainer.store.storage import Storage
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

TENSORS = 227


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def show(name: str, taken: list[float], floor: float, first: float | None = None) -> None:
    least = min(taken)
    note = f"   first {first:.3f} s" if first is not None else ""
    median = f"(median {statistics.median(taken):.3f} s)"
    print(f"{name:40} {least:7.3f} s {median} {least / floor:6.2f} x memcpy{note}", flush=True)


def take_in_child(port: int, pipe: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=1, world_size=2)
    dist.barrier()
    os.write(pipe, f"{seconds(lambda: take(Relay(0))):.6f}".encode())
    dist.barrier()


def from_peer(state: dict[str, Any]) -> float:
    """A second process takes the state over gloo on loopback."""
    import multiprocessing
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    peer = multiprocessing.get_context("spawn").Process(
        target=_peer, args=(port, f"/proc/{os.getpid()}/fd/{theirs}"), daemon=True
    )
    peer.start()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
    dist.barrier()
    give(state, Relay(None, 1))
    dist.barrier()
    taken = float(os.read(ours, 64))
    dist.destroy_process_group()
    peer.join(30)
    return taken


def _peer(port: int, pipe: str) -> None:
    take_in_child(port, os.open(pipe, os.O_WRONLY))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--mebibytes", type=int, default=1024)
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk to measure")
    given = flags.parse_args()
    numbers = given.mebibytes * (1 << 20) // 4 // TENSORS
    state = {
        "model": {f"layer.{n}": torch.rand(numbers) for n in range(TENSORS)},
        "optimizer": {},
        "cursor": {"epoch": 0, "position": 0, "step": 0},
        REPLICATED: {"model": [f"layer.{n}" for n in range(TENSORS)], "optimizer": []},
    }
    print(f"{given.mebibytes} MiB in {TENSORS} tensors, {torch.get_num_threads()} threads")
    memory = Path(tempfile.mkdtemp(prefix="benchmark-", dir="/dev/shm"))
    disk = Path(tempfile.mkdtemp(prefix="benchmark-", dir=given.folder))
    try:
        measure(state, given.repeats, memory, disk)
    finally:
        shutil.rmtree(memory)
        shutil.rmtree(disk)


def measure(state: dict[str, Any], repeats: int, memory: Path, disk: Path) -> None:
    tensors = list(state["model"].values())
    targets = [torch.empty_like(tensor).fill_(1) for tensor in tensors]
    slots = Slots(memory, 0)
    step = 0

    def copy() -> None:
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor)

    def save() -> None:
        nonlocal step
        step += 1
        blob = lay_out(state)
        label = Label("benchmark", 1, step, 0, 1, False, len(blob.skeleton), blob.size)
        slots.write(label, blob)

    prefault = seconds(lambda: slots.prepare(payload_size(lay_out(state))))
    copy()
    first = seconds(save)
    save()
    floors, ours = [], []
    for _ in range(repeats):  # by turns, as the machine's speed changes
        floors.append(seconds(copy))
        ours.append(seconds(save))
    floor = min(floors)
    print("blocking training")
    show("  warm memcpy", floors, floor)
    show("  saved to memory", ours, floor, first)
    print(f"  (room made beforehand, in the background: {prefault:.3f} s)")
    targets.clear()
    peers(state, repeats, disk, floor)

    print("in the background")
    newest = slots.slots[(step + 1) % 2]
    show("  verified by the agent", [seconds(newest.verify)], floor)
    label = newest.label()
    assert label is not None
    digest = [seconds(lambda: newest.replicated_digest(label)) for _ in range(repeats)]
    show("  compared with other nodes: its digest", digest, floor)
    storage = Storage(disk / "ours")
    write = seconds(lambda: write_replica(storage, step=step, run=1, state=newest.read()))
    show("  to disk, durable", [write], floor)

    print("loading")
    mine = [seconds(lambda: from_plain(newest.read())) for _ in range(repeats)]
    show("  own memory: verified and copied", mine, floor)
    show("  a peer's, over gloo on loopback", [from_peer(state)], floor)
    commit = storage.commits()[0]
    read = [seconds(lambda: read_replica(storage, commit)) for _ in range(2)]
    show("  disk (page cache): verified", read, floor)


def peers(state: dict[str, Any], repeats: int, disk: Path, floor: float) -> None:
    """Measure torch's own ways in the same run."""
    model = state["model"]

    def durably() -> None:
        with open(disk / "state.pt", "wb") as file:
            torch.save(model, file)
            file.flush()
            os.fsync(file.fileno())

    show("  torch.save, disk, fsync", [seconds(durably) for _ in range(2)], floor)
    number = 0

    def distributed() -> None:
        nonlocal number
        number += 1
        dcp_save(model, storage_writer=FileSystemWriter(disk / f"dcp-{number}"))

    show("  dcp.save, disk", [seconds(distributed) for _ in range(2)], floor)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    taken = []
    for _ in range(min(repeats, 3)):
        number += 1
        writer = FileSystemWriter(disk / f"dcp-{number}")
        began = time.perf_counter()
        future = async_save(model, storage_writer=writer)
        taken.append(time.perf_counter() - began)
        future.result()  # type: ignore[union-attr]
    dist.destroy_process_group()
    show("  dcp.async_save, blocking part", taken[1:] or taken, floor, taken[0])


if __name__ == "__main__":
    main()
