"""Serves tables: `python -m elastic_trainer.parameter_server`; more of them with `--join`.

In a pod of role PS it knows from its environment which one it is, and where the others are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_trainer.parameter_server.follower import EpochError
from elastic_trainer.parameter_server.server import ParameterServer
from elastic_trainer.parameter_server.wire import SERVERS_VARIABLE
from elastic_trainer.protocol.auth import TOKEN_VARIABLE

PORT_AFTER = -1
EXIT_ADDRESS = 3
"""Its address can't be served."""
EXIT_STORAGE = 5
"""Exit code where its notes in its storage can't be read."""
EXIT_EPOCH = 4
"""The first server began anew without this one."""


@dataclass(frozen=True)
class Place:
    """Where a server is, and whom it joins."""

    host: str = "127.0.0.1"
    port: int = 29600
    address: str = ""
    first: str = ""


def place_in_job(environment: Mapping[str, str]) -> Place:
    """Return the place of the server in this pod; one for this machine alone where it is none."""
    servers = [one for one in environment.get(SERVERS_VARIABLE, "").split(",") if one]
    index = environment.get("VOLCANO_ELASTIC_POD_INDEX", "")
    if not servers or not index.isdecimal() or int(index) >= len(servers):
        return Place()
    address = servers[int(index)]
    host = environment.get("VOLCANO_ELASTIC_POD_IP") or Place.host
    first = servers[0] if int(index) else ""
    return Place(host, int(address.rpartition(":")[2]), address, first)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m elastic_trainer.parameter_server",
        description="Serves embedding tables to asynchronous workers (ServedTables).",
        epilog="SIGTERM: a server gives its rows to the others first, then ends.",
    )
    place = place_in_job(os.environ)
    parser.add_argument("--host", default=place.host, help="address to serve (%(default)s)")
    parser.add_argument("--port", type=int, default=place.port, help="(%(default)s)")
    parser.add_argument(
        "--join", default=place.first, help="host:port of the first server; unset: this is"
    )
    parser.add_argument(
        "--address", default=place.address, help="host:port by which others reach this one"
    )
    parser.add_argument(
        "--storage",
        default="",
        help="of the first server, a folder that outlives it: restarted, it never begins with "
        "empty tables where there were rows",
    )
    parser.add_argument(
        "--copy-every",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="keep a copy of this server's rows in another one's memory, and send it what changed "
        "so often; when this one is lost, that one goes on from there (default: no copy)",
    )
    parser.add_argument(
        "--copy-folder",
        default="",
        metavar="FOLDER",
        help="of this machine, where copies of other servers' rows are kept, instead of in memory; "
        "one of its own for each server (its *.copy are removed)",
    )
    parser.add_argument(
        "--metrics-port",
        type=_port,
        default=PORT_AFTER,
        help="for HTTP: /metrics for Prometheus and, of the first server, /status of all; or "
        "none (default: the one after --port)",
    )
    options = parser.parse_args(arguments)
    if options.metrics_port == PORT_AFTER:
        options.metrics_port = options.port + 1 if options.port < 65535 else None
    return options


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected seconds, 0 for never, found {text!r}")


def _port(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"expected a port or none, found {text!r}")
    return int(text)


async def serve(options: argparse.Namespace) -> int:
    address = options.address or f"{options.host}:{options.port}"
    token = os.environ.pop(TOKEN_VARIABLE, "")
    try:
        server = ParameterServer(
            address,
            options.join,
            token,
            options.storage,
            options.copy_every,
            os.environ.get("VOLCANO_ELASTIC_JOB", ""),
            options.copy_folder,
        )
    except (OSError, ValueError) as error:
        print(f"parameter server: cannot read its storage: {error}", file=sys.stderr)
        return EXIT_STORAGE
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.member.leave)
    loop.add_signal_handler(signal.SIGINT, server.member.ended.set)
    try:
        await server.run(options.host, options.port, options.metrics_port)
    except EpochError as error:
        print(f"parameter server: {error}", file=sys.stderr)
        return EXIT_EPOCH
    except PermissionError as error:
        print(f"parameter server: cannot serve {options.host}: {error}", file=sys.stderr)
        return EXIT_ADDRESS
    except OSError as error:
        print(
            f"parameter server: cannot serve {options.host}:{options.port}, which may be in use: "
            "expected a --port of its own (another server takes the one after its own, too, for "
            f"its metrics); {error}",
            file=sys.stderr,
        )
        return EXIT_ADDRESS
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main())
