"""`volcano-elastic local`: a cluster on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.cli.command_group import CommandGroup
from volcano_elastic.cli.fault import fault

if TYPE_CHECKING:
    from embedded_cluster.manifest import Manifest

_COUNT = click.IntRange(min=1)
_DELEGATE = {"ignore_unknown_options": True, "help_option_names": []}


@click.group(cls=CommandGroup)
def local() -> None:
    """A cluster on this machine: API server, scheduler, kubelet and operator on loopback.

    \b
    Examples:
      volcano-elastic local up --nodes 2 --gpus-per-node 2
      volcano-elastic local run examples/digits.yaml
    """


@local.command()
@click.option("--nodes", type=_COUNT, default=2, show_default=True, help="Virtual nodes.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="GPUs that each node says it has.",
)
@click.option(
    "--kubelet",
    type=click.Choice(["process", "fake", "none"]),
    default="process",
    show_default=True,
    help="Pods run as local processes, only pretend to run, or stay as bound.",
)
@click.option("--no-operator", is_flag=True, help="Without the operator.")
@click.option("--no-scheduler", is_flag=True, help="Without the scheduler.")
@click.option(
    "--scheduler-conf",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="volcano-scheduler.conf.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The API server's, on 127.0.0.1; default: any free one.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write access (mode 0600); removed at the end. Default: a temporary folder.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keeps objects and logs. Default: a temporary folder, removed at the end.",
)
def up(
    nodes: int,
    gpus_per_node: int,
    kubelet: str,
    no_operator: bool,
    no_scheduler: bool,
    scheduler_conf: Path | None,
    port: int,
    kubeconfig: Path | None,
    data_dir: Path | None,
) -> None:
    """Runs the cluster in the foreground until SIGINT or SIGTERM.

    Prints one line beginning with `ready` once everything answers.

    \b
    Example:
      volcano-elastic local up --kubeconfig /tmp/local.kubeconfig
      kubectl --kubeconfig /tmp/local.kubeconfig get nodes
    """
    from embedded_cluster.cluster import LocalCluster

    async def serve() -> int:
        async with LocalCluster(
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            kubelet=kubelet,
            operator=not no_operator,
            scheduler=not no_scheduler,
            scheduler_conf=scheduler_conf,
            port=port,
            kubeconfig=kubeconfig,
            data_dir=data_dir,
        ) as cluster:
            click.echo(f"ready: export KUBECONFIG={cluster.kubeconfig}")
            sys.stdout.flush()
            click.echo(await cluster.failed, err=True)
            return 1

    sys.exit(foreground(serve(), stopped=0))


@local.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="JOB.yaml...", type=click.Path(path_type=Path)
)
@click.option("--nodes", type=_COUNT, default=2, show_default=True, help="Virtual nodes.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="GPUs that each node says it has.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up after this long; default: never.",
)
def run(files: tuple[Path, ...], nodes: int, gpus_per_node: int, timeout: float | None) -> None:
    """Runs the jobs in these files on a cluster of their own, and follows their logs.

    Says what a job waits for that does not run. Exits 0 if every PyTorchJob succeeded, 1 otherwise.

    \b
    Example:
      volcano-elastic local run --gpus-per-node 4 job.yaml
    """
    from embedded_cluster.cluster import LocalCluster
    from embedded_cluster.job_run import JobRun
    from embedded_cluster.manifest import ManifestError, read
    from volcano_elastic.kube.resource import PYTORCHJOBS

    def warn(line: str) -> None:
        click.echo(line, err=True)

    async def follow() -> int:
        try:
            manifests = read(list(files))
            if not any(manifest.obj["kind"] == PYTORCHJOBS.kind for manifest in manifests):
                raise ManifestError(
                    f"expected a PyTorchJob in {', '.join(map(str, files))}, found none"
                )
            if (queueless := _without_queue(manifests)) is not None:
                raise ManifestError(queueless)
            async with (
                LocalCluster(nodes=nodes, gpus_per_node=gpus_per_node) as cluster,
                cluster.client() as client,
                asyncio.timeout(timeout),
            ):
                ends = await JobRun(cluster, client, say=click.echo, warn=warn).finish(manifests)
        except ManifestError as error:
            warn(f"Error: {error}")
            return 1
        except TimeoutError:
            warn(f"Error: not every job had ended after {timeout:g} s; all has been stopped")
            return 1
        for end in ends:
            warn(f"{end.job}: {end.result}{': ' + end.message if end.message else ''}")
        return 0 if all(end.result == "Succeeded" for end in ends) else 1

    sys.exit(foreground(follow(), stopped=130))


def _without_queue(manifests: Sequence[Manifest]) -> str | None:
    """Return what to do about a job whose queue nobody makes: it would wait for ever, unsaid."""
    from volcano_elastic.api.pytorchjob_validation import queue, run_policy

    made = {"default", *(one.name for one in manifests if one.obj["kind"] == "Queue")}
    for one in manifests:
        policy = run_policy(one.obj).get("schedulingPolicy")
        if one.obj["kind"] != "PyTorchJob" or not isinstance(policy, Mapping):
            continue  # a job that names no queue is in `default`; a wrong one is refused later
        if (name := queue(one.obj)) not in made:
            return (
                f"{one} is in queue {name}, which neither this cluster nor these files have: add "
                f"the Queue to a file, or have runPolicy.schedulingPolicy.queue be one of "
                f"{', '.join(sorted(made))}"
            )
    return None


def foreground(work: Coroutine[Any, Any, int], *, stopped: int) -> int:
    """Runs to its end, or to the end of its clean-up after a signal; the exit code.

    Args:
        stopped: the exit code after a signal.
    """
    from embedded_cluster.component import ClusterError

    async def until_signal() -> int:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # Once: an impatient second Ctrl-C would interrupt the clean-up.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, lambda: None)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return stopped

    try:
        return asyncio.run(until_signal())
    except ClusterError as error:
        click.echo(f"Error: {error}", err=True)
        return 1


def _delegate(name: str, module: str, summary: str) -> click.Command:
    """A command whose options are its module's own."""

    @click.command(name, context_settings=_DELEGATE, help=summary, add_help_option=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        sys.exit(importlib.import_module(module).main(list(arguments)))

    return command


local.add_command(fault)
local.add_command(
    _delegate("scheduler", "embedded_cluster.scheduler.__main__", "The scheduler on its own.")
)
local.add_command(
    _delegate("kubelet", "embedded_cluster.kubelet.__main__", "Virtual nodes on their own.")
)
local.add_command(
    _delegate("apiserver", "embedded_cluster.apiserver.__main__", "The API server on its own.")
)
operator = _delegate(
    "operator", "volcano_elastic.operator.__main__", "The operator, on any cluster."
)
