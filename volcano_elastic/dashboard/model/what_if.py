"""Asks the planner what it would do if a queue were capped, nodes were added, or a job arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.changes import Changes, changed
from volcano_elastic.snapshot.snapshot import Job, Node, Queue

_MOST_NODES = 1000
NEWCOMER = "what-if/newcomer"
"""Key of the job that arrives."""
_MOST_ROWS = 200


class NoAnswer(ValueError):
    """The question makes no sense; says what was expected."""


@dataclass(frozen=True, slots=True)
class Question:
    """The supposed change; amounts in units of the page's resource."""

    queue: str | None = None
    capability: int | None = None
    """The most that the queue may hold."""
    nodes: int = 0
    """Added, each like the largest there is."""
    into: str | None = None
    """The queue in which a job arrives."""
    least: int = 1
    most: int = 1
    each: int = 1
    """Amounts that one of its workers asks for."""
    hours: int = 1
    """How long it lasts at its minimum; asked only of the past."""


def answer(page: Page, question: Question) -> dict[str, Any]:
    """Return what the next plan would decide otherwise than without the change.

    Raises:
        NoAnswer: says what was expected.
    """
    after = plan(changed(page.snapshot, changes(page, question)), page.time)
    before = {d.job: d.new for d in page.plan.decisions if not d.dry_run}
    decisions = [d for d in after.decisions if before.get(d.job) != d.new and d.job != NEWCOMER]
    decided = {d.job for d in after.decisions}
    undone = sorted(job for job in before if job not in decided)
    return {
        "decisions": [
            {"job": d.job, "from": d.old, "to": d.new, "message": d.message, "dryRun": d.dry_run}
            for d in decisions[:_MOST_ROWS]
        ],
        "more": max(0, len(decisions) - _MOST_ROWS),
        "undone": undone[:_MOST_ROWS],
        "start": sorted(page.plan.blocked.keys() - after.blocked.keys())[:_MOST_ROWS],
        "blocked": [
            {"job": key, "why": after.blocked[key]}
            for key in sorted(after.blocked.keys() - page.plan.blocked.keys() - {NEWCOMER})
        ][:_MOST_ROWS],
        "newcomer": _newcomer(question, after),
    }


def changes(page: Page, question: Question) -> Changes:
    """Return what is supposed, as changes of the page's snapshot.

    Raises:
        NoAnswer: says what was expected.
    """
    queues = {queue.name: queue for queue in page.snapshot.queues}
    for name in (question.queue, question.into):
        if name is not None and name not in queues:
            raise NoAnswer(f"expected the name of a queue, found {name[:100]!r}")
    if not 0 <= question.nodes <= _MOST_NODES:
        raise NoAnswer(f"expected at most {_MOST_NODES} nodes more, found {question.nodes}")
    if question.into is not None and not 1 <= question.least <= question.most:
        raise NoAnswer(f"expected min from 1 to max, found {question.least} and {question.most}")
    capped: tuple[Queue, ...] = ()
    if question.queue is not None and question.capability is not None:
        queue = queues[question.queue]
        most = {**(queue.capability or {}), page.resource: question.capability * 1000}
        capped = (replace(queue, capability=most),)
    return Changes(
        queues=capped,
        nodes=_nodes(page, question.nodes),
        jobs=() if question.into is None else (_job(page, question, question.into),),
    )


def _nodes(page: Page, count: int) -> tuple[Node, ...]:
    offering = [n for n in page.snapshot.nodes if n.allocatable.get(page.resource)]
    if not count:
        return ()
    if not offering:
        raise NoAnswer(f"expected a node with {page.resource} to make more like it, found none")
    largest = max(offering, key=lambda n: (n.takes_pods, n.allocatable[page.resource], n.name))
    sound = replace(largest, ready=True, unschedulable=False, leave="")
    return tuple(replace(sound, name=f"what-if-{number}") for number in range(count))


def _job(page: Page, question: Question, queue: str) -> Job:
    return Job(
        key=NEWCOMER,
        queue=queue,
        created=page.time,
        min=question.least,
        max=question.most,
        desired=question.least,
        pod_requests={page.resource: question.each * 1000},
    )


def _newcomer(question: Question, after: Plan) -> dict[str, Any] | None:
    if question.into is None:
        return None
    why = after.blocked.get(NEWCOMER)
    size = next((d.new for d in after.decisions if d.job == NEWCOMER), question.least)
    leave = [d.job for d in after.decisions if d.remove and d.job != NEWCOMER]
    return {"starts": why is None, "why": why, "size": size, "afterOthersLeft": bool(leave)}
