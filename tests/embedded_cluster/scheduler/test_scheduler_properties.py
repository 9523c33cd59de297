"""The scheduler's promises in every cluster, whatever comes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_cluster.scheduler.actions import ACTIONS
from embedded_cluster.scheduler.claims import real_capability
from embedded_cluster.scheduler.cycle import effects_of
from embedded_cluster.scheduler.effect import Bind, Effect, Evict
from embedded_cluster.scheduler.observe import requests_of
from embedded_cluster.scheduler.plugins import PLUGINS
from embedded_cluster.scheduler.plugins.proportion import deserved_by_weight
from embedded_cluster.scheduler.resources import Resources
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Queue, Task
from tests.embedded_cluster.scheduler.world import (
    GPU,
    OVERCOMMIT,
    PROPORTION,
    Cluster,
    cluster,
    configuration,
)
from tests.examples import examples
from volcano_elastic.api import quantity

Told = list[tuple[Counter[str], list[Effect]]]
"""Bound pods of each gang before a session, and what it did."""


@st.composite
def stories(draw: st.DrawFn) -> tuple[Cluster, list[Callable[[], None]]]:
    """A cluster, and gangs that come to it one after another or pods that go."""
    c = cluster(*draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    c.conf = configuration(draw(st.sampled_from([None, None, PROPORTION, OVERCOMMIT])))
    c.classes = {"low": 1, "high": 2}
    for name in ("qa", "qb"):
        spec = {
            "weight": draw(st.integers(1, 3)),
            "deserved": {GPU: str(draw(st.integers(0, 4)))},
            "capability": {GPU: str(draw(st.integers(3, 8)))},
        }
        if not draw(st.integers(0, 3)):
            spec["guarantee"] = {"resource": {GPU: "1"}}
        c.queue(name, **spec)
    size = draw(st.sampled_from([1, 1, 2]))
    # The first one fills what there is, so that the others have to take from it.
    events = [_gang(draw, c, "g0", size, surplus=8)]
    for number in range(1, draw(st.integers(2, 6))):
        comes = draw(st.integers(0, 3))
        surplus = draw(st.integers(0, 3))
        events.append(
            _gang(draw, c, f"g{number}", size, surplus=surplus) if comes else _leaves(draw, c)
        )
    return c, events


def _gang(draw: st.DrawFn, c: Cluster, name: str, size: int, *, surplus: int) -> Callable[[], None]:
    minimum = draw(st.integers(1, 3))
    how = {
        "gpu": size,
        "queue": draw(st.sampled_from(["default", "qa", "qb"])),
        "priority": draw(st.sampled_from(["low", "high"])),
        "preemptable": draw(st.sampled_from(["elastic", "elastic", "none", "unset"])),
    }
    if not draw(st.integers(0, 2)):
        how["cooldown"] = "30s"
    return lambda: c.gang(name, minimum, minimum + surplus, **how)


def _leaves(draw: st.DrawFn, c: Cluster) -> Callable[[], None]:
    number = draw(st.integers(0, 20))

    def leave() -> None:
        if c.pods:
            del c.pods[sorted(c.pods)[number % len(c.pods)]]

    return leave


def sessions_of(
    c: Cluster,
    check: Callable[[], None] = lambda: None,
    session: Callable[[], Session] | None = None,
) -> Told:
    """Until one has nothing to say; `check` is asked after each."""
    told: Told = []
    for _ in range(60):
        before = bound(c)
        effects = c.carry_out((session or c.session)())
        check()
        if not effects:
            return told
        told.append((before, effects))
    raise AssertionError(f"the scheduler never comes to rest: {effects_of(c.session())}")


def bound(c: Cluster) -> Counter[str]:
    return Counter(name.split("-")[0] for name in c.placed())


def minimum(c: Cluster, gang: str) -> int:
    return int(c.podgroups[f"default/{gang}"]["spec"]["minMember"])


def used(c: Cluster, node: str) -> dict[str, int]:
    here = (p["spec"] for p in c.pods.values() if p["spec"].get("nodeName") == node)
    return quantity.total(requests_of(spec) for spec in here)


def room(c: Cluster, node: str) -> dict[str, int]:
    return quantity.parse(c.nodes[node]["status"]["allocatable"])


@settings(max_examples=examples(100), deadline=None)
@given(stories())
def test_no_node_and_no_queue_ever_holds_more_than_it_may(
    story: tuple[Cluster, list[Callable[[], None]]],
) -> None:
    c, events = story

    def check() -> None:
        for name in c.nodes:
            assert all(held <= room(c, name)[one] for one, held in used(c, name).items())
        for name in ("qa", "qb"):
            most = quantity.milli(c.queues[name]["spec"]["capability"][GPU])
            gangs = [g for g, spec in c.gangs.items() if spec["queue"] == name]
            pods = [p for p in c.pods.values() if p["metadata"]["name"].split("-")[0] in gangs]
            placed = [p["spec"] for p in pods if "nodeName" in p["spec"]]
            assert sum(requests_of(spec)[GPU] for spec in placed) <= most

    for event in events:
        event()
        sessions_of(c, check)


@settings(max_examples=examples(100), deadline=None)
@given(stories())
def test_a_gang_is_bound_whole_or_not_at_all(
    story: tuple[Cluster, list[Callable[[], None]]],
) -> None:
    c, events = story
    for event in events:
        event()
        for before, effects in sessions_of(c):
            came = Counter(e.pod.name.split("-")[0] for e in effects if isinstance(e, Bind))
            for gang, count in came.items():
                assert before[gang] + count >= minimum(c, gang)


@settings(max_examples=examples(100), deadline=None)
@given(stories())
def test_pods_are_evicted_only_for_gangs_that_start_thereby(
    story: tuple[Cluster, list[Callable[[], None]]],
) -> None:
    c, events = story
    for event in events:
        event()
        sessions_of(c, session=lambda: judged(c))


def judged(c: Cluster) -> Session:
    """A session whose evictions are all needed, looked at after each action.

    Pods are of one size here. Else Volcano frees more than it takes, since it goes by victim order
    alone (a-claimant-frees-more-than-it-takes in volcano_observed.yaml).
    """
    before, session = bound(c), Session(c.snapshot(), c.conf, PLUGINS, c.now)

    def queue_of(pod: Task) -> Queue:
        return session.queues[session.jobs[str(pod.job)].queue or ""]

    for action in (action.name for action in c.conf.actions):
        told, known = len(session.effects), set(session.nominated)
        over = {name: pods_over_limit(session, queue) for name, queue in session.queues.items()}
        session.action = action
        ACTIONS[action](session)
        victims = [e.pod for e in session.effects[told:] if isinstance(e, Evict)]
        pods = [pod for job in session.jobs.values() for pod in job.tasks]
        takers = [pod for pod in pods if pod.uid in session.nominated.keys() - known]
        for job in {session.jobs[str(taker.job)] for taker in takers}:
            assert before[job.key.split("/")[1]] < job.min_member
            assert session.job_pipelined(job), f"pods went for {job.key}, and it can't start"
        if action == "reclaim":
            assert len(victims) <= len(takers)
        for victim in victims:
            idle = session.future_idle(session.nodes[str(victim.node)])[GPU]
            # As seen: a queue at its capability gives though there is idle room
            # (preempt-within-a-queue-at-its-capability).
            full = action == "preempt" and session.not_allocatable(queue_of(victim), victim)
            assert idle < victim.requests[GPU] or full, f"{victim.name} need not have gone"
        if action == "preempt":
            gave = Counter(queue_of(victim).name for victim in victims)
            got = Counter(queue_of(taker).name for taker in takers)
            # As seen: if its share has fallen below what it holds, it gives so much more than it
            # gets (a-queue-above-its-share-gives-more-than-it-gets); but to somebody.
            assert gave.keys() <= got.keys(), "pods went for nobody"
            assert all(count - got[name] <= over[name] for name, count in gave.items())
    return session


def pods_over_limit(session: Session, queue: Queue) -> int:
    """Return how many of its pods would have to go, of one GPU size, for it to hold the rest."""
    sizes = {task.requests[GPU] for job in session.jobs.values() for task in job.tasks}
    if not sizes:
        return 0
    bounds: dict[str, Resources] = {
        name: real_capability(session, one) for name, one in session.queues.items()
    }
    limits = deserved_by_weight(session, bounds) if session.has("proportion") else bounds
    most = limits[queue.name].get(GPU, 0)
    return max(0, math.ceil((session.allocated(queue).get(GPU, 0) - most) / sizes.pop()))


@settings(max_examples=examples(100), deadline=None)
@given(stories(), st.integers(0, 10))
def test_protected_pods_and_minimums_are_never_preempted(
    story: tuple[Cluster, list[Callable[[], None]]], seconds: int
) -> None:
    c, events = story
    for event in events:
        event()
        for before, effects in sessions_of(c):
            lost: Counter[str] = Counter()
            came: Counter[str] = Counter()
            for effect in effects:
                gang = effect.pod.name.split("-")[0] if isinstance(effect, Bind | Evict) else ""
                came[gang] += isinstance(effect, Bind)
                if isinstance(effect, Evict):
                    lost[gang] += effect.action == "preempt"
                    assert effect.pod.preemptable
                    assert effect.pod.cooling_until is None or effect.pod.cooling_until <= c.now
            for gang, count in lost.items():
                assert not count or before[gang] + came[gang] - count >= minimum(c, gang)
        c.now += timedelta(seconds=seconds)
