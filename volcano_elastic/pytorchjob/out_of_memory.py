"""Pods that ran out of memory, and how much more each is given.

OOMKilled (the kubelet's word of the container that trains), or a rank that the kernel killed at the
container's limit while the container goes on (its agent's word) ─► the pod is made anew, asking for
max(2 x request, 1.2 x peak, estimate), and so again until its training runs. It gets no more than
the roomiest node it could be on has, nor than the queue's policy and the job's annotation say; from
there on its restartPolicy decides, as it does for pods with restartPolicy Never or with no amount
of memory.

peak       its limit, else its request, or what it was last measured to use, if that is more
estimate   what pods of its role ask for by now, or Brain recommends for them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment, quantity, role_resources
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import CONTAINER, MOST_MEMORY_ANNOTATION, PyTorchJob
from volcano_elastic.api.role import labelled
from volcano_elastic.pytorchjob.at_start import RECOMMENDATION
from volcano_elastic.pytorchjob.label import REPLICA_TYPE

OOM_KILLED = "OOMKilled"
_OF_REQUEST, _OF_PEAK = 2, 1.2
_NOTHING = Bytes(0)
STEADY = timedelta(minutes=10)
"""Restarted in place, and running for that long since: it has enough, or will be killed again."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shortage:
    """The memory that a pod had when it ran out, and what it gets."""

    had: Bytes
    """Memory that it could use: its limit, else its request."""
    more: Bytes | None
    """Its next request; None: it can't have more."""
    bound: str = ""
    """Why not more than that; empty where nothing bounds it."""


def more_memory(request: Bytes, peak: Bytes, estimate: Bytes = _NOTHING) -> Bytes:
    """Return what a pod asks for after it ran out of memory, in whole MiB. (Requirement D5.)"""
    return max(request * _OF_REQUEST, peak * _OF_PEAK, estimate).whole_mebibytes()


def shortages(
    job: PyTorchJob,
    pods: Iterable[Object],
    nodes: Iterable[Object],
    now: datetime,
    killed: Set[str] = frozenset(),
    most: Bytes | None = None,
) -> dict[str, Shortage]:
    """Return by uid which of a job's pods have run out of memory, and what each is given.

    Args:
        killed: uids of those in which the kernel lately killed a rank for memory.
        most: what the queue's policy allows a pod; None: it says nothing.
    """
    found = {}
    for pod in pods:
        role = labelled((pod["metadata"].get("labels") or {}).get(REPLICA_TYPE, ""))
        replica = job.replicas.get(role.name) if role is not None else None
        if replica is None or replica.restart_policy == "Never" or not _killed(pod, now, killed):
            continue
        shortage = _shortage(job, pod, nodes, most)
        if shortage is not None:
            found[pod["metadata"]["uid"]] = shortage
    return found


def restarted_in_place(pod: Object) -> bool:
    """Return whether the kubelet started its training container again after such a kill."""
    return _reason(_status(pod).get("lastState")) == OOM_KILLED


def request(pod: Object) -> Bytes:
    """Return how much memory its training container asks for; 0: it doesn't say."""
    resources = _training(pod).get("resources") or {}
    return _memory(resources.get("requests")) or _memory(resources.get("limits"))


def remembered(job: PyTorchJob) -> dict[str, Bytes]:
    """Return by pod's name what those that once ran out of memory ask for."""
    return remembered_in(job.status)


def remembered_in(status: Mapping[str, Any]) -> dict[str, Bytes]:
    """Return `remembered` by a status that is yet to be written."""
    told = (status.get("elastic") or {}).get("memory") or {}
    return {name: Bytes.parse(amount) for name, amount in told.items()}


def resources(container: Object, memory: Bytes) -> dict[str, dict[str, str]]:
    """Return requests and limits of a container that asks for at least that much memory: its limit,
    if it has one, is no less; one that has more keeps it."""
    given = container.get("resources") or {}
    limit = _memory(given.get("limits"))
    if memory <= (_memory(given.get("requests")) or limit):
        return {}
    found = {"requests": {"memory": str(memory)}}
    if limit:
        found["limits"] = {"memory": str(max(limit, memory))}
    return found


def _killed(pod: Object, now: datetime, killed: Set[str]) -> bool:
    meta = pod["metadata"]
    if meta.get("deletionTimestamp") or api_pod.evicted_at(pod) is not None:
        return False
    if meta.get("uid") in killed:
        return True
    status = _status(pod)
    state = status.get("state") or {}
    if _reason(state) == OOM_KILLED:
        return True
    if _reason(status.get("lastState")) != OOM_KILLED or state.get("terminated"):
        return False
    began = moment.parse_optional((state.get("running") or {}).get("startedAt"))
    return began is None or now < began + STEADY


def _shortage(
    job: PyTorchJob, pod: Object, nodes: Iterable[Object], allowed: Bytes | None
) -> Shortage | None:
    asked = request(pod)
    if not asked:
        return None
    limit = _memory((_training(pod).get("resources") or {}).get("limits"))
    had = max(asked, limit)
    wanted = more_memory(asked, max(had, _measured(job, pod)), _estimate(job, pod))
    most, bound = _most(job, pod, asked, nodes, allowed)
    if most is None or wanted <= most:
        return Shortage(had, wanted)
    return Shortage(had, most if most > had else None, bound)


def _measured(job: PyTorchJob, pod: Object) -> Bytes:
    """Return what it was last measured to use; 0: nobody told."""
    told = ((job.status.get("elastic") or {}).get("loads") or {}).get("pods") or {}
    try:
        return _memory(told.get(pod["metadata"]["name"]))
    except quantity.QuantityError:
        return _NOTHING


def _estimate(job: PyTorchJob, pod: Object) -> Bytes:
    role = labelled(pod["metadata"]["labels"][REPLICA_TYPE])
    assert role is not None  # as `shortages` has found
    told = ((job.status.get("elastic") or {}).get(RECOMMENDATION) or {}).get("roles")
    recommended = role_resources.read(told).get(role.name)
    return max(
        role_resources.requested(job.replicas[role.name].pod_spec).memory,
        _NOTHING if recommended is None else recommended.memory,
    )


def _most(
    job: PyTorchJob,
    pod: Object,
    asked: Bytes,
    nodes: Iterable[Object],
    allowed: Bytes | None,
) -> tuple[Bytes | None, str]:
    """Return how much its training container may ask for, and by what; None: nobody knows."""
    found, bound = _roomiest(pod, asked, nodes)
    if (text := job.annotations.get(MOST_MEMORY_ANNOTATION)) is not None:
        most = Bytes.parse(text)
        if found is None or most < found:
            found, bound = most, f"annotation {MOST_MEMORY_ANNOTATION} says {text}"
    if allowed is not None and (found is None or allowed < found):
        found, bound = allowed, f"its queue's policy says {allowed} (brain.mostMemory)"
    return found, bound


def _roomiest(pod: Object, asked: Bytes, nodes: Iterable[Object]) -> tuple[Bytes | None, str]:
    """Return the most among nodes that have all else that the pod asks for."""
    whole = api_pod.requests(pod.get("spec") or {})
    beside = Bytes(-(-whole.pop("memory", 0) // 1000)) - asked
    found, bound = None, ""
    for node in nodes:
        has = quantity.parse((node.get("status") or {}).get("allocatable") or {})
        if "memory" not in has or any(has.get(name, 0) < count for name, count in whole.items()):
            continue
        room = Bytes(has["memory"] // 1000) - beside
        if found is None or room > found:
            name = node["metadata"]["name"]
            found, bound = room, f"no node that it fits has more than {name}"
    return found, bound


def _status(pod: Object) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((one for one in statuses if one.get("name") == CONTAINER), {})


def _training(pod: Object) -> Object:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return next((one for one in containers if one.get("name") == CONTAINER), {})


def _reason(state: Object | None) -> str:
    return str(((state or {}).get("terminated") or {}).get("reason") or "")


def _memory(amounts: Object | None) -> Bytes:
    return Bytes.parse((amounts or {}).get("memory", 0))
