"""`python -m elastic_trainer.coordinator`: the coordinator's own process. Imports no torch."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

from elastic_trainer.coordinator.exclusion import exclude_seconds
from elastic_trainer.coordinator.hang_check import least_seconds
from elastic_trainer.coordinator.joining import join_wait_seconds
from elastic_trainer.coordinator.model import Settings
from elastic_trainer.coordinator.recheck import recheck_seconds
from elastic_trainer.coordinator.straggler_check import rebalances, window_seconds
from elastic_trainer.node_check.session import Limits
from elastic_trainer.parent_death import die_with
from elastic_trainer.protocol.keepalive import HEARTBEAT_TIMEOUT_VARIABLE, heartbeat_timeout

EXIT_ADDRESS = 3
"""The address can't be bound; another coordinator probably serves it."""

EXIT_PERMISSION = 4
"""Others could reach the address, and no token keeps them out."""

EXIT_DEPOSED = 5
"""Another agent's coordinator is in its place."""

FAILURES_DELIVERY_SECONDS = 12.0
"""After SIGUSR1, for somebody to ask for failures: the operator does each ten seconds."""

END_DELIVERY_SECONDS = 10.0
"""After SIGTERM, for agents to hear that training is complete, and go."""

YOUNG_OBJECTS = 100_000
"""Made before garbage is looked for: states of a large job are tuples and maps of thousands, none
in a cycle, and Python's own 700 took a sixth of the coordinator's CPU as 4,000 agents formed."""

PLACE_VARIABLE = "VOLCANO_ELASTIC_PLACE_SECONDS"
"""For --place-timeout, of a coordinator that an agent starts, too."""

CHECK_VARIABLE = "VOLCANO_ELASTIC_CHECK_SECONDS"
"""The least that a trial of a node check may take; without any that passes, six times as long."""
QUIET_VARIABLE = "VOLCANO_ELASTIC_CHECK_QUIET_SECONDS"
"""How long a node check waits for a further node once it has enough to begin with."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m elastic_trainer.coordinator", description=__doc__
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind")
    parser.add_argument("--port", type=int, required=True, help="gRPC; HTTP is on the next one")
    parser.add_argument(
        "--min", type=int, default=1, help="fewest agents of a round, until PUT /range"
    )
    parser.add_argument(
        "--max", type=int, default=1, help="most agents of a round, until PUT /range"
    )
    parser.add_argument("--node-unit", type=int, default=1, help="rounds are multiples of it")
    parser.add_argument("--job", default="", help="namespace/name, for /status")
    parser.add_argument("--program", default="", help="that trains, of a job without a name")
    parser.add_argument(
        "--heartbeat-timeout",
        type=float,
        help=f"seconds of silence: lost (default: {HEARTBEAT_TIMEOUT_VARIABLE})",
    )
    parser.add_argument(
        "--place-timeout",
        type=float,
        help="seconds without a byte of state moved in which workers must enter their round "
        f"(default: {PLACE_VARIABLE}, {Settings.place_deadline:.0f} if unset)",
    )
    parser.add_argument("--agent", default="", help="that runs it; empty: none does")
    parser.add_argument("--term", type=int, default=0, help="no two coordinators have the same")
    parser.add_argument("--parent", type=int, default=0, help="pid to die with; 0: none")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace, settings: Settings, limits: Limits) -> int:
    from elastic_trainer.coordinator.server import CoordinatorServer
    from elastic_trainer.protocol.auth import TOKEN_VARIABLE

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    token = os.environ.pop(TOKEN_VARIABLE, "")
    server = CoordinatorServer(options.job, settings, token, limits, program=options.program)

    last: list[asyncio.Task[None]] = []

    async def stop_after(delivery: Coroutine[Any, Any, None]) -> None:
        await delivery
        stopped.set()

    def end_delivered() -> None:
        last.append(loop.create_task(stop_after(server.end_delivered(END_DELIVERY_SECONDS))))

    def failures_delivered() -> None:
        delivery = server.failures_delivered(FAILURES_DELIVERY_SECONDS)
        last.append(loop.create_task(stop_after(delivery)))

    loop.add_signal_handler(signal.SIGINT, stopped.set)
    loop.add_signal_handler(signal.SIGTERM, end_delivered)
    loop.add_signal_handler(signal.SIGUSR1, failures_delivered)
    try:
        await server.run(options.host, options.port, stopped)
    except PermissionError as error:
        print(f"coordinator: cannot serve {options.host}: {error}", file=sys.stderr)
        return EXIT_PERMISSION
    except OSError as error:
        print(
            f"coordinator: cannot serve {options.host}:{options.port} and :{options.port + 1}: "
            f"{error}; free the ports or choose another --port",
            file=sys.stderr,
        )
        return EXIT_ADDRESS
    return EXIT_DEPOSED if server.deposed else 0


def deadlines(environment: Mapping[str, str], place: float | None = None) -> dict[str, Any]:
    """Return the Settings that a job sets; `place` where its owner said it otherwise. Raises
    ValueError for what can't be one."""
    place = place or float(environment.get(PLACE_VARIABLE) or Settings.place_deadline)
    return {
        "place_deadline": place,
        "hang_seconds": least_seconds(environment),
        "straggler_seconds": window_seconds(environment),
        "rebalance": rebalances(environment),
        "exclude_seconds": exclude_seconds(environment),
        "recheck_seconds": recheck_seconds(environment),
        "join_wait": join_wait_seconds(environment),
    }


def limits(environment: Mapping[str, str]) -> Limits:
    """Return a node check's limits. Raises ValueError for what is no time."""
    least = _seconds(environment, CHECK_VARIABLE, Limits.least)
    return Limits(
        least=least, longest=6 * least, quiet=_seconds(environment, QUIET_VARIABLE, Limits.quiet)
    )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name}: expected seconds above 0, found {text!r}; fix or unset it")
    return seconds


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.parent:
        die_with(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        settings = Settings(
            options.min,
            options.max,
            options.node_unit,
            lost_after=options.heartbeat_timeout or heartbeat_timeout(os.environ),
            term=options.term,
            host=options.agent,
            **deadlines(os.environ, options.place_timeout),
        )
        check_limits = limits(os.environ)
    except ValueError as error:
        print(f"coordinator: {error}", file=sys.stderr)
        return 2
    return asyncio.run(serve(options, settings, check_limits))


if __name__ == "__main__":
    gc.freeze()  # what was imported stays
    gc.set_threshold(YOUNG_OBJECTS)
    sys.exit(main())
