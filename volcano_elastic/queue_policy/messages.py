"""Words for the planner's decisions and claims, for events, status and `explain`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from volcano_elastic.cluster_state.claim import Claim, asked, askers
from volcano_elastic.cluster_state.fit import Dimensions
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.cluster_state.words import amount, names, plural
from volcano_elastic.queue_policy.draft import JobDraft


class Needs:
    """Words what claims need, once for all jobs that give to the same ones."""

    def __init__(self, dimensions: Dimensions) -> None:
        self._dimensions = dimensions
        self._said: dict[tuple[object, ...], str] = {}

    def of(self, helped: Collection[Claim], giver: str) -> str:
        """Return it as people of the giver's namespace know them."""
        said = (giver.partition("/")[0], *helped)
        if said not in self._said:
            keys = list(askers(helped))
            who = names(keys, full=_several_spaces((*keys, giver)))
            verb = "needs" if len(helped) == 1 else "need"
            end = "go on" if all(claim.runs for claim in helped) else "start"
            self._said[said] = f"{who} {verb} {asked(helped, self._dimensions)} to {end}"
        return self._said[said]


def message(
    draft: JobDraft, reason: Reason, helped: Collection[Claim], needs: Needs, *, waits: bool
) -> str:
    """`helped`: the claims that the job gave pods for; `waits`: some find no room as it is."""
    job, name = draft.job, names([draft.job.key])
    old, new = job.desired, draft.size
    match reason:
        case Reason.SHRUNK_FOR_MINIMUM | Reason.SHRUNK_FOR_POD:
            given = f"{old - new} of its {plural(old - job.min, 'surplus worker')}"
            return f"{needs.of(helped, job.key)}; {name} gives back {given}"
        case Reason.GAVE_UP_MINIMUM:
            return (
                f"{needs.of(helped, job.key)}; gangs below their minimums block each "
                f"other, and all pods of {name}, the least entitled, leave"
            )
        case Reason.REBALANCED:
            claims = [claim.key for claim in helped]
            gains = [key for key in draft.served if key not in claims]
            gain = "gains" if len(gains or claims) == 1 else "gain"
            full = _several_spaces((*draft.served, job.key))
            who = f"{names(gains, full)} {gain}" if gains else gain
            why = f"{who} more from {'the rest' if helped else 'them'}"
            if helped:
                why = f"{needs.of(helped, job.key)}, and {why}"
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


def _several_spaces(keys: Iterable[str]) -> bool:
    return len({key.partition("/")[0] for key in keys}) > 1
