"""`volcano-elastic check-nodes`: short pods on chosen nodes compute and communicate in pairs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.cli.observation import (
    FOUND,
    Trouble,
    ask,
    json_option,
    kubeconfig_option,
    print_json,
)

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.resource import Object

LABEL = "volcano-elastic.io/node-check"
"""On the pods of a check: its name."""
PORT = 23456
_GPU = "nvidia.com/gpu"
_POLL_SECONDS = 0.5
_AT_A_TIME = 32
"""Requests for pods that are under way together."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options that all pods of a check share."""

    name: str
    namespace: str
    image: str
    gpus: int
    timeout: float
    start_timeout: float
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that all pods get."""

    @property
    def coordinator(self) -> str:
        return f"{self.name}-coordinator"

    def member(self, index: int) -> str:
        return f"{self.name}-{index}"


@click.command()
@click.argument("nodes", nargs=-1, metavar="NODE...")
@click.option("-l", "--selector", metavar="LABELS", help="Instead of names: nodes that have these.")
@click.option("--image", required=True, help="With torch and the trainer, as jobs have.")
@click.option("--gpus", type=click.IntRange(0), default=0, help="Of each node; 0: on its CPUs.")
@click.option("-n", "--namespace", help="For the pods; default: the kubeconfig's.")
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="For the pods, such as NCCL_SOCKET_IFNAME; may be repeated.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For a further pod to start; then the check begins without those that have not.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For everything.",
)
@kubeconfig_option
@json_option
def check_nodes(
    nodes: tuple[str, ...],
    selector: str | None,
    image: str,
    gpus: int,
    namespace: str | None,
    variables: tuple[str, ...],
    start_timeout: float,
    timeout: float,
    kubeconfig: str | None,
    as_json: bool,
) -> None:
    """Checks nodes in pairs: matrix multiplications, and what they gather from one another.

    Makes a pod on each node, and one that leads them; all are deleted at the end. They go past the
    scheduler and its queues: GPUs that are in use are not free for a check, and its node is then
    unknown. Below half of the nodes broken each is found, and no sound one is called faulty.

    Exits 0 if all are proven sound and none is slow; 1 if not; 2 if there was no check.

    \b
    JSON: rounds, seconds; nodes [{node, verdict: proven, faulty or unknown, straggler, note}].

    \b
    Examples:
      volcano-elastic check-nodes gpu-1 gpu-2 gpu-3 --image train:1 --gpus 8
      volcano-elastic check-nodes -l pool=h100 --image train:1 --gpus 8 --json
    """
    if bool(nodes) == bool(selector):
        raise click.UsageError("give nodes by name, or --selector, and not both")
    wrong = [one for one in variables if not one.partition("=")[0] or "=" not in one]
    if wrong:
        raise click.UsageError(f"--env: expected NAME=VALUE, found {wrong[0]!r}")
    given = {name: value for name, _, value in (one.partition("=") for one in variables)}

    async def question(client: Client) -> dict[str, Any]:
        options = CheckOptions(
            f"check-nodes-{secrets.token_hex(4)}",
            namespace or client.access.namespace,
            image,
            gpus,
            timeout,
            start_timeout,
            given,
        )
        return await _check(client, options, nodes, selector)

    found = ask(kubeconfig, question, seconds=None)
    if as_json:
        print_json(found)
    else:
        click.echo(text(found))
    if any(one["verdict"] != "proven" or one["straggler"] for one in found["nodes"]):
        raise click.exceptions.Exit(FOUND)


def text(found: Mapping[str, Any]) -> str:
    """Return the result as lines, those to act on first."""
    order = ("faulty", "unknown", "proven")
    width = max(len(one["node"]) for one in found["nodes"])
    lines = []
    for one in sorted(found["nodes"], key=lambda one: order.index(one["verdict"])):
        slow = ", straggler" if one["straggler"] else ""
        note = f": {one['note']}" if one["note"] else ""
        lines.append(f"{one['node']:{width}}  {one['verdict']}{slow}{note}")
    return "\n".join([*lines, f"{found['rounds']} rounds, {found['seconds']:.1f} s"])


def result(
    nodes: Sequence[str], told: Mapping[str, Any] | None, pods: Mapping[str, Object]
) -> dict[str, Any]:
    """Return what was found of each node.

    Args:
        nodes: all that were to be checked.
        told: the check in the coordinator's /status; None: nobody came.
        pods: of the nodes, by node, for those that say nothing.
    """
    known = {one["node"]: one for one in (told or {}).get("nodes", ())}
    found = []
    for node in nodes:
        one = known.get(node)
        if one is None:
            note = f"its pod {_state(pods.get(node))}"
            found.append({"node": node, "verdict": "unknown", "straggler": False, "note": note})
        else:
            fields = ("node", "verdict", "straggler", "note")
            found.append({field: one[field] for field in fields})
    rounds, seconds = (told or {}).get("rounds", 0), (told or {}).get("seconds", 0.0)
    return {"rounds": rounds, "seconds": seconds, "nodes": found}


def _state(pod: Object | None) -> str:
    """Return how far a pod has come, with the reason where there is one."""
    status = (pod or {}).get("status") or {}
    waiting = [
        (container.get("state") or {}).get("waiting") or {}
        for container in status.get("containerStatuses") or ()
    ]
    reasons = [status, *waiting]
    words = [
        f"{one['reason']} {one.get('message', '')}".strip() for one in reasons if "reason" in one
    ]
    return f"is {status.get('phase', 'not there')}" + "".join(f" ({word})" for word in words[:1])


def pod(
    options: CheckOptions,
    name: str,
    node: str,
    command: Sequence[str],
    variables: Mapping[str, str],
) -> Object:
    """Return a pod of the check, bound to its node."""
    env: list[Object] = [{"name": key, "value": value} for key, value in variables.items()]
    for key, path in (
        ("VOLCANO_ELASTIC_POD_IP", "status.podIP"),
        ("VOLCANO_ELASTIC_NODE_NAME", "spec.nodeName"),
    ):
        env.append({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    reference = {"name": options.name, "key": "token"}
    env.append({"name": "VOLCANO_ELASTIC_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    container: Object = {
        "name": "node-check",
        "image": options.image,
        "command": ["python", "-P", "-m", *command],
        "env": env,
    }
    spec: Object = {
        "nodeName": node,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(options.timeout) + 60,  # should nobody delete it
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    if options.gpus and name != options.coordinator:
        container["resources"] = {"limits": {_GPU: str(options.gpus)}}
        # NCCL's processes of a node share more than the 64 MiB that a container has.
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": options.namespace,
            "labels": {LABEL: options.name},
        },
        "spec": spec,
    }


def coordinator_pod(options: CheckOptions, node: str, members: int) -> Object:
    return pod(
        options,
        options.coordinator,
        node,
        [
            "elastic_trainer.coordinator",
            "--host=$(VOLCANO_ELASTIC_POD_IP)",
            f"--port={PORT}",
            f"--job={options.namespace}/{options.name}",
            "--min=2",
            f"--max={members}",
        ],
        {"VOLCANO_ELASTIC_CHECK_QUIET_SECONDS": f"{options.start_timeout:g}", **options.variables},
    )


def member_pod(options: CheckOptions, index: int, node: str, address: str) -> Object:
    host = f"[{address}]" if ":" in address else address
    return pod(
        options,
        options.member(index),
        node,
        [
            "elastic_trainer.node_check",
            f"--endpoint={host}:{PORT}",
            f"--gpus={options.gpus}",
            f"--timeout={options.timeout:g}",
        ],
        {**options.variables, "VOLCANO_ELASTIC_POD_INDEX": str(index)},
    )


def _ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable")


def choose(nodes: Sequence[Object], names: Sequence[str], selected: bool) -> tuple[list[str], str]:
    """Return the nodes to check, and the one that the coordinator's pod goes to.

    Args:
        nodes: of the cluster; with `selected`, of the selector alone.
        names: asked for, where they are not selected.

    Raises:
        Trouble: a name is no node's, there are fewer than two, or none is Ready.
    """
    known = {node["metadata"]["name"]: node for node in nodes}
    chosen = sorted(known) if selected else list(dict.fromkeys(names))
    missing = [name for name in chosen if name not in known]
    if missing:
        raise Trouble(f"there is no node {', '.join(missing)}; there are: {', '.join(known)}")
    if len(chosen) < 2:
        raise Trouble(f"expected two nodes or more, which check one another, found {len(chosen)}")
    # Rather beside those that may be broken.
    ready = sorted((name for name in known if _ready(known[name])), key=lambda n: n in chosen)
    if not ready:
        raise Trouble("no node is Ready that the check's coordinator could run on")
    return chosen, ready[0]


async def _check(
    client: Client, options: CheckOptions, names: Sequence[str], selector: str | None
) -> dict[str, Any]:
    from volcano_elastic.kube.resource import NODES, PODS, SECRETS

    listed = (await client.list(NODES, label_selector=selector))["items"]
    nodes, host = choose(listed, names, selector is not None)
    deadline = time.monotonic() + options.timeout
    token = secrets.token_hex(32)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": options.name,
            "namespace": options.namespace,
            "labels": {LABEL: options.name},
        },
        "stringData": {"token": token},
    }
    try:
        await client.create(SECRETS, secret)
        await client.create(PODS, coordinator_pod(options, host, len(nodes)))
        address = await _address(client, options, host)
        limit = asyncio.Semaphore(_AT_A_TIME)

        async def create(index: int, node: str) -> None:
            async with limit:
                await client.create(PODS, member_pod(options, index, node, address))

        await asyncio.gather(*(create(index, node) for index, node in enumerate(nodes)))
        told = await _led(client, options, address, token, deadline)
        pods = await _pods(client, options)
        by_node = {
            one["spec"]["nodeName"]: one
            for one in pods
            if one["metadata"]["name"] != options.coordinator
        }
        return result(nodes, told, by_node)
    finally:
        await _clean_up(client, options)


async def _pods(client: Client, options: CheckOptions) -> list[Object]:
    from volcano_elastic.kube.resource import PODS

    selector = f"{LABEL}={options.name}"
    listed = await client.list(PODS, options.namespace, label_selector=selector)
    return list(listed["items"])


async def _address(client: Client, options: CheckOptions, host: str) -> str:
    """Return the coordinator's, once its pod runs."""
    from volcano_elastic.kube.resource import PODS

    deadline = time.monotonic() + options.start_timeout
    while True:
        found = await client.get(PODS, options.coordinator, options.namespace)
        status = found.get("status") or {}
        if status.get("phase") == "Running" and status.get("podIP"):
            return str(status["podIP"])
        if status.get("phase") in ("Failed", "Succeeded") or time.monotonic() >= deadline:
            raise Trouble(
                f"the check's coordinator does not run: on {host} its pod {_state(found)}; does "
                f"image {options.image} hold the trainer? Else give it more --start-timeout"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _led(
    client: Client, options: CheckOptions, address: str, token: str, deadline: float
) -> Mapping[str, Any] | None:
    """Return the check as its coordinator tells it at the end, or when time is over.

    Raises:
        Trouble: it never answered.
    """
    from volcano_elastic.cli.describe import ask_coordinator
    from volcano_elastic.operator.token import HEADER

    host = f"[{address}]" if ":" in address else address
    url, headers = f"http://{host}:{PORT + 1}", {HEADER: token}
    check: Mapping[str, Any] | None = None
    answered, silent = False, None
    while time.monotonic() < deadline:
        told, silent = await ask_coordinator(
            client, options.namespace, options.coordinator, url, headers
        )
        if told is not None:
            answered = True
            check = told["check"]
            if check and check["over"]:
                return check
        if _ended(await _pods(client, options), options):
            return check  # nobody is left who could come
        await asyncio.sleep(_POLL_SECONDS)
    if not answered:
        raise Trouble(f"the check's coordinator gave no answer: {silent}")
    return check


def _ended(pods: Sequence[Object], options: CheckOptions) -> bool:
    members = [one for one in pods if one["metadata"]["name"] != options.coordinator]
    ended = ("Failed", "Succeeded")
    return all((one.get("status") or {}).get("phase") in ended for one in members)


async def _clean_up(client: Client, options: CheckOptions) -> None:
    import aiohttp

    from volcano_elastic.kube.client import ApiError, NotFound
    from volcano_elastic.kube.resource import PODS, SECRETS, Resource

    async def delete(kind: Resource, name: str) -> None:
        try:
            await client.delete(kind, name, options.namespace, grace_period_seconds=1)
        except NotFound:
            pass
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            click.echo(
                f"Warning: {name} in {options.namespace} was not deleted: {error or 'no answer'}; "
                f"delete what is labelled {LABEL}={options.name}",
                err=True,
            )

    try:
        names = [one["metadata"]["name"] for one in await _pods(client, options)]
    except (ApiError, aiohttp.ClientError, TimeoutError):
        names = []
    await delete(SECRETS, options.name)
    await asyncio.gather(*(delete(PODS, name) for name in names))
