"""`python -m elastic_trainer.node_check.measurement`: one process of one trial.

It multiplies matrices on its device, checks the product, and then gathers with the other processes
of the trial. It is a process of its own, so that a device that hangs or a library that crashes
takes nothing with it. The last line that it prints is JSON: {seconds, device}.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from elastic_trainer.identity import NODE_VARIABLE
from elastic_trainer.node_check.message import UNABLE
from elastic_trainer.parent_death import die_with
from elastic_trainer.ranks.reverse_lookup import stop_reverse_lookups

FAULT_VARIABLE = "VOLCANO_ELASTIC_NODE_CHECK_FAULT"
"""For drills: `crash`, `hang`, `wrong` or `slow` makes this node's processes do so in a check;
`KIND:NODE` those of that node alone."""

CPU_SIZE, CPU_TIMES = 384, 10
GPU_SIZE, GPU_TIMES = 8192, 30
"""Side of the matrices, and products: some 10 ms of a CPU core, and under a second of a GPU. Their
entries are 0 and 1, so that every sum is exact in any order and in TF32, too."""
CPU_ELEMENTS, GPU_ELEMENTS = 1 << 18, 1 << 25
"""Numbers (4 bytes each) that each process gives the others at a time."""
GATHERS = 10
WARM_UPS = 2
SLOW_SECONDS = 1.0
"""Time that the drill `slow` adds."""


_NO_ROOM = re.compile(r"out of memory|busy or unavailable", re.IGNORECASE)
"""Words of CUDA where training's own processes hold a device, or hold it for themselves alone."""


class TrialError(RuntimeError):
    """The device or the network did not do what it should."""


def drill() -> str:
    """Return the fault that this process is to show; empty: none."""
    kind, _, node = os.environ.get(FAULT_VARIABLE, "").partition(":")
    return kind if node in ("", os.environ.get(NODE_VARIABLE, "")) else ""


def multiply(device: torch.device) -> float:
    """Return the seconds that the products took. Raises TrialError where one is wrong."""
    on_gpu = device.type == "cuda"
    size, times = (GPU_SIZE, GPU_TIMES) if on_gpu else (CPU_SIZE, CPU_TIMES)
    torch.backends.cuda.matmul.allow_tf32 = True
    made = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(0, 2, (size, size), generator=made).to(device, torch.float32)
        for _ in range(2)
    )
    product = left @ right
    _finish(device)
    began = time.perf_counter()
    for _ in range(times):
        product = left @ right
    _finish(device)
    seconds = time.perf_counter() - began
    expected = left.double() @ right.double().sum(1)
    if drill() == "wrong":
        product[0, 0] += 1
    if not torch.equal(product.double().sum(1), expected):
        raise TrialError(f"{device} multiplied matrices wrongly")
    return seconds


def gather(device: torch.device, rank: int, world: int) -> float:
    """Return the seconds that the gathers took. Raises TrialError where one is wrong."""
    elements = GPU_ELEMENTS if device.type == "cuda" else CPU_ELEMENTS
    own = torch.full((elements,), float(rank + 1), device=device)
    parts = [torch.empty_like(own) for _ in range(world)]
    for _ in range(WARM_UPS):
        dist.all_gather(parts, own)
    _finish(device)
    began = time.perf_counter()
    for _ in range(GATHERS):
        dist.all_gather(parts, own)
    _finish(device)
    seconds = time.perf_counter() - began
    for other, part in enumerate(parts):
        if not bool((part == float(other + 1)).all()):
            raise TrialError(f"{device} was given other numbers than process {other} sent")
    return seconds


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device(local_rank: int, on_gpu: bool) -> torch.device:
    count = torch.cuda.device_count()
    if count == 0 and not on_gpu:
        return torch.device("cpu")
    if local_rank >= count:
        raise TrialError(f"expected a GPU for process {local_rank}, found {count}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one process's part."""
    fault = drill()
    if fault == "crash":
        os.abort()
    while fault == "hang":
        time.sleep(3600)
    device = _device(options.local_rank, options.gpu)
    seconds = multiply(device)
    if fault == "slow":
        time.sleep(SLOW_SECONDS)
        seconds += SLOW_SECONDS
    timeout = timedelta(seconds=options.timeout)
    stop_reverse_lookups()
    store = PrefixStore(
        options.prefix,
        TCPStore(
            options.address, options.port, is_master=False, timeout=timeout, wait_for_workers=False
        ),
    )
    # Where some have no GPU all use gloo, which takes the others' memory, too.
    store.set(f"device/{options.rank}", device.type)
    kinds = {store.get(f"device/{other}") for other in range(options.world)}
    if kinds != {b"cuda"}:
        device = torch.device("cpu")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=options.rank,
        world_size=options.world,
        timeout=timeout,
    )
    seconds += gather(device, options.rank, options.world)
    # Nobody goes before all have what they gather.
    store.set(f"done/{options.rank}", "")
    store.wait([f"done/{other}" for other in range(options.world)], timeout)
    return {"seconds": seconds, "device": str(device)}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m elastic_trainer.node_check.measurement", description=__doc__
    )
    parser.add_argument("--address", required=True, help="of the trial's store")
    parser.add_argument("--port", type=int, required=True, help="of the trial's store")
    parser.add_argument("--prefix", required=True, help="of the trial's keys there")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--local-rank", type=int, default=0, help="which GPU of this node")
    parser.add_argument("--gpu", action="store_true", help="a node without is broken")
    parser.add_argument("--timeout", type=float, required=True, help="seconds for the others")
    parser.add_argument("--parent", type=int, default=0, help="pid to die with; 0: none")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if options.parent:
        die_with(options.parent)
    try:
        found = run(options)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = UNABLE if _NO_ROOM.search(str(error)) else 1
    else:
        print(json.dumps(found))
        code = 0
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # taking a process group apart can hang where the network does


if __name__ == "__main__":
    sys.exit(main())
