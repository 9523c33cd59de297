"""Reads pods, which stay plain dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from volcano_elastic.api import moment, quantity

PodSpec = Mapping[str, Any]


# What the pod as a whole can ask for; of other resources only containers can.
_OF_PODS = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"


def requests(spec: PodSpec) -> dict[str, int]:
    """Return what the scheduler will count, in thousandths: requests of the pod as a whole; of the
    rest containers and sidecars, or the largest init step if that is more; plus overhead. A limit
    without a request counts as one. (PodRequests in k8s.io/component-helpers/resource, after the
    API server's defaults.)

    Raises:
        quantity.QuantityError: a request that is no quantity.
    """
    running = quantity.total(_container(c) for c in spec.get("containers") or ())
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = quantity.total([sidecars, _container(container)])
            step = sidecars
        else:
            step = quantity.total([sidecars, _container(container)])
        peak = {n: max(peak.get(n, 0), step.get(n, 0)) for n in peak.keys() | step.keys()}
    running = quantity.total([running, sidecars])
    whole = {n: max(running.get(n, 0), peak.get(n, 0)) for n in running.keys() | peak.keys()}
    whole |= _of_pod(spec.get("resources") or {}, whole)
    whole = quantity.total([whole, quantity.parse(spec.get("overhead") or {})])
    return {name: whole[name] for name in sorted(whole)}


def requests_of_each(specs: Iterable[PodSpec]) -> list[dict[str, int]]:
    """Return `requests` of each spec; those that say the same as the one before cost next to
    nothing, as the thousand pods of a role do."""
    found: list[dict[str, int]] = []
    last: list[Any] | None = None
    for spec in specs:
        fields = _request_fields(spec)
        found.append(found[-1] if fields == last else requests(spec))
        last = fields
    return found


def _request_fields(spec: PodSpec) -> list[Any]:
    """Return all parts of the spec that `requests` reads."""
    containers = [container.get("resources") for container in spec.get("containers") or ()]
    steps = [(c.get("restartPolicy"), c.get("resources")) for c in spec.get("initContainers") or ()]
    return [containers, steps, spec.get("resources"), spec.get("overhead")]


def _of_pod(resources: Mapping[str, Any], containers: Mapping[str, int]) -> dict[str, int]:
    """A limit counts where neither the pod nor its containers request anything; of huge pages,
    which nobody may use beyond a request, in place of the containers' too."""
    limits = quantity.parse(resources.get("limits") or {})
    counting = {n: v for n, v in limits.items() if n not in containers or n.startswith(_HUGE_PAGES)}
    asked = counting | quantity.parse(resources.get("requests") or {})
    return {n: v for n, v in asked.items() if n in _OF_PODS or n.startswith(_HUGE_PAGES)}


def _container(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return quantity.parse((resources.get("limits") or {}) | (resources.get("requests") or {}))


def condition(pod: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == type_), None)


def evicted_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when a scheduler, the kubelet or a drain told the pod to go; None if none did."""
    found = condition(pod, "DisruptionTarget")
    if found is None or found.get("status") != "True":
        return None
    return moment.parse_optional(found.get("lastTransitionTime")) or moment.parse(
        pod["metadata"]["creationTimestamp"]
    )


def finished_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the pod's last container ended; None while one may still run."""
    ends = [
        moment.parse_optional(((c.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for c in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max((end for end in ends if end is not None), default=None)


def exit_code(pod: Mapping[str, Any], container: str) -> int | None:
    """Return the named container's exit code; None while it runs, or where nobody knows."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == container:
            code = ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
            return None if code is None else int(code)
    return None


def restarts(pod: Mapping[str, Any]) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(status.get("restartCount", 0)) for status in statuses)


def ready(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod runs and is ready; pods without kubelet may say nothing of that."""
    found = condition(pod, "Ready")
    is_ready = found is None or found.get("status") == "True"
    return is_ready and (pod.get("status") or {}).get("phase") == "Running"


def halted(pod: Mapping[str, Any], container: str) -> str:
    """Return why a container of a running pod doesn't run, in a word; empty where all do.

    Args:
        container: the one whose end with 0 counts, too: others may just have done their work.
    """
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        state = status.get("state") or {}
        for name in ("waiting", "terminated"):
            found = state.get(name)
            if found is None:
                continue
            if found.get("exitCode") != 0 or status.get("name") == container:
                return str(found.get("reason") or name.capitalize())
    return ""
