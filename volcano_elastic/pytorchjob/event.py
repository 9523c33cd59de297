"""Kubernetes Events about a job: Kubeflow's reasons, one event for a burst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.action import EmitEvent
from volcano_elastic.pytorchjob.exclusion import Exclusions
from volcano_elastic.pytorchjob.observed import Replica

# An event's message has 1,024 characters.
_MOST_NAMES = 8
_MOST_REASON = 600


def at_begin(job: PyTorchJob) -> list[EmitEvent]:
    """Return warnings about what in its pod templates will not be as its author wrote it."""
    events = []
    if any(replica.pod_spec.get("restartPolicy") for replica in job.replicas.values()):
        events.append(
            EmitEvent(
                "SetPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica "
                "spec",
                warning=True,
            )
        )
    if not job.uses_volcano:
        events.append(
            EmitEvent(
                "SetPodTemplateSchedulerName",
                "Another scheduler is specified when gang-scheduling is enabled and it will not "
                "be overwritten",
                warning=True,
            )
        )
    return events


def done(verb: str, noun: str, names: Sequence[str]) -> list[EmitEvent]:
    """Return `SuccessfulCreatePod`, `SuccessfulDeleteService` and so on; nothing for no names."""
    if not names:
        return []
    word = noun if noun == "PodGroup" else noun.lower()
    return [EmitEvent(f"Successful{verb}{noun}", f"{verb}d {_listed(word, names)}")]


def exited(job: PyTorchJob, failed: Iterable[Replica]) -> list[EmitEvent]:
    """Return one event for each exit code, with what has failed where that is known."""
    by_end: dict[tuple[int, str], list[str]] = {}
    for replica in failed:
        if replica.exit_code is not None:
            what = f": {replica.failure.what}" if replica.failure and replica.failure.what else ""
            name = f"{job.namespace}.{replica.name}"
            by_end.setdefault((replica.exit_code, what), []).append(name)
    return [
        EmitEvent("ExitedWithCode", f"{_listed('Pod', names)} exited with code {code}{what}")
        for (code, what), names in sorted(by_end.items())
    ]


def node_lost(gone: Iterable[Replica], why: Mapping[str, str]) -> list[EmitEvent]:
    """Return one event for each reason; `why` is by uid."""
    by_reason: dict[str, list[str]] = {}
    for replica in gone:
        by_reason.setdefault(why.get(replica.uid, "its node is lost"), []).append(replica.name)
    return [
        EmitEvent("NodeLost", f"{_listed('Pod', names)} made anew elsewhere: {reason}", True)
        for reason, names in sorted(by_reason.items())
    ]


def out_of_memory(gone: Iterable[Replica]) -> list[EmitEvent]:
    """Return one event for each amount of memory that was too little."""
    by_amount: dict[str, list[str]] = {}
    for replica in gone:
        if (found := replica.shortage) is not None and found.more is not None:
            bound = f", the most that it can have: {found.bound}" if found.bound else ""
            text = f"ran out of {found.had} of memory, made anew with {found.more}{bound}"
            by_amount.setdefault(text, []).append(replica.name)
    return [
        EmitEvent("OutOfMemory", f"{_listed('Pod', names)} {text}", True)
        for text, names in sorted(by_amount.items())
    ]


def no_more_memory(view: Iterable[Replica]) -> list[EmitEvent]:
    """Return one event for each pod that ran out of memory and can't have more."""
    return [
        EmitEvent(
            "OutOfMemory",
            f"Pod: {replica.name} ran out of {found.had} of memory and can't have more: "
            f"{found.bound}; it is restarted as its restartPolicy says",
            True,
            deduplicated=True,
        )
        for replica in view
        if (found := replica.shortage) is not None and found.more is None
    ]


def exclusions(found: Exclusions) -> list[EmitEvent]:
    """Return an event for each node that the job keeps away from now on, or no longer must."""
    events = [
        EmitEvent(
            "NodeAvoided",
            f"Pods keep away from node {one.node} until {moment.timestamp(one.until)}: "
            f"{one.reason[:_MOST_REASON]}",
            True,
        )
        for one in found.new
    ]
    if found.lifted_now:
        names = [one.node for one in found.lifted_now]
        message = f"{_listed('Node', names)} may have pods again: there is no room without"
        events.append(EmitEvent("NodesAllowedAgain", message, True))
    return events


def _listed(noun: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{noun}: {names[0]}"
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{len(names)} {noun}s: {shown}" + (f" and {more} more" if more > 0 else "")
