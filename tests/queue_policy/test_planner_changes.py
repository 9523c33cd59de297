"""A planner that remembers says what a new one says, whatever has changed since its last plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.queue_policy.test_plan_everything import everything, thorough
from tests.queue_policy.world import NOW, applied, gpus, job, node, pod, pods, settled, world
from volcano_elastic.api.queue_policy import Headroom, Mode, QueuePolicy
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.snapshot.snapshot import Gang, Pod, Queue, Snapshot

STEPS = 8


@thorough
@given(everything(), st.integers(0, 1 << 30))
def test_a_planner_that_remembers_says_what_a_new_one_says(snapshot: Snapshot, seed: int) -> None:
    chance, now, planner = Random(seed), NOW, Planner()
    for step in range(STEPS):
        made = planner.plan(snapshot, now)
        assert made == plan(snapshot, now)
        if chance.random() < 0.7:
            snapshot = applied(snapshot, made, now)
            if chance.random() < 0.5:
                snapshot = settled(snapshot)
        else:
            # Nobody has carried it out.
            snapshot = replace(snapshot, memory=made.memory)
        now += timedelta(seconds=chance.choice([0, 1, 6, 20, 61]))
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            snapshot = chance.choice(CHANGES)(snapshot, chance, f"{step}", now)


def _a_pod_goes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    if not snapshot.pods:
        return snapshot
    gone = chance.choice(snapshot.pods)
    return replace(snapshot, pods=tuple(p for p in snapshot.pods if p is not gone))


def _a_pod_changes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    if not snapshot.pods:
        return snapshot
    old = chance.choice(snapshot.pods)
    new = chance.choice(
        [
            replace(old, running=not old.running),
            replace(old, protected=not old.protected),
            replace(old, terminating=True, leaves_by=now + timedelta(seconds=1)),
            replace(old, role="Master"),
            replace(old, node=None, running=False),
            replace(old, node=chance.choice(snapshot.nodes).name if snapshot.nodes else None),
            replace(old, requests=gpus(2)),
            # Another object, the same value.
            replace(old),
        ]
    )
    return replace(snapshot, pods=tuple(new if p is old else p for p in snapshot.pods))


def _a_stranger_comes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    """A pod of another scheduler, of a gang, or of a job that is not planned for."""
    made = Pod(
        key=f"ns/stranger-{name}",
        uid=f"stranger-{name}",
        requests=gpus(chance.randint(1, 2)),
        job=chance.choice([None, None, "ns/gone"]),
        gang=chance.choice([None, "ns/gang"]),
        node=chance.choice([None, "n0", "elsewhere"]),
        created=now,
        priority=chance.choice([0, 0, 1]),
        unschedulable_since=chance.choice([None, now]),
    )
    return replace(snapshot, pods=(*snapshot.pods, made))


def _a_gang_comes_or_goes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    if snapshot.gangs:
        return replace(snapshot, gangs=())
    queue = chance.choice(snapshot.queues).name if snapshot.queues else "default"
    gang = Gang("ns/gang", queue, chance.randint(1, 2), now, pod_requests=gpus(1))
    gang = replace(gang, loose=chance.random() < 0.5)
    return replace(snapshot, gangs=(gang,))


def _a_job_goes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    left = chance.choice(snapshot.jobs) if snapshot.jobs else None
    return replace(snapshot, jobs=tuple(j for j in snapshot.jobs if j is not left))


def _a_job_comes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    queue = chance.choice(snapshot.queues).name if snapshot.queues else "default"
    least = chance.randint(1, 3)
    made = job(f"new{name}", least, least + chance.randint(0, 3), queue=queue, created=now)
    if made.key in {j.key for j in snapshot.jobs}:
        return snapshot
    return replace(snapshot, jobs=(*snapshot.jobs, made))


def _many_jobs_wait(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    """A few kinds of them, most with their pods; one or two that can't be foreseen."""
    queues = [queue.name for queue in snapshot.queues] or ["default"]
    kinds = [(chance.choice(queues), chance.randint(1, 3), chance.choice([0, 1])) for _ in range(3)]
    jobs, made = list(snapshot.jobs), list(snapshot.pods)
    known = {j.key for j in jobs}
    for i in range(chance.randint(4, 12)):
        queue, least, more = chance.choice(kinds)
        one = job(
            f"waits{name}-{i}",
            least,
            least + more,
            queue=queue,
            created=now - timedelta(seconds=chance.randint(0, 9)),
            priority=chance.choice([0, 0, 1]),
            unmodelled=chance.choice([*[""] * 9, "resourceClaims"]),
            master_requests=chance.choice([None, None, None, gpus(1)]),
        )
        if one.key not in known:
            jobs.append(one)
            made += pods(one, *[None] * least) if chance.random() < 0.8 else ()
    return replace(snapshot, jobs=tuple(jobs), pods=tuple(made))


def _a_job_changes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    if not snapshot.jobs:
        return snapshot
    old = chance.choice(snapshot.jobs)
    new = chance.choice(
        [
            replace(old, max=old.max + old.node_unit),
            replace(old, gpu_hours=old.gpu_hours + 5),
            replace(old, speeds={**old.speeds, old.desired: 1.0 + old.desired}),
            replace(old, priority=old.priority + 1),
            replace(old, queue=chance.choice(snapshot.queues).name if snapshot.queues else "x"),
            replace(old, pod_requests=gpus(1), node_selector={"zone": "x"}),
            replace(old, master_requests=gpus(1)),
            replace(old, succeeded=1 - old.succeeded),
            replace(old, last_scale=now),
        ]
    )
    return replace(snapshot, jobs=tuple(new if j is old else j for j in snapshot.jobs))


def _a_node_changes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    if not snapshot.nodes:
        return snapshot
    old = chance.choice(snapshot.nodes)
    new = chance.choice(
        [
            replace(old, ready=not old.ready),
            replace(old, unschedulable=not old.unschedulable),
            replace(old, labels={"zone": chance.choice("xy")}),
            replace(old, allocatable=old.allocatable | gpus(chance.randint(0, 5))),
            replace(old, taints=() if old.taints else (("dedicated", "x", "NoSchedule"),)),
        ]
    )
    return replace(snapshot, nodes=tuple(new if n is old else n for n in snapshot.nodes))


def _a_node_comes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    # Its name may be one that has been there, and that pods are still on.
    name = chance.choice(["n0", "elsewhere", f"a{name}", f"z{name}"])
    if name in {n.name for n in snapshot.nodes}:
        return snapshot
    more = gpus(chance.randint(1, 4)) | ({"fpga": 1000} if chance.random() < 0.1 else {})
    made = replace(node(name, 1), labels={"zone": chance.choice("xy")})
    made = replace(made, allocatable=made.allocatable | more)
    return replace(snapshot, nodes=(*snapshot.nodes, made))


def _a_node_goes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    left = chance.choice(snapshot.nodes) if snapshot.nodes else None
    return replace(snapshot, nodes=tuple(n for n in snapshot.nodes if n is not left))


def _a_queue_changes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    if not snapshot.queues:
        return snapshot
    old = chance.choice(snapshot.queues)
    new = chance.choice(
        [
            replace(old, open=not old.open),
            replace(old, deserved=gpus(chance.randint(0, 4))),
            replace(old, capability=None),
        ]
    )
    return replace(snapshot, queues=tuple(new if q is old else q for q in snapshot.queues))


def _a_policy_changes(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    queue = chance.choice(snapshot.queues or (Queue("default"),)).name
    rest = tuple(p for p in snapshot.policies if p.queue != queue)
    if chance.random() < 0.3:
        return replace(snapshot, policies=rest)
    mode, headroom = chance.choice(list(Mode)), Headroom(chance.choice([0, 1000]))
    made = QueuePolicy(queue, name=queue, mode=mode, headroom=headroom)
    return replace(snapshot, policies=(*rest, made))


def _all_in_another_order(snapshot: Snapshot, chance: Random, name: str, now: datetime) -> Snapshot:
    return replace(
        snapshot,
        nodes=tuple(chance.sample(snapshot.nodes, len(snapshot.nodes))),
        pods=tuple(chance.sample(snapshot.pods, len(snapshot.pods))),
        jobs=tuple(chance.sample(snapshot.jobs, len(snapshot.jobs))),
    )


CHANGES: list[Callable[[Snapshot, Random, str, datetime], Snapshot]] = [
    _a_pod_goes,
    _a_pod_changes,
    _a_pod_changes,
    _a_stranger_comes,
    _a_gang_comes_or_goes,
    _a_job_goes,
    _a_job_comes,
    _many_jobs_wait,
    _many_jobs_wait,
    _a_job_changes,
    _a_job_changes,
    _a_node_changes,
    _a_node_changes,
    _a_node_comes,
    _a_node_goes,
    _a_queue_changes,
    _a_policy_changes,
    _all_in_another_order,
]


def test_what_waits_in_a_full_cluster_is_told_why_and_starts_in_order_once_there_is_room() -> None:
    """Each of one kind is told what the one before it was, until room changes hands."""
    runs = job("runs", 4, 4)
    waiting = [
        job(f"w{i}", 1 + i % 2, 1 + i % 2, created=NOW + timedelta(seconds=i)) for i in range(8)
    ]
    mine = [p for one in waiting for p in pods(one, *[None] * one.min)]
    planner = Planner()
    full = world([node("n1", 4)], [runs, *waiting], pods(runs, *["n1"] * 4), mine)
    made = both(planner, full)
    assert made.blocked.keys() == {one.key for one in waiting}
    assert made.queues["default"].owed_to_minimums == 12_000
    assert len(set(made.blocked.values())) == 2
    # Two of one GPU and one of two fit; the next of one GPU finds nothing left.
    free = replace(full, jobs=tuple(waiting), pods=tuple(mine))
    made = both(planner, free)
    assert {one.key for one in waiting} - made.blocked.keys() == {"ns/w0", "ns/w1", "ns/w2"}
    assert both(planner, full).blocked.keys() == {one.key for one in waiting}


def test_who_waits_behind_many_that_are_too_large_is_served_in_its_turn() -> None:
    large = [job(f"l{i}", 3, 3, created=NOW + timedelta(seconds=2 * i)) for i in range(4)]
    small = [job(f"s{i}", 1, 1, created=NOW + timedelta(seconds=2 * i + 1)) for i in range(4)]
    made = both(Planner(), world([node("n1", 2)], [*large, *small]))
    assert made.admitted == {"ns/s0", "ns/s1"}
    assert "the nodes have too little room" in made.blocked["ns/l3"]


def test_a_queue_that_is_too_full_even_without_its_surplus_says_so() -> None:
    queues = (Queue("default", capability=gpus(2)), Queue("other"))
    surplus = job("surplus", 1, 2, 2, queue="other")
    runs, waits = job("runs", 1, 2, 2), [job(f"w{i}", 2, 2) for i in range(3)]
    seen = world(
        [node("n1", 8)],
        [runs, surplus, *waits],
        pods(runs, "n1", "n1"),
        pods(surplus, "n1", "n1"),
        queues=queues,
    )
    made = both(Planner(), seen)
    assert set(made.blocked) == {"ns/w0", "ns/w1", "ns/w2"}
    assert all("queue default has too little room" in why for why in made.blocked.values())
    assert all(decision.new >= decision.old for decision in made.decisions)


def both(planner: Planner, snapshot: Snapshot) -> Plan:
    """Return what the planner says, which is what a new one says."""
    made = planner.plan(snapshot, NOW)
    assert made == plan(snapshot, NOW)
    return made


def test_a_cluster_whose_nodes_are_all_replaced_again_and_again_is_planned_as_a_new_one() -> None:
    planner = Planner()
    for generation in range(200):
        names = [f"g{generation}-{i}" for i in range(3)]
        one = job("a", 1, 9)
        snapshot = world([node(name, 2) for name in names], [one], pods(one, names[0]))
        assert both(planner, snapshot).decisions[0].new == 6


def test_a_node_that_comes_is_more_to_guarantee_from() -> None:
    """Two of the GPUs that all nodes offer are guaranteed to others."""
    queues = (Queue("default"), Queue("other", guarantee=gpus(2)))
    one = job("a", 1, 9)
    small = world([node("n1", 4)], [one], pods(one, "n1"), queues=queues)
    planner = Planner()
    assert both(planner, small).decisions[0].new == 2
    larger = replace(small, nodes=(*small.nodes, node("n2", 3)))
    assert both(planner, larger).decisions[0].new == 5
    assert both(planner, small).decisions[0].new == 2


def test_steps_are_aligned_to_the_nodes_of_now() -> None:
    """Four GPUs more are a whole step while the largest node has four, and half a one once there is
    a node of eight: too little for a pause of a minute."""
    one = job("a", 1, 16, 8, pause=timedelta(minutes=1))
    mine = pods(one, *["n1"] * 4, *["n2"] * 4)
    small = world([node(f"n{i}", 4) for i in (1, 2, 3)], [one], mine)
    planner = Planner()
    assert both(planner, small).decisions[0].new == 12
    taken = Pod(key="ns/x", uid="x", requests=gpus(8), node="n8", running=True)
    larger = replace(small, nodes=(*small.nodes, node("n8", 8)), pods=(*mine, taken))
    made = both(planner, larger)
    assert made.decisions == ()
    assert made.unchanged[one.key].why_not_more is Reason.NOT_WORTH_A_PAUSE


def test_a_job_whose_pods_are_leaving_waits_for_them_and_may_give_more() -> None:
    one, other = job("a", 1, 4, 3), job("b", 1, 1)
    mine = (*pods(one, *["n1"] * 3), pod(one, 3, "n1", terminating=True))
    planner = Planner()
    leaving = world([node("n1", 4)], [one], mine)
    stay = both(planner, leaving).unchanged[one.key]
    assert stay == NoChange(Reason.WAITING_FOR_PODS, Reason.NOBODY_WAITS)
    # What is leaving is enough for the first of two that wait, not for both.
    two = replace(leaving, jobs=(one, other, job("c", 1, 1)))
    assert both(planner, two).decisions[0].new == 2


def test_surplus_pods_that_change_are_told_apart_by_what_they_are_now() -> None:
    one, other = job("a", 1, 3, 3), job("b", 1, 1)
    mine = pods(one, "n1", "n1", "n2")
    planner = Planner()
    calm = world([node("n1", 2), node("n2", 1)], [one], mine)
    assert planner.plan(calm, NOW).decisions == ()
    moved = replace(calm, pods=(*mine[:2], replace(mine[2], running=False)))
    assert planner.plan(moved, NOW).decisions == ()
    waiting = replace(moved, jobs=(one, other))
    assert planner.plan(waiting, NOW).decisions[0].remove == (pod(one, 2, None).key,)
