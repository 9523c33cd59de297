"""Reads the snapshot that the tools show: from a live cluster, or a file that `snapshot` wrote."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from volcano_elastic.kube.client import ApiError, Client
    from volcano_elastic.kube.resource import Object, Resource
    from volcano_elastic.snapshot.codec import Observation

_T = TypeVar("_T")
_SECONDS = 60.0
"""For all lists together; a cluster of 100,000 pods takes a while."""

FOUND = 1
"""Exit code: the question was answered, and the answer is one to act on."""


class Trouble(click.ClickException):
    """The question could not be answered."""

    exit_code = 2


kubeconfig_option = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Of the cluster; default: $KUBECONFIG, else the pod's service account, "
    "else ~/.kube/config.",
)
snapshot_option = click.option(
    "--snapshot",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Look at this file of `volcano-elastic snapshot` (- is standard input) instead of the "
    "cluster.",
)
plugin_option = click.option(
    "--queue-plugin",
    "plugin",
    type=click.Choice(["capacity", "proportion"]),
    help="How Volcano divides among queues; default: as its ConfigMap says, else capacity.",
)
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1)}


def _span(context: click.Context, parameter: click.Parameter, value: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,4})([dh])", value)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"expected days or hours such as 7d or 36h, found {value!r}")
    return int(found[1]) * _UNITS[found[2]]


since_option = click.option(
    "--since", callback=_span, default="7d", show_default=True, help="How far back: 7d, 36h."
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


def observation(
    kubeconfig: str | None, plugin: str | None = None, file: Path | None = None
) -> Observation:
    """Return the file's snapshot if one is given, else the cluster's as it is now.

    Raises:
        Trouble: says what is wrong and what to do.
    """
    if file is not None:
        if kubeconfig or plugin:
            raise click.UsageError(
                "--snapshot holds it all; leave out --kubeconfig, --queue-plugin"
            )
        return saved(file)
    return ask(kubeconfig, partial(observe, plugin=plugin))


def saved(file: Path) -> Observation:
    """The file that `snapshot` wrote.

    Raises:
        Trouble: unreadable, or not a picture that a cluster could show; names the place.
    """
    from volcano_elastic.api.problem import listed
    from volcano_elastic.snapshot.check import problems
    from volcano_elastic.snapshot.codec import SnapshotError, decode

    name = "standard input" if str(file) == "-" else str(file)
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        observed = decode(raw)
    except OSError as error:
        raise Trouble(f"{name}: {error.strerror}; give --snapshot a readable file") from error
    except SnapshotError as error:
        raise Trouble(f"{name}: {error}") from error
    found = list(problems(observed))
    if found:
        raise Trouble(f"{name}: {listed(found, f'{chr(10)}  ')}")
    return observed


def ask(
    kubeconfig: str | None,
    question: Callable[[Client], Awaitable[_T]],
    seconds: float | None = _SECONDS,
) -> _T:
    """The answer of the cluster; `seconds` None: however long it takes.

    Raises:
        Trouble: no usable kubeconfig, no answer, or a refusal.
    """
    import aiohttp

    from volcano_elastic.kube import retry
    from volcano_elastic.kube.client import ApiError, Client
    from volcano_elastic.kube.kubeconfig import KubeconfigError

    async def answer(client: Client) -> _T:
        async with asyncio.timeout(seconds), client:
            return await retry.UNREACHABLE.call(
                lambda: question(client), what=server, level=logging.DEBUG
            )

    server = "the API server"
    try:
        client = Client.from_kubeconfig(kubeconfig, user_agent="volcano-elastic-cli")
        server = client.access.server.partition("/token/")[0]
        return asyncio.run(answer(client))
    except KubeconfigError as error:
        raise Trouble(str(error)) from error
    except ApiError as error:
        raise Trouble(_refusal(server, error)) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Trouble(
            f"no answer from {server}: {error or 'it took too long'}; is the cluster up, and is "
            "it the one that --kubeconfig, $KUBECONFIG or ~/.kube/config names?"
        ) from error


def _refusal(server: str, error: ApiError) -> str:
    if error.code == 401:
        return f"{server} does not know you (401); renew the credentials in your kubeconfig"
    if error.code == 403:
        return (
            f"{server}: {error.message}; ask for the verbs get and list on pytorchjobs, pods, "
            "podgroups, nodes, queues, queuepolicies, scaleplans, priorityclasses and "
            "resourcequotas in all namespaces"
        )
    return f"{server} answered {error}"


async def observe(client: Client, *, plugin: str | None = None) -> Observation:
    """The picture that the operator plans from, of what the cluster holds now."""
    from volcano_elastic.adapters.adapter import ADAPTERS
    from volcano_elastic.operator import kueue_quotas
    from volcano_elastic.operator.cluster import resource_of
    from volcano_elastic.operator.snapshot_builder import KINDS, SnapshotBuilder
    from volcano_elastic.snapshot.codec import Observation

    proportion = await _divides_by_proportion(client) if plugin is None else plugin == "proportion"
    # Whether the operator was told of them can't be seen: a job that asks is taken for sized.
    others = [*(resource_of(adapter) for adapter in ADAPTERS), *kueue_quotas.KINDS]
    listed = await asyncio.gather(
        *(objects(client, kind) for kind in KINDS),
        *(objects(client, kind, optional=True) for kind in others),
    )
    builder = SnapshotBuilder(adapters=ADAPTERS, kueue=True)
    builder.proportion = proportion
    for obj in (obj for items in listed for obj in items):
        builder.change(None, obj)
    for name, error in sorted(builder.invalid.items()):
        click.echo(f"Warning: QueuePolicy {name} is not applied: {error}", err=True)
    return Observation(datetime.now(UTC), builder.snapshot())


async def _divides_by_proportion(client: Client) -> bool:
    from volcano_elastic.kube.client import ApiError
    from volcano_elastic.kube.resource import CONFIGMAPS
    from volcano_elastic.operator.queue_plugin import CONFIGMAP, NAMESPACE, by_proportion

    try:
        return bool(by_proportion(await client.get(CONFIGMAPS, CONFIGMAP, NAMESPACE)))
    except ApiError as error:
        # Elsewhere, or not ours to read: as the operator, which then says so too.
        if error.code not in (403, 404):
            raise
        return False


async def objects(client: Client, kind: Resource, *, optional: bool = False) -> list[Object]:
    """All there are in the cluster; none of a kind that is not served.

    Args:
        optional: none either where they must not be listed.

    Raises:
        Trouble: not even PyTorchJobs are served.
    """
    from volcano_elastic.kube.client import ApiError, NotFound
    from volcano_elastic.kube.resource import PYTORCHJOBS

    try:
        items: list[Object] = (await client.list(kind))["items"]
    except NotFound as error:
        if kind == PYTORCHJOBS:
            raise Trouble(
                f"{client.access.server.partition('/token/')[0]} serves no PyTorchJobs; "
                "install the CRDs: volcano-elastic crds | kubectl apply --server-side -f -"
            ) from error
        # Without Volcano, or without policies, there are simply none.
        return []
    except ApiError as error:
        if optional and error.code == 403:
            return []
        raise
    return items


def complete_jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Keys of the cluster's PyTorchJobs, for shells."""
    from volcano_elastic.kube.resource import PYTORCHJOBS

    return _complete(context, PYTORCHJOBS, incomplete)


def complete_queues(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Names of the cluster's queues, for shells."""
    from volcano_elastic.kube.resource import QUEUES

    return _complete(context, QUEUES, incomplete)


def _complete(context: click.Context, kind: Resource, incomplete: str) -> list[str]:
    from volcano_elastic.kube.resource import key_of

    async def names(client: Client) -> list[str]:
        return [key_of(item) for item in await objects(client, kind)]

    try:
        # Who presses Tab waits for this, and wants no error text in the line.
        found = ask(context.params.get("kubeconfig"), names, seconds=1.0)
    except Trouble:
        return []
    plain = [name.partition("/")[2] or name for name in found]
    names_ = {
        name if plain.count(short) == 1 and "/" not in incomplete else key
        for key, short in zip(found, plain, strict=True)
        for name in (short,)
    }
    return sorted(name for name in names_ if name.startswith(incomplete))


def print_json(value: Any) -> None:
    """One document on standard output."""
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
