"""A resize as a trace: from the plan over pods and rendezvous to the first step; pure.

decided ─► written ─► pods come and leave ─► a round of the new size ─► its first step: complete
        ─► overtaken by another decision, the job's end, or LIMIT: what is known is told

Pods are told by when the operator sees them, rounds by the clock of the job's coordinator. Rounds
are told of some seconds later, so one that was overtaken waits for what is told of its own rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from volcano_elastic.kube.resource import Object
from volcano_elastic.operator.round_report import ReportedRound

LIMIT = timedelta(minutes=15)
"""No longer is waited for a first step."""
Attributes = Mapping[str, str | int | float]


class Outcome(StrEnum):
    """Why a trace ends."""

    COMPLETE = "complete"
    OVERTAKEN = "overtaken"
    JOB_OVER = "job over"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod's way, as the operator saw it; None: not yet."""

    name: str
    came: datetime | None = None
    placed: datetime | None = None
    ran: datetime | None = None
    told_to_leave: datetime | None = None
    gone: datetime | None = None


@dataclass(frozen=True, slots=True)
class Resizing:
    """A resize that is under way."""

    job: str
    """namespace/name."""
    queue: str
    old: int
    new: int
    reason: str
    message: str
    plan_began: datetime
    decided: datetime
    has_rounds: bool
    """A coordinator of ours tells of rounds; without one the pods are all that is seen."""
    round_before: int | None
    """The newest round told of before; None: none was heard of yet."""
    leavers: frozenset[str] = frozenset()
    """Names of the pods that the plan has leave."""
    fixed: int = 0
    """Agents of each round that the job's size doesn't count."""
    overtaken: datetime | None = None
    """When another decision followed; rounds made after that are not this one's."""
    written: datetime | None = None
    pods: Mapping[str, SeenPod] = field(default_factory=dict)
    """By uid, those that came or left since."""
    rounds: tuple[ReportedRound, ...] = ()
    """The last one before, as far as it was told, and those since."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a trace, and its own parts."""

    name: str
    start: datetime
    end: datetime
    attributes: Attributes = field(default_factory=dict)
    parts: tuple[Span, ...] = ()
    failure: str = ""
    """Why it didn't end well; empty if it did."""


def saw(resizing: Resizing, old: Object | None, new: Object | None, now: datetime) -> Resizing:
    """Return the resize with what a change of one of the job's pods tells."""
    obj = new or old
    assert obj is not None
    uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
    pod = resizing.pods.get(uid)
    if pod is None:
        if resizing.overtaken is not None:
            return resizing  # it comes or leaves for another decision
        if old is not None and not obj["metadata"].get("deletionTimestamp") and new is not None:
            return resizing  # it was there before, and stays
        pod = SeenPod(name, came=now if old is None else None)
    if pod.gone is not None:
        return resizing  # no pod comes back by its uid
    status = obj.get("status") or {}
    if pod.came is not None and new is not None:
        if obj["spec"].get("nodeName"):
            pod = replace(pod, placed=pod.placed or now)
        if status.get("phase") == "Running":
            pod = replace(pod, ran=pod.ran or now)
    if obj["metadata"].get("deletionTimestamp") or new is None:
        pod = replace(pod, told_to_leave=pod.told_to_leave or now)
    if new is None:
        pod = replace(pod, gone=now)
    return replace(resizing, pods={**resizing.pods, uid: pod})


def wrote(resizing: Resizing, now: datetime) -> Resizing:
    """Return the resize whose size is the job's now."""
    return replace(resizing, written=now)


def with_rounds(resizing: Resizing, rounds: Sequence[ReportedRound]) -> Resizing:
    """Return the resize with the rounds that the coordinator tells of."""
    before = resizing.round_before
    if before is None and rounds:
        # Heard for the first time: of those that have ended, nobody knows for which size they were.
        before = rounds[-1].number - 1
    since = tuple(one for one in rounds if before is not None and one.number >= before)
    return replace(resizing, rounds=since) if since else resizing


def overtake(resizing: Resizing, when: datetime | None) -> Resizing:
    """Return the resize that another decision followed; None: that one was not carried out."""
    return replace(resizing, overtaken=when)


def ended(
    resizings: Sequence[Resizing],
) -> tuple[list[tuple[Resizing, Outcome]], list[Resizing]]:
    """Return which resizes of one job have ended and how, and which are still under way.

    Args:
        resizings: in the order of their decisions; all but the last were overtaken, and end with it
            at the latest, since whoever tells of its first step has told of theirs.
    """
    over: list[tuple[Resizing, Outcome]] = []
    under_way: list[Resizing] = []
    newest = -1
    for one in resizings:
        known = one
        if newest >= (-1 if one.round_before is None else one.round_before):
            known = replace(one, round_before=newest)  # that round was an earlier resize's
        if complete(known):
            over += [(before, Outcome.OVERTAKEN) for before in under_way]
            over.append((known, Outcome.COMPLETE))
            under_way = []
            newest = last.number if (last := _last(known)) is not None else newest
        elif known.overtaken is not None and (known.written is None or not known.has_rounds):
            over.append((known, Outcome.OVERTAKEN))  # nothing more will be told of it
        else:
            under_way.append(known)
    return over, under_way


def complete(resizing: Resizing) -> bool:
    """Return whether training goes on at the new size; without rounds, whether the pods are so."""
    if resizing.written is None:
        return False
    if resizing.has_rounds:
        return _last(resizing) is not None
    running = sum(p.ran is not None and p.told_to_leave is None for p in resizing.pods.values())
    left = {pod.name for pod in resizing.pods.values() if pod.gone is not None}
    return running >= resizing.new - resizing.old and resizing.leavers <= left


def _since(resizing: Resizing) -> tuple[ReportedRound, ...]:
    before, until = resizing.round_before, resizing.overtaken
    since = resizing.rounds[-1:]
    if before is not None:
        since = tuple(one for one in resizing.rounds if one.number > before)
    return tuple(one for one in since if until is None or one.made <= until)


def _last(resizing: Resizing) -> ReportedRound | None:
    """Return the first round of the new size that made a step; None if there is none yet."""
    return next(
        (
            one
            for one in _since(resizing)
            if one.nodes - resizing.fixed == resizing.new and one.first_step is not None
        ),
        None,
    )


def trace(resizing: Resizing, outcome: Outcome, now: datetime) -> Span:
    """Return the resize as its outermost span, which begins with the plan that decided it."""
    if outcome is Outcome.OVERTAKEN:
        now = resizing.overtaken or now
    parts = tuple(sorted(_parts(resizing, now), key=lambda part: part.start))
    last = _last(resizing)
    seen = [resizing.decided, *(part.end for part in parts)]
    namespace, _, name = resizing.job.partition("/")
    attributes: dict[str, str | int | float] = {
        "k8s.namespace.name": namespace,
        "volcano_elastic.job": name,
        "volcano_elastic.queue": resizing.queue,
        "volcano_elastic.size.old": resizing.old,
        "volcano_elastic.size.new": resizing.new,
        "volcano_elastic.reason": resizing.reason,
        "volcano_elastic.message": resizing.message,
        "volcano_elastic.outcome": str(outcome),
    }
    if last is not None and last.pause is not None:
        attributes["volcano_elastic.pause_seconds"] = last.pause
    failure = "" if outcome is Outcome.COMPLETE else _missing(resizing, outcome)
    end = max(seen) if outcome is Outcome.COMPLETE else max(now, *seen)
    return Span("resize", resizing.plan_began, end, attributes, parts, failure)


def _missing(resizing: Resizing, outcome: Outcome) -> str:
    if resizing.written is None:
        what = "its size was not written"
    elif waiting := [p.name for p in resizing.pods.values() if p.came and not p.ran and not p.gone]:
        what = f"{', '.join(sorted(waiting))} not running"
    elif resizing.has_rounds:
        what = f"no step with {resizing.new} workers was told of"
    else:
        what = "pods were still to come or to leave"
    return f"{outcome}: {what}"


def _parts(resizing: Resizing, now: datetime) -> Iterator[Span]:
    yield Span("plan", resizing.plan_began, resizing.decided)
    yield Span("write size", resizing.decided, resizing.written or now)
    for pod in resizing.pods.values():
        yield from _pod(pod, now)
    rounds = _since(resizing)
    last = _last(resizing)
    before = {one.number: one for one in resizing.rounds}
    for one in rounds:
        if last is None or one.number <= last.number:
            yield from _round(before.get(one.number - 1), one, now)


def _pod(pod: SeenPod, now: datetime) -> Iterator[Span]:
    attributes = {"k8s.pod.name": pod.name}
    if pod.came is not None:
        end = pod.ran or pod.gone or now
        parts = [Span("schedule", pod.came, pod.placed or end)]
        if pod.placed is not None:
            parts.append(Span("start", pod.placed, end))
        failure = "" if pod.ran else "it was not running"
        yield Span("pod comes", pod.came, end, attributes, tuple(parts), failure)
    if pod.told_to_leave is not None:
        yield Span("pod leaves", pod.told_to_leave, pod.gone or now, attributes)


def _round(before: ReportedRound | None, one: ReportedRound, now: datetime) -> Iterator[Span]:
    """Yield the time without a step at the beginning of a round."""
    # Another host of the coordinator may have another clock.
    met_since = min((before.ended if before else None) or one.made, one.made)
    stood_since = min((before.last_step if before else None) or met_since, met_since)
    first = max(one.first_step or one.ended or now, one.made)
    attributes: dict[str, str | int | float] = {
        "volcano_elastic.round": one.number,
        "volcano_elastic.nodes": one.nodes,
        "volcano_elastic.round_reason": one.reason,
    }
    parts = (Span("rendezvous", met_since, one.made), Span("first step", one.made, first))
    failure = "" if one.first_step else "the round made no step"
    yield Span("no step", stood_since, first, attributes, parts, failure)
