"""`python -m embedded_cluster.scheduler`: runs until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from embedded_cluster.scheduler.configuration import DEFAULT, ConfigurationError, load
from embedded_cluster.scheduler.observe import DEFAULT_SCHEDULER
from embedded_cluster.scheduler.scheduler import Scheduler
from volcano_elastic.kube import health
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.kubeconfig import KubeconfigError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a signal, 1 if the configuration or kubeconfig can't be used."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s scheduler %(levelname)s %(message)s",
    )
    try:
        configuration = load(options.scheduler_conf)
        client = Client.from_kubeconfig(options.kubeconfig, user_agent="vc-scheduler")
        host, _, port = (options.listen_address or "").rpartition(":")
        address = (host or "127.0.0.1", int(port)) if options.listen_address else None
    except (ConfigurationError, KubeconfigError, OSError, ValueError) as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return 1

    async def run() -> None:
        async with client, contextlib.AsyncExitStack() as stack:
            scheduler = Scheduler(
                client,
                configuration,
                scheduler_names=frozenset(options.scheduler_name or ("volcano", DEFAULT_SCHEDULER)),
                schedule_period=timedelta(seconds=options.schedule_period),
            )
            if address:
                serving = health.serve(*address, scheduler.registry, scheduler.waits_for)
                port = await stack.enter_async_context(serving)
                print(f"metrics on port {port}", file=sys.stderr, flush=True)
            running = asyncio.ensure_future(scheduler.run())
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, running.cancel)
            try:
                await running
            except asyncio.CancelledError:
                logging.getLogger(__name__).info("stopped")

    try:
        asyncio.run(run())
    except OSError as error:
        print(f"scheduler: --listen-address {options.listen_address}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="volcano-elastic local scheduler", description="Binds pods to nodes as Volcano does."
    )
    parser.add_argument(
        "--kubeconfig", help="else $KUBECONFIG, the service account, ~/.kube/config"
    )
    parser.add_argument(
        "--scheduler-conf", type=Path, default=DEFAULT, help="volcano-scheduler.conf (%(default)s)"
    )
    parser.add_argument(
        "--schedule-period",
        type=_seconds,
        default=0.2,
        metavar="SECONDS",
        help="how soon to look again after a write has failed (%(default)s)",
    )
    parser.add_argument(
        "--scheduler-name",
        action="append",
        metavar="NAME",
        help="place pods with this schedulerName; repeatable (volcano and default-scheduler)",
    )
    parser.add_argument(
        "--listen-address",
        metavar="[HOST]:PORT",
        help="serve /metrics and /readyz there; without HOST on 127.0.0.1, PORT 0 is any free one",
    )
    parser.add_argument("--verbose", action="store_true", help="log every decision")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError(f"expected seconds above 0 such as 0.2, found {text!r}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
