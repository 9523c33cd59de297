"""`volcano-elastic doctor`: observes a cluster, and has it judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml
from rich.markup import escape

from volcano_elastic import assets
from volcano_elastic.cli.observation import (
    FOUND,
    ask,
    json_option,
    kubeconfig_option,
    print_json,
)
from volcano_elastic.cli.plan import console
from volcano_elastic.doctor.diagnosis import Diagnosis, Status
from volcano_elastic.doctor.facts import Facts, Right, Trial, Untold

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.resource import Object, Resource

_T = TypeVar("_T")
_COLOURS = {
    Status.ERROR: "red",
    Status.WARNING: "yellow",
    Status.UNKNOWN: "cyan",
    Status.OK: "green",
}
_NAME, _NAMESPACE, _WEBHOOK = "volcano-elastic", "volcano-elastic-system", "volcano-elastic-webhook"
_REVIEWS_AT_A_TIME = 16


@click.command()
@click.option(
    "--operator-namespace",
    default=_NAMESPACE,
    show_default=True,
    metavar="NAMESPACE",
    help="Where the operator was installed.",
)
@click.option(
    "-n",
    "--namespace",
    help="Where the dry run of a job is made; default: the kubeconfig's.",
)
@click.option(
    "--fail-on",
    type=click.Choice([Status.ERROR, Status.WARNING, Status.UNKNOWN], case_sensitive=False),
    default=Status.ERROR,
    show_default=True,
    help="The least status that exits with 1.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what is well, too.")
@kubeconfig_option
@json_option
def doctor(
    operator_namespace: str,
    namespace: str | None,
    fail_on: str,
    verbose: bool,
    kubeconfig: str | None,
    as_json: bool,
) -> None:
    """Checks what elastic jobs need of a cluster: what was found, its consequence, the repair.

    CRDs; Volcano's version and scheduler configuration; the operator, its leader, rights and
    webhooks; clocks; other controllers of PyTorchJobs; folders and shared memory of the jobs there
    are. Changes nothing: one job is created as a dry run. Run it as the cluster's admin; what you
    may not see is told as Unknown.

    Exits 0; 1 if something was found; 2 if the cluster did not answer.

    \b
    JSON: diagnoses [{code, status: Error, Warning, Unknown or OK, found, consequence, repair}],
    gravest first; code is stable.

    \b
    Examples:
      volcano-elastic doctor
      volcano-elastic doctor --fail-on warning --json
    """
    from volcano_elastic.doctor.diagnose import diagnose

    async def question(client: Client) -> Facts:
        return await observe(client, operator_namespace, namespace or client.access.namespace)

    found = diagnose(ask(kubeconfig, question))
    if as_json:
        print_json({"diagnoses": [_json(one) for one in found]})
    else:
        _show([one for one in found if verbose or one.status is not Status.OK])
        well = sum(one.status is Status.OK for one in found)
        click.echo(f"{well} of {len(found)} checks are well")
    ranks = [status.lower() for status in Status]
    worst = min((ranks.index(one.status.lower()) for one in found), default=len(ranks))
    if worst <= ranks.index(fail_on.lower()):
        raise click.exceptions.Exit(FOUND)


def _json(one: Diagnosis) -> dict[str, str]:
    return {
        "code": one.code,
        "status": str(one.status),
        "found": one.found,
        "consequence": one.consequence,
        "repair": one.repair,
    }


def _show(found: Sequence[Diagnosis]) -> None:
    screen = console()
    for one in found:
        lines = [f"[{_COLOURS[one.status]} bold]{one.status}[/] {one.code}: {escape(one.found)}"]
        if one.repair:
            lines += [
                f"  so:     {escape(one.consequence)}",
                f"  repair: {escape(one.repair)}",
            ]
        screen.print(*lines, sep="\n", soft_wrap=True)


async def observe(client: Client, operator_namespace: str, namespace: str) -> Facts:
    """Return what the cluster tells; what it refuses is Untold, with its words.

    Args:
        namespace: where a job is created as a dry run.
    """
    from volcano_elastic.kube import resource as kinds
    from volcano_elastic.kube.client import NotFound
    from volcano_elastic.operator.queue_plugin import CONFIGMAP
    from volcano_elastic.operator.queue_plugin import NAMESPACE as VOLCANO_NAMESPACE
    from volcano_elastic.operator.snapshot_builder import KINDS

    async def items(kind: Resource, namespace: str | None = None) -> list[Object]:
        listed: list[Object] = (await client.list(kind, namespace))["items"]
        return listed

    async def if_served(kind: Resource) -> list[Object]:
        try:
            return await items(kind)
        except NotFound:
            return []

    async def one(kind: Resource, name: str, namespace: str | None = None) -> Object | None:
        try:
            return await client.get(kind, name, namespace)
        except NotFound:
            return None

    async def named(kind: Resource) -> dict[str, Object]:
        return {crd["metadata"]["name"]: crd for crd in await items(kind)}

    async def claims() -> dict[tuple[str, str], Object]:
        meta = [(one["metadata"], one) for one in await items(kinds.PERSISTENTVOLUMECLAIMS)]
        return {(each["namespace"], each["name"]): claim for each, claim in meta}

    async def configurations() -> list[Object]:
        webhooks = (kinds.MUTATINGWEBHOOKCONFIGURATIONS, kinds.VALIDATINGWEBHOOKCONFIGURATIONS)
        return [found for kind in webhooks if (found := await one(kind, _WEBHOOK)) is not None]

    tools = [Right("list", kind.group, kind.plural) for kind in KINDS]
    ours = [yaml.safe_load((assets.CRDS / name).read_text()) for name in assets.OURS]
    return Facts(
        version=version("volcano-elastic"),
        our_crds={crd["metadata"]["name"]: crd for crd in ours},
        crds=await _told("list CRDs", named(kinds.CRDS)),
        deployments=await _told("list deployments", items(kinds.DEPLOYMENTS)),
        scheduler_configmap=await _told(
            "get Volcano's ConfigMap", one(kinds.CONFIGMAPS, CONFIGMAP, VOLCANO_NAMESPACE)
        ),
        queues=await _told("list queues", if_served(kinds.QUEUES)),
        webhooks=await _told("get the webhook configurations", configurations()),
        trial=await _told("create a PyTorchJob (dry run)", _trial(client, namespace)),
        lease=await _told("get the operator's lease", one(kinds.LEASES, _NAME, operator_namespace)),
        node_leases=await _told("list the nodes' leases", items(kinds.LEASES, "kube-node-lease")),
        operator_lacks=await _told(
            "ask for the operator's rights", _operator_lacks(client, operator_namespace)
        ),
        tools_lack=await _told("ask for your rights", _lacking(client, tools, None)),
        jobs=await _told("list PyTorchJobs", if_served(kinds.PYTORCHJOBS)),
        claims=await _told("list PersistentVolumeClaims", claims()),
    )


async def _told(asked: str, answer: Awaitable[_T]) -> _T | Untold:
    """Return the answer, or why there is none; raises what is no answer of the API server's."""
    from volcano_elastic.kube.client import ApiError, NotFound

    try:
        return await answer
    except NotFound as error:
        if error.reason:  # a Status: something that is asked for by name isn't there
            return Untold(f"the API server refuses to {asked}: {error}")
        why = f"this API server does not serve what it takes to {asked}"
        return Untold(why, unserved=True)
    except ApiError as error:
        if error.code == 401:
            raise
        return Untold(f"the API server refuses to {asked}: {error}")


async def _trial(client: Client, namespace: str) -> Trial:
    from volcano_elastic.api.role import elastic
    from volcano_elastic.kube.resource import PYTORCHJOBS

    container = {"name": "pytorch", "image": "none"}
    template = {"spec": {"containers": [container]}}
    job = {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": PYTORCHJOBS.kind,
        "metadata": {"generateName": "volcano-elastic-doctor-", "namespace": namespace},
        "spec": {"pytorchReplicaSpecs": {elastic().name: {"replicas": 1, "template": template}}},
    }
    sent = datetime.now(UTC)
    answer = await client.create(PYTORCHJOBS, job, dry_run=True)
    return Trial(answer, sent, datetime.now(UTC))


async def _operator_lacks(client: Client, namespace: str) -> list[Right]:
    """Return what the operator's service account may not, of what its roles are to grant."""
    from volcano_elastic.doctor.installation import needed_rights

    text = assets.OPERATOR_RIGHTS.read_text().replace(_NAMESPACE, namespace)
    needed = needed_rights([one for one in yaml.safe_load_all(text) if one])
    return await _lacking(client, needed, f"system:serviceaccount:{namespace}:{_NAME}")


async def _lacking(client: Client, rights: Sequence[Right], user: str | None) -> list[Right]:
    """Return those that `user` has not; None: who asks."""
    slots = asyncio.Semaphore(_REVIEWS_AT_A_TIME)
    kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
    path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"

    async def allowed(right: Right) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        spec: dict[str, Any] = {"resourceAttributes": attributes}
        if user is not None:
            namespace = user.split(":")[2]
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
            spec |= {"user": user, "groups": [*groups, "system:authenticated"]}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        async with slots:
            answer = await client.request("POST", path, body=body)
        return bool((answer.get("status") or {}).get("allowed"))

    answers = await asyncio.gather(*(allowed(right) for right in rights))
    return [right for right, may in zip(rights, answers, strict=True) if not may]
