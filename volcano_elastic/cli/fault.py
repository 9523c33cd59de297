"""`volcano-elastic local fault`: something goes wrong on a virtual node, as asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volcano_elastic.cli.observation import Trouble, ask, kubeconfig_option

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client

_NODE = {
    "node-down": "down",
    "node-freeze": "frozen",
    "node-partition": "partitioned",
    "node-up": None,
}
_POD = {"kill": "kill", "oom": "oom", "evict": "evict", "freeze": "freeze", "thaw": None}


@click.command()
@click.argument("what", type=click.Choice([*_NODE, *_POD]))
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="Of the pod.")
@click.option("-c", "--container", help="For kill, oom and freeze; default: all of the pod's.")
@kubeconfig_option
def fault(
    what: str, name: str, namespace: str, container: str | None, kubeconfig: str | None
) -> None:
    """Makes something go wrong with a pod or node NAME of an embedded kubelet.

    \b
    node-down           its processes are gone, nothing is heard of it
    node-freeze         its processes stop where they are, nothing is heard of it
    node-partition      its kubelet alone is cut off from the API server; its pods go on
    node-up             it comes back
    kill, oom           SIGKILL to a pod's containers; with oom they are told as OOMKilled
    evict               the pod Fails, as under node pressure
    freeze, thaw        its processes stop where they are, and are silent; and go on

    Returns once the wish is noted, in an annotation that the kubelet obeys. Exits 2 where nobody
    would: NAME is unknown, or no virtual node's.

    \b
    Examples:
      volcano-elastic local fault node-down node-1
      volcano-elastic local fault oom digits-worker-0 -c pytorch
    """
    if what in _NODE:
        ask(kubeconfig, lambda client: _node(client, name, _NODE[what]))
        return
    value = _POD[what]
    if container and value:
        value = f"{value}/{container}"
    ask(kubeconfig, lambda client: _pod(client, name, namespace, container, value))


async def _node(client: Client, name: str, value: str | None) -> None:
    from embedded_cluster.kubelet.fault import ANNOTATION
    from embedded_cluster.kubelet.node import is_virtual
    from volcano_elastic.kube.client import NotFound
    from volcano_elastic.kube.resource import NODES

    try:
        node = await client.get(NODES, name)
    except NotFound:
        raise Trouble(f"there is no node {name}; `kubectl get nodes` lists them") from None
    if not is_virtual(node):
        raise Trouble(f"node {name} is a real one: no embedded kubelet would obey")
    await client.patch(NODES, name, None, {"metadata": {"annotations": {ANNOTATION: value}}})


async def _pod(
    client: Client, name: str, namespace: str, container: str | None, value: str | None
) -> None:
    from embedded_cluster.kubelet.fault import ANNOTATION
    from embedded_cluster.kubelet.node import is_virtual
    from volcano_elastic.kube.client import NotFound
    from volcano_elastic.kube.resource import NODES, PODS

    try:
        pod = await client.get(PODS, name, namespace)
    except NotFound:
        raise Trouble(f"there is no pod {name} in namespace {namespace}; see -n") from None
    if not (node := pod["spec"].get("nodeName")):
        raise Trouble(f"pod {namespace}/{name} is on no node yet")
    if not is_virtual(await client.get(NODES, node)):
        raise Trouble(f"node {node} is a real one: no embedded kubelet would obey")
    known = [one["name"] for one in pod["spec"]["containers"]]
    if container and container not in known:
        raise Trouble(f"pod {namespace}/{name} has no container {container}: {', '.join(known)}")
    body = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {ANNOTATION: value}}}
    await client.patch(PODS, name, namespace, body)
