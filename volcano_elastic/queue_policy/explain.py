"""Words for the planner's codes and amounts, for events, status and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volcano_elastic.queue_policy.decision import Decision, Plan, Reason
from volcano_elastic.queue_policy.snapshot import Resources

GPU = "nvidia.com/gpu"

WORDS: Mapping[Reason, str] = {
    Reason.GREW_INTO_IDLE: "it grew into idle room that nobody waits for",
    Reason.SHRUNK_FOR_MINIMUM: "it gave surplus back so that a minimum can start",
    Reason.SURPLUS_UNPLACED: "some of its surplus found no place to run",
    Reason.ROUNDED_TO_UNIT: "its size was not a multiple of nodeUnit",
    Reason.LOWERED_TO_MAX: "its size was above its maximum",
    Reason.RAISED_TO_MIN: "its size was below its minimum",
    Reason.SLOWED_DOWN: "it was slower than at a smaller size",
    Reason.REBALANCED: "it gave workers to a job that gains more from them",
    Reason.DRAINED: "its queue is being drained",
    Reason.GAVE_UP_MINIMUM: "gangs below their minimums blocked each other",
    Reason.AT_MAX: "it is at its maximum",
    Reason.AT_MAX_PER_JOB: "it has all the surplus that its queue's policy allows (maxPerJob)",
    Reason.AT_REPLICAS: "it has the replicas that its autoscaler asks for",
    Reason.MAX_STEP_TOO_SMALL: "its nodeUnit is more than its queue's policy adds at once, maxStep",
    Reason.NO_ROOM: "there is no idle room that its workers could use",
    Reason.COOLING_DOWN: "it changed its size a short while ago and is cooling down",
    Reason.WAITING_FOR_PODS: "the pods of its present size have not all found a node yet",
    Reason.ROOM_OWED_TO_MINIMUM: "the room is kept for a job that waits to start",
    Reason.QUEUE_CLOSED: "its queue is closed or does not exist",
    Reason.FINISHING: "some of its workers have finished already",
    Reason.INEFFICIENT: "a larger size would be slower, or too inefficient",
    Reason.NOT_WORTH_A_PAUSE: "what it would gain does not pay for the pause of a resize",
    Reason.HELD: "the mode of its queue's policy keeps sizes as they are",
    Reason.UNMODELLED: "its pods need what can't be foreseen (resourceClaims, networkTopology)",
    Reason.QUEUE_FULL: "its queue may not hold more",
    Reason.HEADROOM_KEPT: "its queue's policy keeps the rest as headroom",
    Reason.GUARANTEED_TO_OTHERS: "the rest is guaranteed to other queues",
    Reason.AT_MIN: "it is at its minimum, which is never taken",
    Reason.NOBODY_WAITS: "nobody waits for its surplus",
    Reason.NOT_NEEDED: "who waits has room without it, or could not start even with it",
}


def explain(job: str, plan: Plan) -> str:
    """One or two sentences about what the plan does with a job, and why."""
    for decision in plan.decisions:
        if decision.job == job:
            shown = " (shown only: mode DryRun)" if decision.dry_run else ""
            return f"{decision.old} -> {decision.new} workers: {decision.message}{shown}."
    if job in plan.blocked:
        return f"{job} cannot start: {plan.blocked[job]}."
    stay = plan.stays.get(job)
    if stay is None:
        return f"{job} keeps its size: it is not elastic, or this plan has not seen it."
    return (
        f"{job} does not grow: {WORDS[stay.why_not_more]}. "
        f"It does not shrink: {WORDS[stay.why_not_less]}."
    )


def lines(plan: Plan) -> list[str]:
    """The whole plan for people, a line a job."""
    found = [_line(decision) for decision in plan.decisions]
    found += [f"{job}: cannot start: {why}" for job, why in sorted(plan.blocked.items())]
    return found + [
        f"{job}: no more, {WORDS[stay.why_not_more]}; no less, {WORDS[stay.why_not_less]}"
        for job, stay in sorted(plan.stays.items())
    ]


def _line(decision: Decision) -> str:
    leave = f" (leaving: {', '.join(decision.remove)})" if decision.remove else ""
    shown = " (shown only: mode DryRun)" if decision.dry_run else ""
    return f"{decision.job}: {decision.old} -> {decision.new}, {decision.message}{leave}{shown}"


def amount(requests: Iterable[tuple[Resources, int]]) -> str:
    """`2 GPUs`, for pods and how many of them; CPUs or pods where none asks for GPUs."""
    listed = list(requests)
    for name, word in ((GPU, "GPU"), ("cpu", "CPU")):
        total = sum(resources.get(name, 0) * count for resources, count in listed) / 1000
        if total:
            return plural(total, word)
    return plural(sum(count for _, count in listed), "pod")


def plural(number: float, word: str) -> str:
    return f"{number:.10g} {word}" if number == 1 else f"{number:.10g} {word}s"


def names(keys: Iterable[str], full: bool = False, most: int = 3) -> str:
    """`b`, `b and c`, `b, c, d and 4 others`; with their namespaces if `full`."""
    listed = [key if full else key.rpartition("/")[2] for key in keys]
    shown, rest = listed[:most], len(listed) - most
    if rest > 0:
        return f"{', '.join(shown)} and {plural(rest, 'other')}"
    return " and ".join([*([", ".join(shown[:-1])] if shown[:-1] else []), *shown[-1:]])
