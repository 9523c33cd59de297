"""Words for the planner's decisions and claims, for events, status and `explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.fit import Dimensions
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.cluster_state.words import amount, names, plural
from volcano_elastic.queue_policy.draft import JobDraft


def message(
    draft: JobDraft, reason: Reason, helped: list[Claim], dimensions: Dimensions, *, waits: bool
) -> str:
    """`helped`: the claims that the job gave pods for; `waits`: some find no room as it is."""
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
            verb, them = ("is", "it") if gpus.startswith("1 ") else ("are", "them")
            most = plural(draft.state.cap, "worker")
            grows = f"{name} grows from {old} to {new} of at most {most}"
            nobody = "nobody who waits can start with" if waits else "nobody waits for"
            return f"{gpus} {verb} idle and {nobody} {them}; {grows}"


def asked(claims: Iterable[Claim], dimensions: Dimensions) -> str:
    """All that the claims need, e.g. `2 GPUs`."""
    groups = [group for claim in claims for group in claim.groups]
    return amount([(dict(zip(dimensions.names, s.vector, strict=True)), n) for s, n in groups])


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
    return len({key.partition("/")[0] for key in keys}) > 1
