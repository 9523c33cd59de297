"""Measures how a state reaches many nodes: `python -m benchmarks.transfer [--mebibytes 256]`.

Each node is a network namespace of this machine with a link of --megabits to all others (veth, a
bridge, tc's tbf both ways), so that the links are the limit and not the processors; needs root,
`ip` and `tc`. Rank 0 gives; the first figure is from when all are ready until the last taker has
the state, the second what came over the busiest node's link, in copies of the state. Beside it, in
the same network: torch.distributed.broadcast, and one taker after another by send.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.chain import arrange_chain
from elastic_trainer.checkpoint.transfer import give, take

WAYS = ("chain", "broadcast", "one after another")
BURST = "64kb"


@dataclass(frozen=True)
class Measured:
    way: str
    takers: int
    ranks: int
    """Number of ranks on each node."""
    seconds: float
    copies: float
    """Bytes that came over the busiest node's link, in sizes of the state."""


@contextlib.contextmanager
def network(nodes: int, megabits: int) -> Iterator[list[str]]:
    """Yield the namespaces' names; node n's address is 10.77.0.(n + 1)."""
    names = [f"transfer-{os.getpid()}-{node}" for node in range(nodes)]
    switch = f"transfer-{os.getpid()}"
    made = []
    try:
        for name in (switch, *names):
            _run("ip", "netns", "add", name)
            made.append(name)
        _inside(switch, "ip", "link", "add", "switch", "type", "bridge")
        _inside(switch, "ip", "link", "set", "switch", "up")
        shape = ("tbf", "rate", f"{megabits}mbit", "burst", BURST, "latency", "50ms")
        for node, name in enumerate(names):
            port = f"port{node}"
            link = ("ip", "link", "add", "eth0", "type", "veth")
            _inside(name, *link, "peer", "name", port, "netns", switch)
            _inside(switch, "ip", "link", "set", port, "master", "switch", "up")
            _inside(name, "ip", "address", "add", f"10.77.0.{node + 1}/24", "dev", "eth0")
            _inside(name, "ip", "link", "set", "eth0", "up")
            _inside(name, "ip", "link", "set", "lo", "up")
            _inside(name, "tc", "qdisc", "add", "dev", "eth0", "root", *shape)
            _inside(switch, "tc", "qdisc", "add", "dev", port, "root", *shape)
        yield names
    finally:
        for name in reversed(made):
            subprocess.run(["ip", "netns", "delete", name], check=False)


def measure(way: str, takers: int, ranks: int, mebibytes: int, megabits: int) -> Measured:
    """Time one hand-over to `takers` nodes of `ranks` ranks each."""
    with network(takers + 1, megabits) as names:
        world = 1 + takers * ranks
        places = [(0, 0)] + [(node, node) for node in range(1, takers + 1) for _ in range(ranks)]
        processes = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", names[node], sys.executable, "-m", __spec__.name),
                    *("--rank", json.dumps([rank, world, way, ranks, mebibytes])),
                ],
                env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, (node, _) in enumerate(places)
        ]
        try:
            said = [json.loads(process.communicate(timeout=600)[0]) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    size = mebibytes << 20
    return Measured(
        way,
        takers,
        ranks,
        round(max(seconds for seconds, _ in said), 2),
        round(max(came for _, came in said) / size, 2),
    )


def be_rank(rank: int, world: int, way: str, ranks: int, mebibytes: int) -> None:
    """Take part in a hand-over as one rank, and print its seconds and its node's bytes."""
    store = dist.TCPStore("10.77.0.1", 29500, world, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    nodes = ["giver"] + [f"node {(other - 1) // ranks}" for other in range(1, world)]
    relay = arrange_chain(0, list(range(1, world)), nodes)[rank]
    content = torch.full((mebibytes << 20,), int(rank == 0), dtype=torch.uint8)
    dist.barrier()
    came, began = _came(), time.monotonic()
    if way == "chain":
        content = content if relay.source is None else torch.empty(0)
        if relay.source is None:
            give({"model": content}, relay)
        else:
            content = take(relay)["model"]
    elif way == "broadcast":
        dist.broadcast(content, 0)
    elif rank == 0:
        for taker in range(1, world):
            dist.send(content, taker)
    else:
        dist.recv(content, 0)
    taken = time.monotonic() - began
    came = _came() - came
    assert int(content[0]) == int(content[-1]) == 1
    dist.barrier()
    print(json.dumps([taken, came]))


def _came() -> int:
    return int(Path("/sys/class/net/eth0/statistics/rx_bytes").read_text())


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _inside(name: str, *command: str) -> None:
    _run("ip", "netns", "exec", name, *command)


def main(arguments: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--mebibytes", type=int, default=256)
    flags.add_argument("--megabits", type=int, default=100, help="a second, of each node's link")
    flags.add_argument("--takers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    flags.add_argument("--ranks", type=int, default=1, help="of each node")
    flags.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS[:2]))
    flags.add_argument("--json", action="store_true")
    flags.add_argument("--rank", help=argparse.SUPPRESS)
    given = flags.parse_args(arguments)
    if given.rank is not None:
        be_rank(*json.loads(given.rank))
        return
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("expected root, and the programs ip and tc (Debian: iproute2)")
    found = []
    for way in given.ways:
        alone = 0.0
        for takers in given.takers:
            one = measure(way, takers, given.ranks, given.mebibytes, given.megabits)
            alone = alone or one.seconds
            found.append(one)
            if not given.json:
                print(
                    f"{way:18} {takers:3} nodes of {given.ranks}: {one.seconds:6.2f} s, "
                    f"{one.seconds / alone:5.2f} x; {one.copies:5.2f} copies",
                    flush=True,
                )
    if given.json:
        print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main()
