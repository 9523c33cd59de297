"""Last agent joined to all have ranks: our coordinator, and torchrun's c10d beside it.

    python -m benchmarks.rendezvous --agents 4 16 64 128 1000 --c10d 4 16

The coordinator is a process of its own, as in a job; the agents are streams that speak its
protocol, in this process. Each is there and joins but the last, whose Join starts the clock. c10d's
agents are real ones of torch, a process each, forked once torch is imported.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import queue
import resource
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import grpc.aio
from elastic_trainer.proto.coordinator_pb2_grpc import CoordinatorStub
from elastic_trainer.protocol.auth import HEADER, TOKEN_VARIABLE
from elastic_trainer.protocol.encoding import encode_agent
from elastic_trainer.protocol.message import MESSAGE_BYTES, VERSION, Heartbeat, Hello, Join
from elastic_trainer.protocol.pace import BEAT_SECONDS

from benchmarks.endpoint import free_endpoint

TOKEN, JOB = "benchmark", "bench/rendezvous"
PATIENCE = 180.0
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
]
_TICKS = os.sysconf("SC_CLK_TCK")


class SimulatedAgent:
    def __init__(self, index: int, port: int) -> None:
        self.index, self._beat_seconds = index, BEAT_SECONDS
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self.placed = asyncio.Event()
        self.placed_at = 0.0

    async def hello(self) -> None:
        self._call = CoordinatorStub(self._channel).Attend(
            metadata=((HEADER, TOKEN),), wait_for_ready=True
        )
        name = f"{self.index:016x}"
        hello = Hello(name, self.index, "10.0.0.1", version=VERSION, job=JOB, processes=8)
        await self._write(encode_agent(hello))
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    async def join(self) -> None:
        await self._write(encode_agent(Join(5000)))

    async def _write(self, envelope: Any) -> None:
        async with self._writing:  # gRPC takes one at a time
            await self._call.write(envelope)

    async def _read(self) -> None:
        while (envelope := await self._call.read()) is not grpc.aio.EOF:
            if envelope.HasField("heartbeat"):
                self._beat_seconds = envelope.heartbeat.beat_seconds
            elif envelope.HasField("round"):
                self.placed_at = time.monotonic()
                self.placed.set()

    async def _beat(self) -> None:
        heartbeat = encode_agent(Heartbeat())
        while True:
            await asyncio.sleep(self._beat_seconds)
            await self._write(heartbeat)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)


class Coordinator:
    """The real one, in its own process."""

    def __init__(self, agents: int, *options: str, port: int = 0) -> None:
        self.port = port or free_endpoint()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "elastic_trainer.coordinator", f"--port={self.port}"),
                *(f"--min={agents}", f"--max={agents}", f"--job={JOB}"),
                *("--heartbeat-timeout=30", f"--parent={os.getpid()}"),
                *options,
            ],
            env={**os.environ, TOKEN_VARIABLE: TOKEN},
            stderr=subprocess.DEVNULL,
        )

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_bytes(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        return 0

    def agents(self) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port + 1}/metrics")
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("volcano_elastic_trainer_agents{"):
                    return int(float(line.split()[-1]))
        return 0

    def status(self) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port + 1}/status")
        request.add_header(HEADER, TOKEN)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    async def serves(self) -> None:
        for _ in range(int(PATIENCE / 0.1)):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.agents)
                return
            await asyncio.sleep(0.1)

    async def has(self, agents: int) -> None:
        for _ in range(int(PATIENCE / 0.1)):
            if await asyncio.to_thread(self.agents) == agents:
                return
            await asyncio.sleep(0.1)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def ours(agents: int, beat_seconds: float) -> dict[str, Any]:
    coordinator = Coordinator(agents)
    simulated = [SimulatedAgent(index, coordinator.port) for index in range(agents)]
    try:
        for first in range(0, agents, 50):
            await asyncio.gather(*(agent.hello() for agent in simulated[first : first + 50]))
        await asyncio.wait_for(coordinator.has(agents), PATIENCE)
        await asyncio.gather(*(agent.join() for agent in simulated[:-1]))
        await asyncio.sleep(1.0)  # what they said is read
        before, began = coordinator.cpu_seconds(), time.monotonic()
        await simulated[-1].join()
        await asyncio.wait_for(
            asyncio.gather(*(agent.placed.wait() for agent in simulated)), PATIENCE
        )
        placed = [agent.placed_at - began for agent in simulated]
        forming = coordinator.cpu_seconds() - before
        rest, rested = coordinator.cpu_seconds(), time.monotonic()
        await asyncio.sleep(beat_seconds)
        share = (coordinator.cpu_seconds() - rest) / (time.monotonic() - rested)
        return {
            "backend": "volcano-elastic",
            "agents": agents,
            "seconds": round(max(placed), 4),
            "coordinator_cpu_seconds": round(forming, 3),
            "coordinator_cpu_share_at_rest": round(share, 3),
            "coordinator_peak_mib": round(coordinator.peak_bytes() / 2**20, 1),
        }
    finally:
        await asyncio.gather(*(agent.close() for agent in simulated))
        coordinator.close()


async def all_of_ours(numbers: list[int], repeat: int, beat_seconds: float) -> list[dict[str, Any]]:
    return [await ours(agents, beat_seconds) for agents in numbers for _ in range(repeat)]


def c10d(agents: int) -> dict[str, Any]:
    """torchrun's own: real agents' handlers, all joining at once."""
    port, context = free_endpoint(), multiprocessing.get_context("fork")
    import torch.distributed.elastic.rendezvous.registry  # noqa: F401  # before the forks

    answers = context.Queue()
    ready = context.Barrier(agents)
    processes = [
        context.Process(target=_c10d_agent, args=(port, agents, ready, answers, index == 0))
        for index in range(agents)
    ]
    for process in processes:
        process.start()
    try:
        times = [answers.get(timeout=PATIENCE) for _ in range(agents)]
    except queue.Empty:
        return {"backend": "c10d", "agents": agents, "seconds": math.inf}
    finally:
        for process in processes:
            process.kill()
            process.join()
    last_join = max(joined for joined, _ in times)
    seconds = max(placed for _, placed in times) - last_join
    return {"backend": "c10d", "agents": agents, "seconds": round(seconds, 4)}


def _c10d_agent(port: int, agents: int, ready: Any, answers: Any, host: bool) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    parameters = RendezvousParameters(
        "c10d", f"localhost:{port}", "bench", agents, agents, is_host=host
    )
    handler = get_rendezvous_handler(parameters)
    ready.wait(PATIENCE)
    joined = time.monotonic()
    handler.next_rendezvous()
    answers.put((joined, time.monotonic()))
    ready.wait(PATIENCE)  # the host serves the others' store


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rendezvous", description=__doc__)
    parser.add_argument("--agents", type=int, nargs="*", default=[4, 16, 64, 128, 1000])
    parser.add_argument("--c10d", type=int, nargs="*", default=[4, 16], help="agents of torch's")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--beats", type=float, default=5.0, help="seconds to watch it at rest")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    found = [c10d(agents) for agents in options.c10d for _ in range(options.repeat)]
    found += asyncio.run(all_of_ours(options.agents, options.repeat, options.beats))
    for one in found:
        if options.json:
            print(json.dumps(one))
            continue
        rest = {k: v for k, v in one.items() if k not in ("backend", "agents", "seconds")}
        print(f"{one['backend']:16} {one['agents']:5} agents {one['seconds']:8.3f} s  {rest or ''}")
    for agents in sorted(set(options.c10d) & set(options.agents)):
        medians = [
            sorted(o["seconds"] for o in found if o["agents"] == agents and o["backend"] == name)
            for name in ("c10d", "volcano-elastic")
        ]
        theirs, mine = (times[len(times) // 2] for times in medians)
        print(f"{agents} agents: c10d takes {theirs / mine:.0f} times as long (medians)")


if __name__ == "__main__":
    main()
