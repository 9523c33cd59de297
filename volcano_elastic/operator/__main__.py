"""`python -m volcano_elastic.operator`: watches PyTorchJobs and carries them out."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

import uvloop

from volcano_elastic.kube.client import Client
from volcano_elastic.kube.kubeconfig import KubeconfigError
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.controller import Controller
from volcano_elastic.operator.executor import COMPONENT, Executor
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.planning import Planning

_log = logging.getLogger(__name__)
_SETTLE_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGINT or SIGTERM; 2 if it could not begin."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        client = Client.from_kubeconfig(arguments.kubeconfig, user_agent=COMPONENT)
        metrics = Metrics()
        if arguments.metrics_port != "none":
            _log.info("metrics on port %d", metrics.serve(int(arguments.metrics_port)))
    except KubeconfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: metrics port {arguments.metrics_port}: {error}", file=sys.stderr)
        return 2
    uvloop.run(run(client, metrics, arguments.namespace))
    return 0


async def run(client: Client, metrics: Metrics, namespace: str | None = None) -> None:
    """Until SIGINT or SIGTERM. Kinds that are not served yet are waited for."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with client:
        cluster = Cluster(client)
        executor = Executor(cluster)
        controller = Controller(cluster, executor, metrics, namespace=namespace)
        planning = Planning(cluster, controller, metrics)
        work = asyncio.create_task(_serve(cluster, controller, planning))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        controller.close()
        if work.done():
            work.result()
        work.cancel()
        stopped.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)
        await executor.settle(_SETTLE_SECONDS)


async def _serve(cluster: Cluster, controller: Controller, planning: Planning) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.run())
        await cluster.synced()
        group.create_task(controller.run())
        group.create_task(planning.run())
        print("operator ready", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="volcano-elastic operator", description=__doc__)
    parser.add_argument("--kubeconfig", metavar="FILE", help="else $KUBECONFIG, else in-cluster")
    parser.add_argument("--namespace", help="serve only the jobs of this namespace")
    parser.add_argument(
        "--metrics-port", default="none", type=_port, help="for Prometheus, on loopback"
    )
    parser.add_argument("--verbose", action="store_true", help="log every conflict too")
    return parser


def _port(text: str) -> str:
    if text == "none" or (text.isdigit() and int(text) < 65536):
        return text
    raise argparse.ArgumentTypeError(f"expected none or a port from 0 to 65535, found {text!r}")


if __name__ == "__main__":
    sys.exit(main())
