"""One sentence for people about each decision, with names and numbers."""

from __future__ import annotations

from collections.abc import Iterable

from volcano_elastic.queue_policy.claims import Claim
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.explain import amount, names, plural
from volcano_elastic.queue_policy.fit import Dimensions
from volcano_elastic.queue_policy.snapshot import Resources
from volcano_elastic.queue_policy.standing import Standing


def message(standing: Standing, reason: Reason, helped: list[Claim], dimensions: Dimensions) -> str:
    """`helped`: the claims that the job gave pods for."""
    job, name = standing.job, names([standing.job.key])
    old, new = job.desired, standing.size
    match reason:
        case Reason.SHRUNK_FOR_MINIMUM:
            given = f"{old - new} of its {plural(old - job.min, 'surplus worker')}"
            return f"{_need(helped, job.key, dimensions)}; {name} gives back {given}"
        case Reason.GAVE_UP_MINIMUM:
            return (
                f"{_need(helped, job.key, dimensions)}; gangs below their minimums block each "
                f"other, and all pods of {name}, the least entitled, leave"
            )
        case Reason.REBALANCED:
            needs = [claim.key for claim in helped]
            gains = [key for key in standing.served if key not in needs]
            gain = "gains" if len(gains or needs) == 1 else "gain"
            who = f"{names(gains, full=not _same_space(standing))} {gain}" if gains else gain
            why = f"{who} more from {'the rest' if helped else 'them'}"
            if helped:
                why = f"{_need(helped, job.key, dimensions)}, and {why}"
            return f"{why}; {name} gives {plural(old - new, 'worker')}"
        case Reason.SURPLUS_UNPLACED:
            return (
                f"{plural(old - new, 'surplus worker')} of {name} found no place to run; "
                f"{name} goes on with {new}"
            )
        case Reason.SLOWED_DOWN:
            return f"{name} is slower with {plural(old, 'worker')} than with {new}"
        case Reason.DRAINED:
            return f"queue {job.queue} is being drained; {name} goes back to {new}"
        case Reason.ROUNDED_TO_UNIT:
            return f"{old} is not a multiple of nodeUnit {job.node_unit}; {name} goes to {new}"
        case Reason.LOWERED_TO_MAX:
            return f"{name} has {plural(old, 'worker')} and may have {standing.cap} at most"
        case Reason.RAISED_TO_MIN:
            return f"{name} has {plural(old, 'worker')} and needs {job.min} at least"
        case _:
            gpus = amount([(job.pod_requests, new - old)])
            idle = "is idle and nobody waits for it"
            if not gpus.startswith("1 "):
                idle = "are idle and nobody waits for them"
            return (
                f"{gpus} {idle}; "
                f"{name} grows from {old} to {new} of at most {plural(standing.cap, 'worker')}"
            )


def asked(claims: Iterable[Claim], dimensions: Dimensions) -> str:
    """All that the claims need, e.g. `2 GPUs`."""
    listed: list[tuple[Resources, int]] = []
    for claim in claims:
        for shape, count in claim.groups:
            listed.append((dict(zip(dimensions.names, shape.vector, strict=True)), count))
    return amount(listed)


def _need(helped: list[Claim], giver: str, dimensions: Dimensions) -> str:
    keys = [claim.key for claim in helped]
    spaces = {key.rpartition("/")[0] for key in (*keys, giver)}
    who = names(keys, full=len(spaces) > 1)
    verb = "needs" if len(helped) == 1 else "need"
    started = all(claim.runs for claim in helped)
    return f"{who} {verb} {asked(helped, dimensions)} to {'go on' if started else 'start'}"


def _same_space(standing: Standing) -> bool:
    spaces = {key.rpartition("/")[0] for key in (*standing.served, standing.job.key)}
    return len(spaces) == 1
