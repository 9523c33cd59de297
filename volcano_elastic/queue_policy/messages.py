"""Words for the planner's codes, decisions and amounts, for events, status and `explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.fit import Dimensions
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.draft import JobDraft
from volcano_elastic.snapshot.snapshot import Resources


def amount(requests: Iterable[tuple[Resources, int]]) -> str:
    """`2 GPUs`, for pods and how many of them; CPUs or pods where none asks for GPUs."""
    listed = list(requests)
    for name, word in ((GPU, "GPU"), ("cpu", "CPU")):
        total = sum(resources.get(name, 0) * count for resources, count in listed) / 1000
        if total:
            return plural(total, word)
    return plural(sum(count for _, count in listed), "pod")


def plural(number: float, word: str) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`."""
    return f"{number:.10g} {word}" if number == 1 else f"{number:.10g} {word}s"


def names(keys: Iterable[str], full: bool = False, most: int = 3) -> str:
    """`b`, `b and c`, `b, c, d and 4 others`; with their namespaces if `full`."""
    listed = [key if full else key.rpartition("/")[2] for key in keys]
    shown, rest = listed[:most], len(listed) - most
    if rest > 0:
        return f"{', '.join(shown)} and {plural(rest, 'other')}"
    return " and ".join([*([", ".join(shown[:-1])] if shown[:-1] else []), *shown[-1:]])


def message(draft: JobDraft, reason: Reason, helped: list[Claim], dimensions: Dimensions) -> str:
    """`helped`: the claims that the job gave pods for."""
    job, name = draft.job, names([draft.job.key])
    old, new = job.desired, draft.size
    match reason:
        case Reason.SHRUNK_FOR_MINIMUM | Reason.SHRUNK_FOR_POD:
            given = f"{old - new} of its {plural(old - job.min, 'surplus worker')}"
            return f"{_need(helped, job.key, dimensions)}; {name} gives back {given}"
        case Reason.GAVE_UP_MINIMUM:
            return (
                f"{_need(helped, job.key, dimensions)}; gangs below their minimums block each "
                f"other, and all pods of {name}, the least entitled, leave"
            )
        case Reason.REBALANCED:
            needs = [claim.key for claim in helped]
            gains = [key for key in draft.served if key not in needs]
            gain = "gains" if len(gains or needs) == 1 else "gain"
            full = _several_spaces((*draft.served, job.key))
            who = f"{names(gains, full)} {gain}" if gains else gain
            why = f"{who} more from {'the rest' if helped else 'them'}"
            if helped:
                why = f"{_need(helped, job.key, dimensions)}, and {why}"
            return f"{why}; {name} gives {plural(old - new, 'worker')}"
        case Reason.SURPLUS_UNPLACED:
            return (
                f"{plural(old - new, 'surplus worker')} of {name} found no place to run; "
                f"{name} goes on with {new}"
            )
        case Reason.LEFT_NODE:
            return _left(draft)
        case Reason.SLOWED_DOWN:
            return f"{name} is slower with {plural(old, 'worker')} than with {new}"
        case Reason.DRAINED:
            return f"queue {job.queue} is being drained; {name} goes back to {new}"
        case Reason.LOWERED_TO_CAPABILITY:
            return (
                f"queue {draft.queue_beyond} held more than its capability; "
                f"{name} goes from {old} back to {new}"
            )
        case Reason.ROUNDED_TO_UNIT:
            return f"{old} is not a multiple of nodeUnit {job.node_unit}; {name} goes to {new}"
        case Reason.LOWERED_TO_MAX:
            return f"{name} has {plural(old, 'worker')} and may have {draft.state.cap} at most"
        case Reason.RAISED_TO_MIN:
            return f"{name} has {plural(old, 'worker')} and needs {job.min} at least"
        case _:
            gpus = amount([(job.pod_requests, new - old)])
            idle = "is idle and nobody waits for it"
            if not gpus.startswith("1 "):
                idle = "are idle and nobody waits for them"
            return (
                f"{gpus} {idle}; "
                f"{name} grows from {old} to {new} of at most {plural(draft.state.cap, 'worker')}"
            )


def asked(claims: Iterable[Claim], dimensions: Dimensions) -> str:
    """All that the claims need, e.g. `2 GPUs`."""
    listed: list[tuple[Resources, int]] = []
    for claim in claims:
        for shape, count in claim.groups:
            listed.append((dict(zip(dimensions.names, shape.vector, strict=True)), count))
    return amount(listed)


def _need(helped: list[Claim], giver: str, dimensions: Dimensions) -> str:
    keys = list(_askers(helped))
    who = names(keys, full=_several_spaces((*keys, giver)))
    verb = "needs" if len(helped) == 1 else "need"
    started = all(claim.runs for claim in helped)
    return f"{who} {verb} {asked(helped, dimensions)} to {'go on' if started else 'start'}"


def _left(draft: JobDraft) -> str:
    """Why pods leave their nodes, and what becomes of them."""
    parts = []
    if draft.moved:
        pods = names(pod.key for pod in sorted(draft.moved, key=lambda pod: pod.key))
        verb = "leaves and comes anew" if len(draft.moved) == 1 else "leave and come anew"
        parts.append(f"{pods} {verb} elsewhere")
    if draft.size < draft.job.desired:
        gone = plural(draft.job.desired - draft.size, "surplus worker")
        parts.append(f"{gone} without room elsewhere leaves, and it goes on with {draft.size}")
    return f"{'; '.join(draft.why_left)}: {', '.join(parts)}"


def _askers(helped: Iterable[Claim]) -> Iterator[str]:
    """Keys of the claims' jobs and gangs; pods of one controller are said together."""
    pods: Counter[str] = Counter()
    for claim in helped:
        if claim.asker:
            pods[claim.asker] += claim.pods
        else:
            yield claim.key
    for asker, count in pods.items():
        yield asker if asker.startswith("pod ") else f"{plural(count, 'pod')} of {asker}"


def _several_spaces(keys: Iterable[str]) -> bool:
    return len({key.rpartition("/")[0] for key in keys}) > 1
