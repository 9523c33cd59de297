"""`volcano-elastic goodput`: what a job's, or a queue's, processes' time was used for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.cli.observation import (
    Trouble,
    ask,
    complete_jobs,
    json_option,
    kubeconfig_option,
    print_json,
)

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.resource import Object

_MILLISECONDS_PER_HOUR = 3_600_000


@click.command()
@click.argument("name", metavar="[NAMESPACE/]JOB|QUEUE", shell_complete=complete_jobs)
@kubeconfig_option
@json_option
def goodput(name: str, kubeconfig: str | None, as_json: bool) -> None:
    """Print what the time of a job's processes, or of all jobs of a queue, was used for:
    training that counts, and what else.

    A job's figures are its coordinator's where that answers, up to now; else those of its status,
    as are a queue's. Each process counts, from its pod's place on a node; every millisecond is in
    one use, so the sum is the time that was held. Exits 0; 2 if there is neither.

    \b
    JSON: job or queue, jobs: how many count, live: whether the coordinator answered,
    milliseconds {use: times processes}, held: their sum, goodput: training's share of it, or null,
    granted, wanted: milliseconds times workers that were ready, less those whose coordinator heard
    them no more, and that max allows.
    Names of uses are ml-goodput-measurement's where they mean the same.

    \b
    Examples:
      volcano-elastic goodput train/bert
      volcano-elastic goodput research --json
    """
    found = ask(kubeconfig, lambda client: _goodput(client, name))
    if as_json:
        print_json(found)
    else:
        click.echo(text(found))


def description(
    kind: str, name: str, known: Sequence[object], live: bool = False
) -> dict[str, Any]:
    """Return the answer as JSON values.

    Args:
        kind: `job` or `queue`.
        known: the jobs' `status.elastic.goodput`, or what it would be by now.
        live: it is.
    """
    from volcano_elastic.pytorchjob.goodput import places, share, summed

    counted = [one for one in known if one]
    milliseconds = summed(counted)
    granted, wanted = places(counted)
    return {
        kind: name,
        "jobs": len(counted),
        "live": live,
        "milliseconds": milliseconds,
        "held": sum(milliseconds.values()),
        "goodput": share(milliseconds),
        "granted": granted,
        "wanted": wanted,
    }


def text(found: Mapping[str, Any]) -> str:
    """Return the answer as a table."""
    from volcano_elastic.pytorchjob.goodput import USES

    held = found["held"]
    name = f"Queue {found['queue']}, {found['jobs']} jobs" if "queue" in found else found["job"]
    if not held:
        return f"{name}: no time has been counted yet"
    lines = [
        f"{name}: goodput {100 * found['goodput']:.1f} % of "
        f"{held / _MILLISECONDS_PER_HOUR:.2f} process hours"
    ]
    for use, milliseconds in sorted(found["milliseconds"].items(), key=lambda one: -one[1]):
        hours = milliseconds / _MILLISECONDS_PER_HOUR
        lines.append(f"{100 * milliseconds / held:>6.1f} % {hours:>10.2f} h  {USES[use]} ({use})")
    if found["wanted"]:
        part = 100 * found["granted"] / found["wanted"]
        lines.append(f"Scheduling: {part:.1f} % of the workers that max allows were there")
    return "\n".join(lines)


async def _goodput(client: Client, name: str) -> dict[str, Any]:
    from volcano_elastic.kube.client import NotFound
    from volcano_elastic.kube.resource import PYTORCHJOBS

    namespace, _, short = name.rpartition("/")
    try:
        obj = await client.get(PYTORCHJOBS, short, namespace or client.access.namespace)
    except NotFound:
        obj = None
    return await (_of_queue(client, name) if obj is None else _of_job(client, obj))


async def _of_job(client: Client, obj: Object) -> dict[str, Any]:
    from volcano_elastic.cli.describe import status_of_coordinator
    from volcano_elastic.pytorchjob.goodput import kept, read

    meta = obj["metadata"]
    told, _ = await status_of_coordinator(client, obj)
    live = read((told or {}).get("goodput"))
    known = ((obj.get("status") or {}).get("elastic") or {}).get("goodput")
    key = f"{meta.get('namespace', 'default')}/{meta['name']}"
    return description("job", key, [kept(known, live)], live is not None)


async def _of_queue(client: Client, name: str) -> dict[str, Any]:
    from volcano_elastic.kube.resource import PYTORCHJOBS
    from volcano_elastic.operator.state_metrics import queue_of

    listed = await client.list(PYTORCHJOBS)
    jobs = [job for job in listed["items"] if queue_of(job) == name]
    if not jobs:
        raise Trouble(
            f"there is no PyTorchJob {name}, and none in a queue of that name; kubectl get "
            "pytorchjobs -A shows them all"
        )
    known = [((job.get("status") or {}).get("elastic") or {}).get("goodput") for job in jobs]
    return description("queue", name, known)
