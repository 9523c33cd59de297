"""Measures a coordinator's cost of each node of a job: its CPU seconds while agents connect, form a
round and link their workers, its share of a core while they rest and while they train, and the CPU
seconds of the next coordinator, which hears from all of them that they are in that round.

`decisions` is the state machine alone; `served` is a coordinator's process on loopback, whose
agents are simulated by this one: each says what an agent of eight workers says, and keeps no
workers. No worker, no torch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import grpc.aio
from elastic_trainer.coordinator.model import Phase, Received, Settings, State, Tick
from elastic_trainer.coordinator.server import TICK_SECONDS
from elastic_trainer.coordinator.state import step
from elastic_trainer.proto import coordinator_pb2
from elastic_trainer.proto.coordinator_pb2 import CoordinatorMessage
from elastic_trainer.protocol.abridgement import abridge
from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.protocol.encoding import decode, encode_agent
from elastic_trainer.protocol.message import (
    VERSION,
    AgentMessage,
    Heartbeat,
    Hello,
    Join,
    Linked,
    Progress,
    Taken,
    Whole,
)
from elastic_trainer.protocol.pace import BEAT_SECONDS, beat_seconds
from elastic_trainer.succession.electorate import electorate_of

from benchmarks.rendezvous import JOB, OPTIONS, PATIENCE, TOKEN, Coordinator

PROCESSES = 8
STEP_SECONDS = 0.5
PACES_SECONDS = 1.0
"""So often an agent tells how fast each of its workers is."""
WATCHED_SECONDS = 10.0
_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]
ATTEND = f"/{_SERVICE.full_name}/Attend"


def name_of(index: int) -> str:
    return f"{index:016x}"


def hello(index: int) -> Hello:
    return Hello(
        name_of(index),
        index,
        "127.0.0.1",
        version=VERSION,
        job=JOB,
        processes=PROCESSES,
        port=6000,
    )


def progress(number: int, step: int, paces: bool) -> Progress:
    told = tuple(100 * step + rank for rank in range(PROCESSES)) if paces else ()
    counted = (step,) * PROCESSES if paces else ()
    return Progress(
        number, step, 0.01, step * 1000, STEP_SECONDS, 10, 10, 0, told, told, told, counted, counted
    )


def linked(number: int) -> Linked:
    return Linked(number, tuple(range(1000, 1000 + PROCESSES)), recovers=True, last_run=1)


# ---- the state machine alone


class Decisions:
    """A state machine that is told what agents say, and what that costs."""

    def __init__(self, agents: int) -> None:
        self._agents, self._now = agents, 0.0
        settings = Settings(agents, agents, lost_after=30.0, host=name_of(0), term=1)
        self._state = State(settings=settings, started=0.0)

    def _feed(self, event: Any) -> None:
        self._state, _ = step(self._state, event, self._now)

    def _hear(self, said: Callable[[int], AgentMessage]) -> float:
        """Return the CPU seconds of one message of each agent, with a tick at each hundredth."""
        began = time.process_time()
        for index in range(self._agents):
            self._feed(Received(name_of(index), said(index)))
            if index % max(1, self._agents // 100) == 0:
                self._now += 0.01
                self._feed(Tick())
        return time.process_time() - began

    def _rest(self, seconds: float) -> float:
        """Return the cores that signs of life take."""
        began, end = time.process_time(), self._now + seconds
        names = [name_of(index) for index in range(self._agents)]
        ticks = round(beat_seconds(self._agents) / TICK_SECONDS)
        for tick in range(round(seconds / TICK_SECONDS)):
            self._now += TICK_SECONDS
            self._feed(Tick(dict.fromkeys(names[tick % ticks :: ticks], self._now)))
        assert self._now >= end - 1e-6
        return (time.process_time() - began) / seconds

    def run(self) -> dict[str, float]:
        found = {"connect_cpu_seconds": self._hear(hello)}
        self._rest(1.0)
        found["form_cpu_seconds"] = self._hear(lambda index: Join(5000))
        assert self._state.phase is Phase.RUNNING and self._state.round is not None
        number = self._state.round.round
        found["link_cpu_seconds"] = self._hear(lambda _: Taken(number))
        found["link_cpu_seconds"] += self._hear(lambda _: linked(number))
        found["rest_cores"] = self._rest(6.0)
        self._hear(lambda _: progress(number, 1, True))
        told = self._hear(lambda _: progress(number, 2, True))
        found["progress_microseconds"] = told / self._agents * 1e6
        assert self._state.phase is Phase.RUNNING
        return found


# ---- a coordinator's process


@cache
def _parsed(told: bytes) -> Any:
    """Parse what all agents are told once: how fast they read isn't what is measured."""
    return CoordinatorMessage.FromString(told)


class SimulatedAgent:
    def __init__(self, index: int, port: int) -> None:
        self.index, self._beat_seconds = index, BEAT_SECONDS
        self._target = f"127.0.0.1:{port}"
        self._channel = grpc.aio.insecure_channel(self._target, options=OPTIONS)
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self.placed = asyncio.Event()
        self.number = 0
        self.round: Any = None
        """The round as it came; the same for all."""
        self.training_since: float | None = None
        self._told_step, self._told_paces = 0, 0.0
        self._abridged = Whole()

    async def connect(self, first: Any = None) -> None:
        for last in (False, False, False, True):  # as agents do, whose streams sometimes break
            attend = self._channel.stream_stream(
                ATTEND,
                request_serializer=coordinator_pb2.AgentMessage.SerializeToString,
                response_deserializer=_parsed,
            )
            self._call = attend(metadata=((HEADER, TOKEN),), wait_for_ready=True)
            try:
                await self._call.write(first or encode_agent(hello(self.index)))
                break
            except grpc.RpcError:
                if last:
                    raise
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    async def say(self, message: AgentMessage) -> None:
        async with self._writing:  # gRPC takes one at a time
            await self._call.write(encode_agent(message))

    async def _read(self) -> None:
        while (envelope := await self._call.read()) is not grpc.aio.EOF:
            if envelope.HasField("heartbeat"):
                self._beat_seconds = envelope.heartbeat.beat_seconds
            elif envelope.HasField("round"):
                self.number = envelope.round.round
                self.round = envelope.round
                self.placed.set()
                await self.say(Taken(self.number))
            elif envelope.HasField("ask_whole"):
                await self.say(self._abridged)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            await self.say(self._next_beat(time.monotonic()))

    def _next_beat(self, now: float) -> AgentMessage:
        if self.training_since is None:
            return Heartbeat()
        applied = int((now - self.training_since) / STEP_SECONDS)
        if applied <= self._told_step:
            return Heartbeat()
        self._told_step = applied
        paces = now >= self._told_paces + PACES_SECONDS
        self._told_paces = now if paces else self._told_paces
        return progress(self.number, applied, paces)

    async def connect_again(self, made: bytes, electorate: bytes) -> None:
        """To another coordinator, as a member of the round that was made."""
        await self.close()
        self._channel = grpc.aio.insecure_channel(self._target, options=OPTIONS)
        told = encode_agent(replace(hello(self.index), last_round=self.number, linked=True))
        told.hello.round, told.hello.electorate = made, electorate
        self._abridged = abridge(told) or Whole()
        await self.connect(told)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)


async def _in_groups(coroutines: Iterable[Awaitable[None]], size: int = 100) -> None:
    waiting = list(coroutines)
    for first in range(0, len(waiting), size):
        await asyncio.gather(*waiting[first : first + size])


async def served(agents: int) -> dict[str, float]:
    coordinator = Coordinator(agents, "--term=1", f"--agent={name_of(0)}")
    simulated = [SimulatedAgent(index, coordinator.port) for index in range(agents)]

    async def cost(name: str, stage: Callable[[], Awaitable[Any]], settle: float = 1.0) -> None:
        """Note all of the coordinator's CPU seconds while a stage goes on, and how long it did.

        Signs of life are among them: on a busy machine those are seldom as regular as at rest, and
        can't be taken off.
        """
        before, began = coordinator.cpu_seconds(), time.monotonic()
        await asyncio.wait_for(stage(), PATIENCE)
        await asyncio.sleep(settle)  # what was said is read
        found[f"{name}_cpu_seconds"] = coordinator.cpu_seconds() - before
        found[f"{name}_wall_seconds"] = time.monotonic() - began

    async def share() -> float:
        before, began = coordinator.cpu_seconds(), time.monotonic()
        await asyncio.sleep(WATCHED_SECONDS)
        return (coordinator.cpu_seconds() - before) / (time.monotonic() - began)

    async def connect() -> None:
        await _in_groups(agent.connect() for agent in simulated)
        await coordinator.has(agents)

    async def form() -> None:
        await _in_groups(agent.say(Join(5000)) for agent in simulated)
        await asyncio.gather(*(agent.placed.wait() for agent in simulated))

    async def link() -> None:
        await _in_groups(agent.say(linked(agent.number)) for agent in simulated)

    async def adopt() -> None:
        told = simulated[0].round
        made = decode(CoordinatorMessage(round=told))
        electorate = encode_agent(Hello(electorate=electorate_of(made))).hello.electorate
        encoded = told.SerializeToString()
        await _in_groups(agent.connect_again(encoded, electorate) for agent in simulated)
        await coordinator.has(agents)

    found: dict[str, float] = {}
    try:
        await coordinator.serves()
        await cost("connect", connect)
        await cost("form", form)
        await cost("link", link)
        found["rest_cores"] = await share()
        for agent in simulated:
            agent.training_since = time.monotonic()
        await asyncio.sleep(2.0)
        found["training_cores"] = await share()
        status = await asyncio.to_thread(coordinator.status)
        assert (status["world"], status["round"]) == (agents, simulated[0].number), status["rounds"]
        found["peak_mib"] = coordinator.peak_bytes() / 2**20
        coordinator.close()
        coordinator = Coordinator(agents, "--term=2", port=coordinator.port)
        await coordinator.serves()
        number = simulated[0].number
        await cost("restart", adopt)
        found["restart_peak_mib"] = coordinator.peak_bytes() / 2**20
        status = await asyncio.to_thread(coordinator.status)
        assert (status["phase"], status["round"]) == ("running", number), status["rounds"]
        return found
    finally:
        with contextlib.suppress(Exception):
            await asyncio.gather(*(agent.close() for agent in simulated))
        coordinator.close()


async def measure(agents: list[int], parts: list[str], as_json: bool) -> None:
    for number in agents:
        for part in parts:
            found = Decisions(number).run() if part == "decisions" else await served(number)
            rounded = {key: round(value, 3) for key, value in found.items()}
            if as_json:
                print(json.dumps({"part": part, "agents": number, **rounded}), flush=True)
            else:
                words = "  ".join(f"{key} {value}" for key, value in rounded.items())
                print(f"{part:9} {number:5} agents  {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__)
    parser.add_argument("--agents", type=int, nargs="*", default=[250, 1000, 4000])
    parser.add_argument("--only", choices=("decisions", "served"))
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    parts = [options.only] if options.only else ["decisions", "served"]
    asyncio.run(measure(options.agents, parts, options.json))


if __name__ == "__main__":
    main()
