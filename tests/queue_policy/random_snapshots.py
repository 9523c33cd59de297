"""Snapshots at random, for the planner's properties and for whoever compares two planners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from hypothesis import strategies as st

from tests.queue_policy.world import (
    GPU,
    NOW,
    applied,
    gpus,
    job,
    node,
    pod,
    pods,
    quota,
    settled,
    web,
    world,
)
from volcano_elastic.api.queue_policy import (
    ForOtherQueues,
    ForPods,
    Grow,
    Headroom,
    Mode,
    Order,
    QueuePolicy,
    Rebalance,
    Shrink,
    Step,
    Surplus,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.snapshot.snapshot import (
    Gang,
    Job,
    Memory,
    Pod,
    Queue,
    Requirement,
    Snapshot,
    Unplaced,
)

BAD = "is tainted example.com/broken"


@st.composite
def snapshots(draw: Callable[..., object], mixed: bool = True, units: bool = True) -> Snapshot:
    """Any state the cluster may be found in; `mixed`: pods of 1 and 2 GPUs, zones, two queues;
    `units`: some jobs change size by two pods at a time."""

    def number(least: int, most: int) -> int:
        value = draw(st.integers(least, most))
        assert isinstance(value, int)
        return value

    nodes = [
        node(
            f"n{i}",
            number(1, 4),
            labels={"zone": "x" if mixed and number(0, 1) else "y"},
            ready=number(0, 9) > 0,
        )
        for i in range(number(1, 4))
    ]
    free = {n.name: n.allocatable[GPU] // 1000 for n in nodes}
    zone = {n.name: n.labels["zone"] for n in nodes}
    queues = [Queue("default")]
    if mixed and number(0, 1):
        limited = gpus(number(2, 8)) if number(0, 1) else None
        queues = [
            Queue("default", deserved=gpus(number(0, 4))),
            Queue(
                "other",
                capability=limited,
                guarantee=gpus(number(0, 2)),
            ),
        ]
    jobs: list[Job] = []
    found: list[Pod] = []
    for i in range(number(1, 5)):
        unit = 2 if units and number(0, 4) == 0 else 1
        least = unit * number(1, 2)
        most = least + unit * number(0, 4)
        desired = least + unit * number(0, (most - least) // unit)
        made = job(
            f"j{i}",
            least,
            most,
            desired,
            node_unit=unit,
            queue=queues[number(0, len(queues) - 1)].name,
            priority=number(0, 1),
            created=NOW - timedelta(minutes=number(1, 3)),
            pod_requests=gpus(2 if mixed and number(0, 2) == 0 else 1),
            node_selector={"zone": "x"} if mixed and number(0, 4) == 0 else {},
            cooldown=timedelta(seconds=60 * number(0, 1)),
            last_scale=NOW - timedelta(seconds=number(0, 90)) if number(0, 1) else None,
            needs_first=number(0, 1) > 0,
        )
        jobs.append(made)
        size = made.pod_requests[GPU] // 1000
        started = number(0, 3) > 0
        for index in range(desired + number(0, 1) if started else 0):
            names = sorted(
                n
                for n, room in free.items()
                if room >= size and (not made.node_selector or zone[n] == "x")
            )
            where = names[number(0, len(names) - 1)] if names and number(0, 7) else None
            if where is not None:
                free[where] -= size
            elif number(0, 1):
                continue
            found.append(
                pod(
                    made,
                    index,
                    where,
                    age=number(0, 60),
                    running=where is not None and number(0, 3) > 0,
                    terminating=where is not None and number(0, 5) == 0,
                )
            )
    return world(nodes, jobs, found, queues=tuple(queues))


@st.composite
def everything(draw: Callable[..., object]) -> Snapshot:
    """A cluster with policies, a tree of queues or weights, measured speeds, scalers, memory."""
    snapshot = draw(snapshots())
    assert isinstance(snapshot, Snapshot)
    chance = draw(st.randoms(use_true_random=False))
    assert isinstance(chance, Random)
    queues = [
        replace(
            queue,
            weight=chance.randint(1, 3),
            parent="tree" if chance.random() < 0.4 else None,
            open=chance.random() < 0.95,
        )
        for queue in snapshot.queues
    ]
    if any(queue.parent for queue in queues):
        limit = gpus(chance.randint(2, 12)) if chance.random() < 0.5 else None
        queues.append(Queue("tree", capability=limit))
    policies = tuple(
        QueuePolicy(
            queue.name,
            name=queue.name,
            mode=chance.choice([Mode.ACTIVE] * 5 + list(Mode)),
            surplus=Surplus(
                order=chance.choice(list(Order)),
                min_efficiency=chance.choice([0.0, 0.5, 0.9]),
                step=chance.choice(list(Step)),
                max_per_job=chance.choice([None, None, 2]),
            ),
            grow=Grow(
                cooldown=timedelta(seconds=chance.choice([0, 60])),
                max_step=chance.choice([None, None, 2]),
            ),
            shrink=Shrink(
                protect=timedelta(seconds=chance.choice([0, 0, 40])),
                for_other_queues=chance.choice(list(ForOtherQueues)),
            ),
            rebalance=Rebalance(
                gap=chance.choice([0, 1, 1.5]), cooldown=timedelta(seconds=chance.choice([0, 60]))
            ),
            borrowing_limit=chance.choice([None, None, 2000]),
            headroom=chance.choice([Headroom(), Headroom(), Headroom(1000), Headroom(None, 25)]),
        )
        for queue in snapshot.queues
        if chance.random() < 0.7
    )
    jobs = tuple(_varied(job, chance) for job in snapshot.jobs)
    unplaced = {
        job.key: Unplaced(NOW - timedelta(seconds=chance.randint(0, 200)), chance.randint(1, 3))
        for job in jobs
        if chance.random() < 0.1
    }
    return replace(
        snapshot,
        queues=tuple(queues),
        policies=policies,
        jobs=jobs,
        proportion=chance.random() < 0.3 and all(queue.parent is None for queue in queues),
        memory=Memory(unplaced=unplaced),
    )


def _varied(job: Job, chance: Random) -> Job:
    sizes = [size for size in range(1, job.max + 1) if chance.random() < 0.3]
    return replace(
        job,
        speeds={size: size**0.8 * chance.uniform(0.8, 1.1) for size in sizes},
        scaler=chance.choice(["volcano"] * 6 + ["none", "hpa"]),
        replicas=chance.choice([None, job.min, job.max]),
        unmodelled="" if chance.random() < 0.95 else "resourceClaims",
        gpu_hours=chance.choice([0.0, 100.0]),
        created=job.created - timedelta(hours=chance.randint(0, 3)),
        last_reason=chance.choice([None, None, Reason.REBALANCED, Reason.SURPLUS_UNPLACED]),
        pause=timedelta(seconds=chance.choice([1, 30])),
    )


@st.composite
def with_bad_nodes(draw):  # type: ignore[no-untyped-def]
    """Any state, in which some nodes are to be left by all jobs, or by one."""
    found: Snapshot = draw(snapshots())
    names = [n.name for n in found.nodes]
    left = draw(st.sets(st.sampled_from(names)))
    nodes = tuple(replace(n, leave=BAD if n.name in left else "") for n in found.nodes)
    jobs = []
    for one in found.jobs:
        own = tuple(sorted(draw(st.sets(st.sampled_from(names), max_size=1))))
        term = tuple(Requirement("metadata.name", "NotIn", (n,), of_field=True) for n in own)
        jobs.append(replace(one, excluded=own, node_affinity=(term,) if own else ()))
    return replace(found, nodes=nodes, jobs=tuple(jobs))


@st.composite
def with_pods(draw: Callable[..., object]) -> Snapshot:
    snapshot, seed = draw(everything()), draw(st.integers(0, 1 << 30))
    assert isinstance(snapshot, Snapshot) and isinstance(seed, int)
    chance = Random(seed)
    asking = tuple(
        web(i, chance.choice([1, 1, 2]), priority=chance.choice([-1, 0, 1, 2]))
        for i in range(chance.randint(1, 4))
    )
    policies = tuple(
        replace(p, shrink=replace(p.shrink, for_pods=chance.choice(list(ForPods))))
        for p in snapshot.policies
    )
    return replace(snapshot, pods=(*snapshot.pods, *asking), policies=policies)


@st.composite
def with_quotas(draw: Callable[..., object]) -> Snapshot:
    snapshot, seed = draw(everything()), draw(st.integers(0, 1 << 30))
    assert isinstance(snapshot, Snapshot) and isinstance(seed, int)
    chance = Random(seed)
    used = sum(p.requests[GPU] for p in snapshot.pods)
    hard = used + 1000 * chance.randint(-1, 4)
    return replace(snapshot, quotas=(quota("ns/gpus", {GPU: hard}, {GPU: used}),))


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


def history(
    snapshot: Snapshot, chance: Random, make_plan: Callable[[Snapshot, datetime], Plan], steps: int
) -> list[tuple[Snapshot, datetime]]:
    """Return the snapshots of which plans were made, and when: most plans are carried out, some are
    not, and in between something changes."""
    now, seen = NOW, []
    for step in range(steps):
        seen.append((snapshot, now))
        made = make_plan(snapshot, now)
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
    return seen
