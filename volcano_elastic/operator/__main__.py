"""`python -m volcano_elastic.operator`: watches PyTorchJobs and carries them out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvloop

from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.api import node_signal
from volcano_elastic.api.queue_policy import Stragglers
from volcano_elastic.kube import health
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.kubeconfig import Access, KubeconfigError, load
from volcano_elastic.kube.lease import Election, Timing
from volcano_elastic.operator import log, webhook
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.controller import Controller
from volcano_elastic.operator.cordons import Cordons
from volcano_elastic.operator.executor import COMPONENT, Executor
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.handover import Handover
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.memory_kills import MemoryKills
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.planning import Planning
from volcano_elastic.operator.schema import ServedSchema
from volcano_elastic.operator.server_loads import ServerLoads
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.operator.state_metrics import StateMetrics
from volcano_elastic.operator.survivors import Survivors
from volcano_elastic.operator.tracing import Tracing
from volcano_elastic.pytorchjob import failure_rule
from volcano_elastic.pytorchjob.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from volcano_elastic.operator.trace_exporter import TraceExporter

_log = logging.getLogger(__name__)
_SETTLE_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGINT or SIGTERM; 2 if it could not begin."""
    options = parser().parse_args(argv)
    try:
        timing = Timing(
            options.leader_elect_lease_duration,
            options.leader_elect_renew_deadline,
            options.leader_elect_retry_period,
        )
        access = load(options.kubeconfig)
        options.webhook = webhook.options_of(options)
        traces = _exporter(options.trace_endpoint)
    except (KubeconfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    log.configure(options.log_format, verbose=options.verbose, secrets=access.secrets())
    try:
        uvloop.run(_until_signal(access, timing, options, traces))
    except webhook.AddressTaken as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        host, port = options.metrics_address or ("", 0)
        print(f"error: --metrics-address {host}:{port}: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        if traces is not None:
            traces.close()
    return 0


def _exporter(endpoint: str | None) -> TraceExporter | None:
    """Return what sends traces there; None: nowhere.

    Raises:
        ValueError: its libraries are not installed.
    """
    if endpoint is None:
        return None
    try:
        from volcano_elastic.operator import trace_exporter
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--trace-endpoint needs {error.name}, which is not installed: "
            "pip install 'volcano-elastic[tracing]'"
        ) from None
    return trace_exporter.TraceExporter(trace_exporter.otlp(endpoint))


async def _until_signal(
    access: Access, timing: Timing, options: argparse.Namespace, traces: TraceExporter | None
) -> None:
    loop, operator = asyncio.get_running_loop(), asyncio.current_task()
    assert operator is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        # A second signal must not cut short what the first one began.
        if not stopped:
            stopped = True
            operator.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await run(access, timing, options, traces)
    except asyncio.CancelledError:
        if not stopped:
            raise


async def run(
    access: Access,
    timing: Timing,
    options: argparse.Namespace,
    traces: TraceExporter | None = None,
) -> None:
    """Until cancelled. Kinds that are not served yet are waited for.

    Raises:
        OSError: the metrics' address can't be listened on.
        webhook.AddressTaken: that of the webhooks can't.
    """
    metrics = Metrics()
    async with (
        # Of its own: a renewal must not wait behind a thousand pods.
        Client(access, user_agent=COMPONENT, observe=metrics.answered) as lease_client,
        contextlib.AsyncExitStack() as stack,
    ):
        election = _election(lease_client, timing, options) if options.leader_elect else None
        client = await stack.enter_async_context(
            Client(
                access,
                user_agent=COMPONENT,
                observe=metrics.answered,
                write_limit=election.write_limit if election else None,
            )
        )
        adapters = [a for a in ADAPTERS if a.kind in options.other_jobs]
        cluster = Cluster(
            client, namespace=options.namespace, adapters=adapters, kueue=options.kueue
        )
        executor = Executor(cluster)
        settings = Settings(
            options.pytorch_init_container_image,
            options.pytorch_init_container_max_tries,
            options.trainer_image,
            options.trainer_folder,
            tuple(options.failure_rule),
        )
        own = () if options.no_default_node_signals else node_signal.DEFAULTS
        builder = SnapshotBuilder(
            cluster.serves, (*own, *options.node_signal), adapters, kueue=options.kueue
        )
        handover = Handover()
        lost_pods = LostPods(
            cluster, builder, lambda: datetime.now(UTC), timedelta(seconds=options.lost_after)
        )
        failed_nodes = FailedNodes(cluster, lambda: datetime.now(UTC))
        memory_kills = MemoryKills(cluster, lambda: datetime.now(UTC))
        survivors = Survivors(cluster, builder, lambda: datetime.now(UTC))
        server_loads = ServerLoads(
            cluster,
            builder.parsed,
            lambda job: builder.policy_of(job.queue).nodes.stragglers is Stragglers.REPLACE,
            executor.tokens.of,
            lambda: datetime.now(UTC),
        )
        controller = Controller(
            cluster,
            executor,
            metrics,
            handover,
            lost_pods,
            failed_nodes,
            survivors,
            policy_of=builder.policy_of,
            plan_of=builder.scale_plan,
            server_loads=server_loads,
            memory_kills=memory_kills,
            to_leave=builder.nodes_to_leave,
            settings=settings,
        )
        tracing = None
        if traces is not None:
            tracing = Tracing(cluster, builder, lambda: datetime.now(UTC), traces.export)
        planning = Planning(
            cluster,
            builder,
            handover,
            metrics,
            token_of=executor.tokens.of,
            lost_pods=lost_pods,
            failed_nodes=failed_nodes,
            survivors=survivors,
            plugin=options.queue_plugin,
            tracing=tracing,
            server_loads=server_loads,
            memory_kills=memory_kills,
        )
        cordons = Cordons(cluster, builder)
        schema = ServedSchema(client, metrics)
        informers = (*cluster, schema.informer)
        webhooks = webhook.WebhookServer(client, options.webhook) if options.webhook else None
        metrics.registry.register(StateMetrics(informers, cluster.jobs, controller.due))
        if options.metrics_address is not None:
            host, port = options.metrics_address

            def waits_for() -> str:
                waiting = [i for i in informers if not i.synced.is_set()]
                why = next((f" ({i.failure})" for i in waiting if i.failure), "")
                missing = [i.resource.plural for i in waiting]
                missing[-1:] = [name + why for name in missing[-1:]]
                if webhooks and not webhooks.listening.is_set():
                    missing.append("webhook certificates")
                return ", ".join(missing)

            port = await stack.enter_async_context(
                health.serve(host, port, metrics.registry, waits_for)
            )
            _log.info("health and metrics on http://%s:%d", host, port)

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(controller.run())
                group.create_task(planning.run())
                group.create_task(lost_pods.run())
                group.create_task(cordons.run())
                group.create_task(server_loads.run())

        async def lead() -> None:
            metrics.leader.set(1)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(schema.run(work, planning.say_stale))
                    if webhooks:
                        group.create_task(webhooks.lead())
            finally:
                metrics.leader.set(0)
                await executor.settle(_SETTLE_SECONDS)

        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.run())
            group.create_task(schema.informer.run())
            if webhooks:
                group.create_task(webhooks.serve())
            for informer in informers:
                await informer.synced.wait()
            # Most of what was listed stays: the garbage collector need not go through it again.
            gc.collect()
            gc.freeze()
            _log.info("ready: every kind has been listed")
            group.create_task(election.run(lead) if election else lead())


def _election(client: Client, timing: Timing, options: argparse.Namespace) -> Election:
    return Election(
        client,
        namespace=options.leader_elect_resource_namespace or client.access.namespace,
        name=options.leader_elect_resource_name,
        identity=options.leader_elect_identity or f"{socket.gethostname()}_{uuid.uuid4()}",
        timing=timing,
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="volcano-elastic operator", description=__doc__)
    parser.add_argument("--kubeconfig", metavar="FILE", help="else $KUBECONFIG, else in-cluster")
    parser.add_argument("--namespace", help="serve only the jobs of this namespace")
    parser.add_argument(
        "--metrics-address",
        metavar="HOST:PORT",
        type=_address,
        default=("127.0.0.1", 0),
        help="for /metrics, /healthz and /readyz, or none; default 127.0.0.1:0 (any free port, "
        "told in the log)",
    )
    parser.add_argument(
        "--queue-plugin",
        choices=("capacity", "proportion"),
        help="how Volcano divides among queues; default: as its ConfigMap "
        "volcano-system/volcano-scheduler-configmap says, else capacity",
    )
    parser.add_argument(
        "--lost-after",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="how long a pod's node must be in trouble, or the pod be silent, until the pod is "
        "lost and made anew elsewhere; at once where both are; default %(default)g",
    )
    parser.add_argument(
        "--node-signal",
        metavar="KIND:KEY[=VALUE]",
        type=_signal,
        action="append",
        default=[],
        help="a taint, condition or label of nodes that elastic jobs leave in order, such as "
        "taint:example.com/broken or condition:DiskFailing=True (* stands for any characters); "
        "may be given several times, beside those of well-known monitors",
    )
    parser.add_argument(
        "--no-default-node-signals",
        action="store_true",
        help="only those given by --node-signal count",
    )
    parser.add_argument(
        "--failure-rule",
        metavar="KIND:VALUE=CLASS[:WORDS]",
        type=_failure_rule,
        action="append",
        default=[],
        help="whose failure an end of a pod or worker is, before what is known already: KIND text "
        "(a regular expression of an error's text), exit-code, signal or reason (of a status); "
        "CLASS hardware (go to another node), software or interruption; such as "
        "'text:mlx5.*fatal=hardware:InfiniBand' or exit-code:77=hardware; may be given several "
        "times",
    )
    parser.add_argument(
        "--other-jobs",
        metavar="KIND",
        choices=sorted(adapter.kind for adapter in ADAPTERS),
        action="append",
        default=[],
        help="size jobs of this kind too, those with the annotation volcano-elastic.io/max-pods: "
        "%(choices)s; may be given several times; the operator needs the rights of "
        "manifests/other-jobs, and waits until the kind is served",
    )
    parser.add_argument(
        "--kueue",
        action="store_true",
        help="size Jobs that Kueue admits too, within its quotas; the operator needs the rights of "
        "manifests/kueue, and waits until Kueue's kinds are served",
    )
    parser.add_argument(
        "--pytorch-init-container-image",
        metavar="IMAGE",
        help="in which pods of a job with a leader wait for it; needs a POSIX shell, and "
        "getent or nslookup; default: the job's own image",
    )
    parser.add_argument(
        "--pytorch-init-container-max-tries",
        metavar="N",
        type=_tries,
        default=DEFAULTS.init_container_max_tries,
        help="2 s apart, before the init container fails; default %(default)s",
    )
    parser.add_argument(
        "--trainer-image",
        metavar="IMAGE",
        default=DEFAULTS.trainer_image,
        help="from which an init container copies the trainer into pods of jobs with the "
        'annotation volcano-elastic.io/inject-trainer: "true"; default %(default)s',
    )
    parser.add_argument(
        "--trainer-folder",
        metavar="PATH",
        default=DEFAULTS.trainer_folder,
        help="what is copied of that image; default %(default)s",
    )
    parser.add_argument(
        "--trace-endpoint",
        metavar="URL",
        type=_url,
        help="send a trace of each resize there by OTLP over HTTP, such as "
        "http://collector:4318/v1/traces; OTEL_EXPORTER_OTLP_HEADERS and its like count",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--verbose", action="store_true", help="log every conflict too")
    webhook.add_arguments(parser, _address)
    election = parser.add_argument_group(
        "leader election", "of several replicas only the one that holds the Lease writes"
    )
    election.add_argument(
        "--leader-elect",
        action="store_true",
        help="needed as soon as there may be two replicas",
    )
    election.add_argument("--leader-elect-resource-name", metavar="NAME", default=COMPONENT)
    election.add_argument(
        "--leader-elect-resource-namespace",
        metavar="NAMESPACE",
        help="default: the kubeconfig's, or the pod's own",
    )
    election.add_argument(
        "--leader-elect-identity",
        metavar="NAME",
        default=os.environ.get("POD_NAME"),
        help="default: $POD_NAME, which a restarted container shares with its dead predecessor "
        "and so needs not wait for the lease to expire; else a name never used before",
    )
    for name, seconds, text in (
        ("lease-duration", 15, "a standby takes over when the leader has been silent so long"),
        ("renew-deadline", 10, "a leader that could not renew for so long stops writing"),
        ("retry-period", 2, "between attempts to take or renew the lease"),
    ):
        election.add_argument(
            f"--leader-elect-{name}",
            metavar="SECONDS",
            type=float,
            default=seconds,
            help=f"{text}; default {seconds}",
        )
    return parser


def _signal(text: str) -> node_signal.NodeSignal:
    try:
        return node_signal.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _failure_rule(text: str) -> failure_rule.FailureRule:
    try:
        return failure_rule.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tries(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if known:
        return text
    raise argparse.ArgumentTypeError(
        f"expected a URL such as http://collector:4318/v1/traces, found {text!r}"
    )


def _address(text: str) -> tuple[str, int] | None:
    if text == "none":
        return None
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and int(port) < 65536:
        return host.strip("[]") or "0.0.0.0", int(port)
    raise argparse.ArgumentTypeError(
        f"expected none or HOST:PORT with a port from 0 to 65535, found {text!r}"
    )


if __name__ == "__main__":
    sys.exit(main())
