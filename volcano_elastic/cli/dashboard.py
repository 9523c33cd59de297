"""`volcano-elastic dashboard`: the page, in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.cli.observation import Trouble, kubeconfig_option, plugin_option

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client

_FILE = "volcano-elastic/dashboard.db"


database_option = click.option(
    "--database",
    envvar="VOLCANO_ELASTIC_DASHBOARD",
    metavar="URL",
    help="Keeps what the page shows of the past; default: SQLite in "
    f"$XDG_STATE_HOME/{_FILE} [env: VOLCANO_ELASTIC_DASHBOARD]",
)


@click.command()
@kubeconfig_option
@plugin_option
@click.option(
    "--address",
    metavar="HOST:PORT",
    default="127.0.0.1:8321",
    show_default=True,
    help="Where to listen; port 0: any free one. Beyond loopback, put TLS before it.",
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    metavar="NAME[:PORT]",
    help="Another name under which browsers reach it, an Ingress's, say; may be given several "
    "times. Requests for other names are refused.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tokens that open the page, one a line, and behind each when it ends, if it does; read "
    "again when it changes. Default: one is made, and printed.",
)
@click.option(
    "--token-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="How long the token that is made opens the page; default: while the command runs.",
)
@click.option(
    "--other-jobs",
    multiple=True,
    type=click.Choice(["Job", "JobSet", "TrainJob"]),
    help="As the operator has it: a kind of jobs that it sizes, to be listed, too; may be given "
    "several times. The page waits until it may list them.",
)
@click.option("--kueue", is_flag=True, help="As the operator has it: with Kueue's queues.")
@database_option
@click.option(
    "--keep-days", type=click.FloatRange(min=0.01, max=366), default=7.0, show_default=True
)
def dashboard(
    kubeconfig: str | None,
    plugin: str | None,
    address: str,
    names: tuple[str, ...],
    token_file: Path | None,
    token_hours: float | None,
    other_jobs: tuple[str, ...],
    kueue: bool,
    database: str | None,
    keep_days: float,
) -> None:
    """Serves a page with queues, jobs and nodes over time, live, each change with its reason.

    It only reads the cluster, with the rights of the kubeconfig; who has the token sees what these
    let it see. Prints the page's address, and runs until SIGINT or SIGTERM.

    \b
    Examples:
      volcano-elastic dashboard
      volcano-elastic dashboard --address 127.0.0.1:0 --database sqlite:///week.db
      volcano-elastic dashboard --address 0.0.0.0:8321 --host-name gpus.example.com \\
        --token-file tokens
    """
    from volcano_elastic.dashboard.program import Options
    from volcano_elastic.dashboard.token_list import TokenList

    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    host, port = _address(address)
    lifetime = None if token_hours is None else timedelta(hours=token_hours)
    if token_file is not None and lifetime is not None:
        raise click.UsageError("--token-hours is for the token that is made; FILE has its own")
    try:
        tokens = TokenList(lambda: datetime.now(UTC), token_file, lifetime)
    except (OSError, ValueError) as error:
        raise Trouble(f"--token-file {token_file}: {error}") from error
    options = Options(
        database=database or default_database(),
        keep=timedelta(days=keep_days),
        host=host,
        port=port,
        names=names,
        plugin=plugin,
        other_jobs=other_jobs,
        kueue=kueue,
    )
    sys.exit(asyncio.run(_until_signal(kubeconfig, tokens, options)))


async def _until_signal(kubeconfig: str | None, tokens: Any, options: Any) -> int:
    from volcano_elastic.dashboard.program import dashboard as opened
    from volcano_elastic.database.database import DatabaseError
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.kubeconfig import KubeconfigError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        client = Client.from_kubeconfig(kubeconfig, user_agent="volcano-elastic-dashboard")
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            address = await stack.enter_async_context(opened(client, tokens, options, describe))
            click.echo(f"the page: {address}")
            sys.stdout.flush()
            await stop.wait()
    except (KubeconfigError, DatabaseError) as error:
        raise Trouble(str(error)) from error
    except OSError as error:
        raise Trouble(f"--address {options.host}:{options.port}: {error.strerror}") from error
    return 0


async def describe(client: Client, key: str) -> Mapping[str, Any] | None:
    """Return what `describe --json` says; None if there is no such job any more."""
    from volcano_elastic.cli.describe import described

    try:
        return await described(client, key)
    except Trouble:
        return None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(
            f"expected HOST:PORT with a port from 0 to 65535, found {text!r}",
            param_hint="--address",
        )
    return host.strip("[]"), int(port)


def default_database() -> str:
    folder = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(folder) / _FILE
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Trouble(f"{file.parent}: {error.strerror}; give --database URL") from error
    return f"sqlite:///{file}"
