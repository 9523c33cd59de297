"""Acts on nodes that fell silent, in place of kube-controller-manager.

A silent node's conditions become Unknown, it is tainted, its pods are no longer ready; pods that
don't tolerate the taint (any longer) are deleted, and stay Terminating, since only their kubelet
could say that they have ended. A node that is heard again loses the taints.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import aiohttp

from volcano_elastic.api.pod import condition
from volcano_elastic.kube.client import ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import NODES, PODS, Object, Resource

_log = logging.getLogger(__name__)

_TAINT = "node.kubernetes.io/unreachable"
_EFFECTS = ("NoSchedule", "NoExecute")
# What Kubernetes' admission adds to pods that say nothing about these taints.
_TOLERATED = timedelta(seconds=300)
_LOOK_SECONDS = 0.5
_DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}

# Decided


def lost(node: Object, now: datetime) -> list[Object]:
    """Return the conditions of a silent node that change."""
    unknown = {
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": timestamp(now),
    }
    conditions = node.get("status", {}).get("conditions") or ()
    return [unknown | {"type": c["type"]} for c in conditions if c["status"] != "Unknown"]


def taints(node: Object, now: datetime, *, silent: bool) -> list[Object] | None:
    """All of the node's taints as they should be; None if they are."""
    before = node["spec"].get("taints") or []
    others = [taint for taint in before if taint["key"] != _TAINT]
    if not silent:
        return others if len(others) < len(before) else None
    if len(before) - len(others) == len(_EFFECTS):
        return None
    stamp = timestamp(now)
    return [*others, *({"key": _TAINT, "effect": e, "timeAdded": stamp} for e in _EFFECTS)]


def silent_since(node: Object) -> datetime | None:
    """Return when the node was tainted so that pods have to go; None if it is not."""
    for taint in node["spec"].get("taints") or ():
        if taint["key"] == _TAINT and taint["effect"] == "NoExecute" and "timeAdded" in taint:
            return datetime.fromisoformat(taint["timeAdded"])
    return None


def eviction_due(pod: Object, since: datetime) -> datetime | None:
    """Return when a pod on a node tainted at `since` has to go; None: never."""
    matching = [
        toleration
        for toleration in pod["spec"].get("tolerations") or ()
        if toleration.get("key") in (None, "", _TAINT)
        and toleration.get("effect") in (None, "", "NoExecute")
        and (toleration.get("key") or toleration.get("operator") == "Exists")
    ]
    if not matching:
        return since + _TOLERATED
    seconds = [t["tolerationSeconds"] for t in matching if t.get("tolerationSeconds") is not None]
    return since + timedelta(seconds=max(min(seconds), 0)) if seconds else None


# Done


class NodeLifecycle:
    """Over `names`, whose seconds of silence `silence` tells; lost after `grace` of them."""

    def __init__(
        self,
        client: Client,
        nodes: Informer,
        pods: Informer,
        names: Iterable[str],
        silence: Callable[[str], float],
        grace: float,
    ) -> None:
        self._client, self._nodes, self._pods = client, nodes, pods
        self._names, self._silence, self._grace = list(names), silence, grace

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for node in filter(None, map(self._nodes.get, self._names)):
                name = node["metadata"]["name"]
                try:
                    await self._look(node, silent=self._silence(name) > self._grace)
                except (NotFound, Conflict):
                    continue
                except (ApiError, aiohttp.ClientError, OSError) as error:
                    _log.warning("node %s: %s", name, error or type(error).__name__)

    async def _look(self, node: Object, *, silent: bool) -> None:
        name, now = node["metadata"]["name"], datetime.now(UTC)
        if silent and (conditions := lost(node, now)):
            _log.info("node %s was not heard of for %.0f s: it is lost", name, self._grace)
            await self._tell(self._nodes, NODES, node, conditions)
        if (wanted := taints(node, now, silent=silent)) is not None:
            self._nodes.note_write(
                await self._client.patch(NODES, name, None, {"spec": {"taints": wanted}})
            )
        if not silent or (since := silent_since(self._nodes.get(name) or node)) is None:
            return
        for pod in self._pods:
            over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if pod["spec"].get("nodeName") == name and not over:
                await self._look_at_pod(pod, since, now)

    async def _look_at_pod(self, pod: Object, since: datetime, now: datetime) -> None:
        meta, stamp = pod["metadata"], {"lastTransitionTime": timestamp(now)}
        if (condition(pod, "Ready") or {}).get("status") == "True":
            unready = {"type": "Ready", "status": "False"}
            await self._tell(self._pods, PODS, pod, [unready | stamp])
        due = eviction_due(pod, since)
        if not meta.get("deletionTimestamp") and due is not None and now >= due:
            await self._tell(self._pods, PODS, pod, [_DISRUPTED | stamp])
            await self._client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])

    async def _tell(
        self, informer: Informer, resource: Resource, about: Object, conditions: list[Object]
    ) -> None:
        meta = about["metadata"]
        answer = await self._client.patch(
            resource,
            meta["name"],
            meta.get("namespace"),
            {"metadata": {"uid": meta["uid"]}, "status": {"conditions": conditions}},
            subresource="status",
            patch_type="strategic",
        )
        informer.note_write(answer)
