"""Serves tables: `python -m elastic_trainer.parameter_server`; more of them with `--join`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

from elastic_trainer.parameter_server.service import EpochError, Service
from elastic_trainer.protocol.auth import TOKEN_VARIABLE

EXIT_ADDRESS = 3
"""Its address can't be served."""
EXIT_EPOCH = 4
"""The first server began anew without this one."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m elastic_trainer.parameter_server",
        description="Serves embedding tables to asynchronous workers (ServedTables).",
        epilog="SIGTERM: a server that joined gives its rows to the others first, then ends.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve (%(default)s)")
    parser.add_argument("--port", type=int, default=29600, help="(%(default)s)")
    parser.add_argument("--join", default="", help="host:port of the first server; unset: this is")
    parser.add_argument("--address", default="", help="host:port by which others reach this one")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> int:
    address = options.address or f"{options.host}:{options.port}"
    service = Service(address, options.join, os.environ.pop(TOKEN_VARIABLE, ""))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, service.leave)
    loop.add_signal_handler(signal.SIGINT, service.ended.set)
    try:
        await service.run(options.host, options.port)
    except EpochError as error:
        print(f"parameter server: {error}", file=sys.stderr)
        return EXIT_EPOCH
    except OSError as error:
        print(
            f"parameter server: cannot serve {options.host}:{options.port}: {error}",
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
