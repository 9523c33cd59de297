"""`volcano-elastic brain`: learns what jobs need, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from datetime import timedelta

import click


@click.command()
@click.option("--kubeconfig", metavar="FILE", help="Else $KUBECONFIG, else in-cluster.")
@click.option(
    "--database",
    envvar="VOLCANO_ELASTIC_HISTORY",
    required=True,
    help="URL of the history [env: VOLCANO_ELASTIC_HISTORY]",
)
@click.option(
    "--mode",
    type=click.Choice(["Off", "Recommend"]),
    default="Recommend",
    show_default=True,
    help="Of jobs of which neither annotation volcano-elastic.io/brain nor QueuePolicy says one.",
)
@click.option("--sample-seconds", type=click.FloatRange(min=1), default=60.0, show_default=True)
@click.option(
    "--live-after-seconds",
    type=click.FloatRange(min=0),
    default=180.0,
    show_default=True,
    help="How long a job in mode Live is measured before its running pods are resized.",
)
@click.option(
    "--unknown-memory",
    type=click.FloatRange(min=1, max=4),
    default=2.0,
    show_default=True,
    help="How many times the memory that it asks for a job in mode Live begins with that too few "
    "runs are like, as far as nodes have it for its pods' CPUs, and where nothing else bounds "
    "memory; 1: as it asks.",
)
@click.option("--keep-days", type=click.FloatRange(min=0), default=365.0, show_default=True)
@click.option("--lease-namespace", help="Default: the kubeconfig's, or the pod's own.")
@click.option(
    "--prometheus",
    metavar="URL",
    help="To ask for loads of pods without our trainer, in place of the metrics API.",
)
@click.option(
    "--metrics-address",
    metavar="HOST:PORT",
    help="To serve Prometheus' metrics on, e.g. 127.0.0.1:8081; default: nowhere.",
)
@click.option("--liveness", metavar="URL", help="To listen on, e.g. http://0.0.0.0:8080/healthz")
def brain(
    kubeconfig: str | None,
    database: str,
    mode: str,
    sample_seconds: float,
    live_after_seconds: float,
    unknown_memory: float,
    keep_days: float,
    lease_namespace: str | None,
    prometheus: str | None,
    metrics_address: str | None,
    liveness: str | None,
) -> None:
    """Records what jobs use, and tells new ones what jobs like them needed.

    A program of its own: jobs run without it. Of several, the one with the Lease works.
    """
    if kubeconfig is not None:
        # kopf takes it from there.
        os.environ["KUBECONFIG"] = kubeconfig
    from volcano_elastic.api.brain_mode import BrainMode
    from volcano_elastic.brain.program import Options, run
    from volcano_elastic.brain.standby import UnusableAddress
    from volcano_elastic.database.database import DatabaseError
    from volcano_elastic.kube.kubeconfig import KubeconfigError, load

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    options = Options(
        database=database,
        mode=BrainMode(mode),
        sample=timedelta(seconds=sample_seconds),
        keep=timedelta(days=keep_days),
        live_after=timedelta(seconds=live_after_seconds),
        unknown_memory=unknown_memory,
        lease_namespace=lease_namespace,
        liveness=liveness,
        prometheus=prometheus,
        metrics_address=None if metrics_address is None else _address(metrics_address),
    )

    async def until_signal() -> None:
        working = asyncio.create_task(run(load(kubeconfig), options))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, working.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await working

    try:
        asyncio.run(until_signal())
    except UnusableAddress as error:
        click.echo(f"error: can't listen on {error}", err=True)
        sys.exit(2)
    except (DatabaseError, KubeconfigError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--metrics-address: expected HOST:PORT, found {text!r}")
    return host, int(port)
