"""Tells what a PyTorchJob waits for, from its conditions and its pods'; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from volcano_elastic.kube.resource import Object

SECONDS = 3.0
"""A shorter wait is not told of."""


def waits_for(job: Object, pods: Iterable[Object]) -> str:
    """Return what a job waits for; empty while its pods run.

    Args:
        pods: of the job.
    """
    status = job.get("status", {})
    true = {c["type"]: c for c in status.get("conditions") or () if c["status"] == "True"}
    if "Suspended" in true:
        return f"{true['Suspended']['message']} Set its runPolicy.suspend to false"
    there = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    waits = Counter(wait for pod in there if (wait := _pod_waits_for(pod)))
    if waits:
        wait, count = waits.most_common(1)[0]
        return f"{count} of {len(there)} pods: {wait}"
    if "Restarting" in true:
        return str(true["Restarting"]["message"])
    if there:
        return ""
    told = [(status.get("elastic") or {}).get("message"), *(c["message"] for c in true.values())]
    return f"it has no pods yet: {next(filter(None, told), 'the operator has not seen it')}"


def _pod_waits_for(pod: Object) -> str:
    status = pod.get("status", {})
    if status.get("phase", "Pending") != "Pending":
        return ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    for waiting in _waiting(status):
        message = waiting.get("message")
        return f"{waiting['reason']}{f': {message}' if message else ''}"
    bound = pod.get("spec", {}).get("nodeName")
    return f"they are to start on {bound}" if bound else "the scheduler has not answered yet"


def _waiting(status: Object) -> Iterator[Object]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason"):
                yield waiting
