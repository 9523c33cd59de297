"""`volcano-elastic describe`: how a job's training goes, and what failed in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.api import moment
from volcano_elastic.cli import held_tables
from volcano_elastic.cli.description_text import text
from volcano_elastic.cli.observation import (
    Trouble,
    ask,
    complete_jobs,
    json_option,
    kubeconfig_option,
    print_json,
)

if TYPE_CHECKING:
    from volcano_elastic.api.pytorchjob import PyTorchJob
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.resource import Object

_SECONDS = 5.0
"""For the coordinator to answer."""
_ASKED = 5
"""Agents that are asked where the coordinator is."""

CoordinatorStatus = Mapping[str, Any]


@click.command()
@click.argument("job", metavar="[NAMESPACE/]JOB", shell_complete=complete_jobs)
@kubeconfig_option
@json_option
def describe(job: str, kubeconfig: str | None, as_json: bool) -> None:
    """A job's sizes, rounds and pauses; the errors of all ranks, first failure first; where to
    look.

    What its coordinator knows is asked of it through the API server, with the job's own token, so
    it takes the right to get that Secret and to reach pods by proxy. Exits 0, also if the
    coordinator doesn't answer; 2 if there is no such job.

    \b
    JSON: job, condition, elastic (the status' field); coordinator {round, phase, world, step,
    stepsPerSecond, committedStep, progress {samples, total, remainingSeconds} or null, metrics:
    what the script reports, by name; tables [{name, holders, rows, bytes, admitted, evicted,
    updatedPerSecond, skew, hot [{id, share}]}]: embedding tables on workers; verdict: why
    training has failed for good, or null} or null, coordinatorSilent: why, or null; rounds [{round,
    world, time, reason, pauseSeconds, firstStep, lastStep, lost: workers whose loss ended it}]:
    the newest, also after the job's end; excluded [{node, workers, reason}]:
    nodes that are in no further round; nodeCheck {rounds, seconds, over: why it is, or null, nodes
    [{node, worker, verdict: proven, faulty or unknown, straggler, note}]}, or null; failures
    [{round, worker, rank, localRank, pid, exitCode, signal, message, stack, time, log}], by time;
    hangs [{round, step, time, seconds, broken: whether the round was ended for it, behind: ranks,
    words, stacks [{ranks, stack}], flights [{rank, record}]}]: when no step came for long;
    batchSeconds {compute, input, network}: the ranks' medians, or null; stragglers [{rank, worker,
    node, since, batchSeconds, othersBatchSeconds, score, cause: compute or input}]: ranks that
    slow the job down; diverged [{rank, worker, node, since, until: null while it lasts, step,
    agreedStep, outvoted}]: ranks whose state was another than others'; pods [{name, phase,
    node, restarts, lastWords, ended: how its container ended last, or null, halted: why a container
    of a running pod doesn't run, or null, heard: whether the coordinator hears the agent in it, or
    null}]; look: commands.

    \b
    Examples:
      volcano-elastic describe train/bert
      volcano-elastic describe bert --json
    """
    found = ask(kubeconfig, lambda client: described(client, job))
    if as_json:
        print_json(found)
    else:
        click.echo(text(found))


def description(
    obj: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    told: CoordinatorStatus | None,
    silent: str | None,
) -> dict[str, Any]:
    """Return the description as JSON values.

    Args:
        told: the coordinator's /status.
        silent: why there is none.
    """
    meta, status = obj["metadata"], obj.get("status") or {}
    true = [c for c in status.get("conditions") or () if c.get("status") == "True"]
    key = f"{meta.get('namespace', 'default')}/{meta['name']}"
    told = told or {}
    failures = sorted(told.get("failures") or (), key=lambda one: float(one["time"]))
    return {
        "job": key,
        "condition": true[-1]["type"] if true else None,
        "elastic": status.get("elastic"),
        "coordinator": {
            "round": told["round"],
            "phase": told["phase"],
            "world": told["world"],
            "step": told["step"],
            "stepsPerSecond": told["steps_per_second"],
            "committedStep": told["committed_step"],
            "progress": _progress(told.get("progress")),
            "metrics": dict(told.get("metrics") or {}),
            "tables": held_tables.held(told.get("tables")),
            "verdict": told.get("verdict"),
        }
        if told
        else None,
        "coordinatorSilent": silent,
        "rounds": _rounds((status.get("elastic") or {}).get("rounds") or (), told.get("rounds")),
        "excluded": list(told.get("excluded") or ()),
        "nodeCheck": told.get("check"),
        "hangs": list(told.get("hangs") or ()),
        "batchSeconds": told.get("batch_seconds"),
        "stragglers": [_camel(one) for one in told.get("stragglers") or ()],
        "diverged": [_camel(one) for one in told.get("diverged") or ()],
        "failures": failures,
        "pods": [_pod(pod) | {"heard": _heard(pod, told)} for pod in pods],
        "look": _where_to_look(meta, pods, failures),
    }


def _rounds(known: Sequence[Mapping[str, Any]], told: object) -> list[dict[str, Any]]:
    """Return the newest rounds that the status keeps, or the coordinator tells of."""
    from volcano_elastic.operator import round_history, round_report

    return [
        {
            "round": one["round"],
            "world": one["nodes"],
            "time": moment.parse(one["time"]).timestamp(),
            "reason": one.get("reason", ""),
            "pauseSeconds": one.get("pauseSeconds"),
            "firstStep": one.get("firstStep"),
            "lastStep": one.get("lastStep"),
            "lost": one.get("lost", 0),
        }
        for one in round_history.merged(known, round_report.read(told))
    ]


def _camel(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return it with this command's spelling of keys."""
    return {re.sub("_([a-z])", lambda found: found[1].upper(), key): one[key] for key in one}


def _progress(told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if told is None:
        return None
    left = told["remaining_seconds"]
    return {"samples": told["samples"], "total": told["total"], "remainingSeconds": left}


def _pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    from volcano_elastic.api.pod import halted
    from volcano_elastic.api.pytorchjob import CONTAINER
    from volcano_elastic.operator.last_word import is_one as is_last_word

    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    words = [
        message
        for container in containers
        for state in ("state", "lastState")
        if (message := ((container.get(state) or {}).get("terminated") or {}).get("message"))
        and not is_last_word(message)
    ]
    ends = [
        _ending(ended)
        for container in containers
        for state in ("state", "lastState")
        if (ended := (container.get(state) or {}).get("terminated"))
    ]
    return {
        "name": pod["metadata"]["name"],
        "phase": status.get("phase", "Pending"),
        "node": (pod.get("spec") or {}).get("nodeName"),
        "restarts": sum(int(c.get("restartCount") or 0) for c in containers),
        "lastWords": words[0] if words else None,
        "ended": ends[0] if ends else None,
        "halted": (halted(pod, CONTAINER) if status.get("phase") == "Running" else "") or None,
    }


def _heard(pod: Mapping[str, Any], told: CoordinatorStatus) -> bool | None:
    """Tell whether a running worker's agent is connected; None where nobody says."""
    from volcano_elastic.api.role import elastic
    from volcano_elastic.pytorchjob.label import REPLICA_INDEX, REPLICA_TYPE

    labels, connected = pod["metadata"].get("labels") or {}, told.get("connected")
    index = labels.get(REPLICA_INDEX, "")
    is_worker = labels.get(REPLICA_TYPE) == elastic().label and index.isdigit()
    runs = (pod.get("status") or {}).get("phase") == "Running"
    if not (is_worker and runs) or not isinstance(connected, list):
        return None
    return int(index) in connected


def _ending(terminated: Mapping[str, Any]) -> str:
    """Return how a container ended, as its pod's status has it."""
    code, name = terminated.get("exitCode"), terminated.get("reason")
    cause = f" ({name})" if name and name not in ("Error", "Completed") else ""
    when = f" at {terminated['finishedAt']}" if terminated.get("finishedAt") else ""
    return f"exit code {code}{cause}{when}"


def _where_to_look(
    meta: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Commands that show more, of the pod that failed first if one did."""
    from volcano_elastic.api.role import elastic
    from volcano_elastic.pytorchjob.label import replica_name

    name, namespace = meta["name"], meta.get("namespace", "default")
    worker = failures[0]["worker"] if failures else 0
    pod = replica_name(name, elastic(), worker)
    commands = [
        f"kubectl -n {namespace} logs {pod}",
        f"kubectl -n {namespace} get events --field-selector involvedObject.name={pod}",
    ]
    if any(_pod(one)["restarts"] for one in pods if one["metadata"]["name"] == pod):
        commands.insert(1, f"kubectl -n {namespace} logs {pod} --previous")
    kept = dict.fromkeys(one["log"] for one in failures if one.get("log"))
    commands += [f"kubectl -n {namespace} exec {pod} -- ls {folder}" for folder in list(kept)[:3]]
    return commands


async def described(client: Client, name: str) -> dict[str, Any]:
    from volcano_elastic.kube.client import NotFound
    from volcano_elastic.kube.resource import PYTORCHJOBS

    namespace, _, short = name.rpartition("/")
    namespace = namespace or client.access.namespace
    try:
        obj = await client.get(PYTORCHJOBS, short, namespace)
    except NotFound as error:
        raise Trouble(
            f"there is no PyTorchJob {namespace}/{short}; kubectl get pytorchjobs -A shows them all"
        ) from error
    pods = await _pods(client, obj)
    told, silent = await status_of_coordinator(client, obj, pods)
    return description(obj, pods, told, silent)


async def _pods(client: Client, obj: Object) -> list[Object]:
    from volcano_elastic.kube.resource import PODS
    from volcano_elastic.operator.cluster import controlled_by
    from volcano_elastic.pytorchjob.label import JOB_NAME

    meta = obj["metadata"]
    selector = f"{JOB_NAME}={meta['name']}"
    listed = await client.list(PODS, meta.get("namespace", "default"), label_selector=selector)
    return sorted(
        (pod for pod in listed["items"] if controlled_by(pod, obj)),
        key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"]),
    )


async def status_of_coordinator(
    client: Client, obj: Object, pods: Sequence[Object] | None = None
) -> tuple[CoordinatorStatus | None, str | None]:
    """Return a job's coordinator's /status, or why there is none.

    Args:
        pods: of the job; None: they are looked up.
    """
    from volcano_elastic.api.pytorchjob import InvalidJob, parse

    if pods is None:
        pods = await _pods(client, obj)
    try:
        return await _coordinator(client, parse(obj), pods)
    except InvalidJob as error:
        return None, f"the job can't be carried out: {error}"


async def _coordinator(
    client: Client, job: PyTorchJob, pods: Sequence[Object]
) -> tuple[CoordinatorStatus | None, str | None]:
    """Return the coordinator's answer, or why there is none."""
    from volcano_elastic.kube.client import ApiError
    from volcano_elastic.operator.coordinator_client import endpoint
    from volcano_elastic.operator.token import HEADER, kept
    from volcano_elastic.pytorchjob.coordinator import dedicated, host_name, used

    if not used(job):
        return None, "its rendezvous is not volcano-elastic's"
    host = host_name(job)
    pod = next((one for one in pods if one["metadata"]["name"] == host), None)
    try:
        token = await kept(client, job.namespace, job.name, job.uid)
    except (ApiError, ValueError) as error:
        return None, f"the job's token can't be read: {error}"
    headers = {HEADER: token}
    url = endpoint(job, pod)
    told, why = None, f"pod {host}, where the coordinator is, does not run"
    if url is not None:
        told, silent = await ask_coordinator(client, job.namespace, host, url, headers)
        why = silent or why
    if told is None and not dedicated(job):
        moved = await _ask_where_it_moved(client, job, pods, headers)
        if moved is not None:
            return moved, None
    return told, None if told is not None else why


async def _ask_where_it_moved(
    client: Client, job: PyTorchJob, pods: Sequence[Object], headers: Mapping[str, str]
) -> CoordinatorStatus | None:
    """Return the answer of the coordinator that some pods' agents follow: another agent than worker
    0's may have taken it over."""
    import json
    from urllib.parse import urlsplit

    from volcano_elastic.operator.coordinator_client import Followed, followed_of, succession

    found: list[Followed] = []
    for pod in pods:
        url = succession(job, pod)
        if url is None or len(found) >= _ASKED:
            continue
        name = pod["metadata"]["name"]
        answer, _ = await _ask(client, job.namespace, name, url, "host", headers)
        followed = followed_of(json.dumps(answer).encode(), job) if answer is not None else None
        if followed is not None:
            found.append(followed)
    if not found:
        return None
    url = max(found).url
    address = (urlsplit(url).hostname or "").strip("[]")
    hosts = (one for one in pods if (one.get("status") or {}).get("podIP") == address)
    name = next((one["metadata"]["name"] for one in hosts), None)
    if name is None:
        return None
    told, _ = await ask_coordinator(client, job.namespace, name, url, headers)
    return told


async def ask_coordinator(
    client: Client, namespace: str, pod: str, url: str, headers: Mapping[str, str]
) -> tuple[CoordinatorStatus | None, str | None]:
    """Return its /status, or why there is none."""
    return await _ask(client, namespace, pod, url, "status", headers)


async def _ask(
    client: Client, namespace: str, pod: str, url: str, path: str, headers: Mapping[str, str]
) -> tuple[dict[str, Any] | None, str | None]:
    """Return what a pod answers, or why it doesn't. Through the API server, which reaches pods from
    anywhere; else straight at the pod."""
    import asyncio
    import json
    from urllib.parse import urlsplit

    import aiohttp

    from volcano_elastic.kube.client import ApiError

    port = urlsplit(url).port
    proxy = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path}"
    try:
        async with asyncio.timeout(_SECONDS):
            return await client.request("GET", proxy, headers=headers), None
    except (ApiError, aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = f"{pod} through the API server: {error or 'no answer'}"
    try:
        timeout = aiohttp.ClientTimeout(total=_SECONDS, connect=1.0)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/{path}", headers=headers, allow_redirects=False) as answer,
        ):
            told = json.loads(await answer.read())
            if answer.status == 200 and isinstance(told, dict):
                return told, None
            return None, f"{url} answered {answer.status}"
    except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
        return None, f"{why}; {url}: {error or 'no answer'}"
