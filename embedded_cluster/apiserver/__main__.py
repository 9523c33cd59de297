"""`python -m embedded_cluster.apiserver`: the API server as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from aiohttp import web
from aiohttp.http import HttpProcessingError

from embedded_cluster.apiserver import strategy
from embedded_cluster.apiserver.builtin import (
    CRD,
    NAMESPACE,
    NAMESPACES,
    PRIORITY_CLASS,
    SYSTEM_PRIORITIES,
)
from embedded_cluster.apiserver.garbage_collector import GarbageCollector
from embedded_cluster.apiserver.journal import JournalError, SqliteJournal
from embedded_cluster.apiserver.registry import Registry
from embedded_cluster.apiserver.request import WriteOptions
from embedded_cluster.apiserver.rest import Rest
from embedded_cluster.apiserver.server import BODY_LIMIT, Server
from embedded_cluster.apiserver.store import Store

_DESCRIPTION = "Kubernetes' REST API on loopback, for one user: the bearer of the token."
_HOST = "127.0.0.1"
# Go's own limit of a request's head.
_LINE_LIMIT = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="volcano-elastic local apiserver", description=_DESCRIPTION
    )
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--token-file", type=Path, required=True, help="holds the bearer token")
    parser.add_argument("--data-dir", type=Path, help="keeps objects here; else in memory only")
    parser.add_argument(
        "--webhook-service-address",
        metavar="HOST:PORT",
        help="where admission webhooks are that their configuration names by Service",
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        token = arguments.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        return _refuse(f"--token-file {arguments.token_file}: {error}")
    if not token:
        return _refuse(f"--token-file {arguments.token_file} is empty; expected a bearer token")
    try:
        return uvloop.run(
            serve(arguments.port, token, arguments.data_dir, arguments.webhook_service_address)
        )
    except JournalError as error:
        return _refuse(str(error))


async def serve(
    port: int, token: str, data_dir: Path | None, webhook_service_address: str | None
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code.

    Raises:
        JournalError: the data directory cannot be used.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    journal = SqliteJournal(data_dir) if data_dir else None
    now = _now()
    # In memory, revisions start at the time: one of an earlier life is then too old, not mistaken.
    revision = journal.revision if journal else int(now.timestamp() * 1000)
    store = Store(revision=revision, journal=journal)
    registry = Registry()
    if journal:
        for resource, obj in journal.objects():
            store.load(resource, obj)
    for kind in registry:
        strategy.reread(kind, store)
    for crd in store.all_of(CRD.key):
        for kind in registry.serve(crd.obj):
            strategy.reread(kind, store)
    rest = Rest(store, _now, random.SystemRandom())
    GarbageCollector(store, registry, rest, loop.call_soon)
    server = Server(
        store,
        registry,
        rest,
        token=token,
        clock=_now,
        webhook_service_address=webhook_service_address,
    )
    for name in NAMESPACES:
        if store.get(NAMESPACE.key, "", name) is None:
            rest.create(NAMESPACE, "", {"metadata": {"name": name}}, WriteOptions())
    for name, value in SYSTEM_PRIORITIES.items():
        if store.get(PRIORITY_CLASS.key, "", name) is None:
            obj = {"metadata": {"name": name}, "value": value}
            rest.create(PRIORITY_CLASS, "", obj, WriteOptions())
    # Code and modules stay for good: the garbage collector need not go through them again.
    gc.freeze()
    logging.getLogger("aiohttp.server").addFilter(_tells_no_token)
    http = web.Server(
        server.handle,
        max_line_size=_LINE_LIMIT,
        max_field_size=_LINE_LIMIT,
        request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT
        ),
        access_log=None,
        # A watch whose client is gone ends at once, not at its next event.
        handler_cancellation=True,
    )
    runner = web.ServerRunner(http, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, _HOST, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            return _refuse(
                f"cannot listen on {_HOST}:{port}: {error.strerror or error}; give another --port, "
                "or 0 to have one picked"
            )
        print(f"listening on http://{_HOST}:{runner.addresses[0][1]}", flush=True)
        await stopped.wait()
        await server.stop()
    finally:
        await runner.cleanup()
        if journal:
            journal.close()
    return 0


def _tells_no_token(record: logging.LogRecord) -> bool:
    """Return whether the record is logged. Requests that are no HTTP are not: they may hold a
    token."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _now() -> datetime:
    return datetime.now(UTC)


def _refuse(why: str) -> int:
    print(f"volcano-elastic API server: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
