"""The planner's promises in every situation hypothesis can think of."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.queue_policy.random_snapshots import snapshots
from tests.queue_policy.world import GPU, NOW, applied, job, node, pod, pods, settled, world
from volcano_elastic.cluster_state.job_pods import eviction_order, goes_on_without_first
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Pod, Snapshot

# PLANNER_EXAMPLES=5000 for the long form, of the other property tests of the planner too.
calm = settings(max_examples=int(os.environ.get("PLANNER_EXAMPLES", examples(150))), deadline=None)


def beyond_desired(alive: list[Pod], owner: Job) -> list[Pod]:
    """Pods of a shrink under way; worker 0 counts even while it is missing, if it is needed."""
    missing = owner.needs_first and bool(alive) and all(p.index != 0 for p in alive)
    bound = [p for p in alive if p.node is not None]
    order = eviction_order(alive, worker_0=goes_on_without_first(owner, bound))
    return order[: max(0, len(alive) + missing - owner.desired)]


def told_to_leave(snapshot: Snapshot, owner: Job) -> list[Pod]:
    """Pods of an earlier decision that is not carried out yet."""
    alive = [p for p in snapshot.pods if p.job == owner.key and not p.terminating]
    return beyond_desired(alive, owner)


def moves_of_the_next(snapshot: Snapshot) -> set[Reason]:
    """Reasons of what only the plan after this one may do: pods of an earlier decision that have no
    node are gone then, and before that their job neither grows nor gives to others' growth."""
    leaving = [p for owner in snapshot.jobs for p in told_to_leave(snapshot, owner)]
    gone = any(p.node is None for p in leaving)
    return {Reason.GREW_INTO_IDLE, Reason.REBALANCED} if gone else set()


def lacks_first(owner: Job, bound: list[Pod]) -> bool:
    """Its workers that have a node wait for worker 0."""
    return owner.needs_first and bool(bound) and all(p.index != 0 for p in bound)


def size_after(made: Plan, owner: Job) -> int:
    return next((d.new for d in made.decisions if d.job == owner.key), owner.desired)


@calm
@given(snapshots())
def test_sizes_are_whole_units_within_min_and_max(snapshot: Snapshot) -> None:
    made = plan(snapshot, NOW)
    for owner in snapshot.jobs:
        size = size_after(made, owner)
        assert owner.min <= size <= owner.max
        assert size % owner.node_unit == 0
    assert {d.job for d in made.decisions}.isdisjoint(made.unchanged)
    elastic = {j.key for j in snapshot.jobs if j.elastic}
    assert {d.job for d in made.decisions} | made.unchanged.keys() >= elastic


@calm
@given(snapshots())
def test_only_the_jobs_own_live_surplus_leaves_and_never_worker_0(snapshot: Snapshot) -> None:
    found = {p.key: p for p in snapshot.pods}
    jobs = {j.key: j for j in snapshot.jobs}
    for decision in plan(snapshot, NOW).decisions:
        leaving = [found[key] for key in decision.remove]
        assert len(set(decision.remove)) == len(decision.remove)
        assert len(leaving) <= max(0, decision.old - decision.new)
        assert all(p.job == decision.job and not p.terminating for p in leaving)
        owner = jobs[decision.job]
        assert all(p.index != 0 or (p.node is None and not owner.needs_first) for p in leaving)
        bound = [
            p
            for p in snapshot.pods
            if p.job == decision.job and not p.terminating and p.node is not None
        ]
        lost = sum(p.node is not None for p in leaving)
        # A job whose worker 0 is to come back may pay for it with its own surplus.
        leaderless = lacks_first(owner, bound)
        assert lost == 0 or len(bound) - lost >= owner.min - leaderless


def _more_workers_than_the_size() -> Snapshot:
    """Three workers for two places: the one with a node goes on without worker 0."""
    rigid = job("j0", 2, 2)
    owner = job("j1", 1, 2, 2, needs_first=False)
    waiting = [pod(owner, index, None, age=0) for index in range(2)]
    last = pod(owner, 2, "n0", age=0, running=False)
    return world([node("n0", 1, ready=False)], [rigid, owner], waiting, [last])


def _a_newcomer_with_a_worker_too_many() -> Snapshot:
    """It may start larger than its minimum, but only once the worker beyond its size is gone."""
    owner = job("j0", 1, 2, 1)
    return world([node("n0", 2)], [owner], pods(owner, None, None))


def _a_giver_with_a_worker_too_many() -> Snapshot:
    """It may give to the newcomer's growth, but only once the worker beyond its size is gone."""
    owner = job("j0", 1, 4, 4)
    nodes = [node("n0", 3, ready=False), node("n1", 2)]
    return world(nodes, [owner, job("j1", 1, 2)], pods(owner, "n0", "n0", None, "n0", "n1"))


@calm
@given(snapshots(mixed=False))
@example(_more_workers_than_the_size())
@example(_a_newcomer_with_a_worker_too_many())
@example(_a_giver_with_a_worker_too_many())
def test_a_plan_carried_out_leaves_the_next_nothing_to_do(snapshot: Snapshot) -> None:
    after = applied(snapshot, plan(snapshot, NOW), NOW)
    second = plan(after, NOW)
    assert {d.reason for d in second.decisions} <= moves_of_the_next(snapshot)
    assert plan(applied(after, second, NOW), NOW).decisions == ()


@calm
@given(snapshots())
@example(_a_giver_with_a_worker_too_many())
def test_the_next_plan_takes_nothing_back(snapshot: Snapshot) -> None:
    """Among pods of several sizes the next plan may find a place that this one did not see, for a
    claim it called blocked, or find that waiting surplus has none after all; but it never undoes
    what this one did."""
    first = plan(snapshot, NOW)
    after = applied(snapshot, first, NOW)
    second = plan(after, NOW)
    before = {d.job: d.new - d.old for d in first.decisions}
    assert not any(before.get(d.job, 0) * (d.new - d.old) < 0 for d in second.decisions)
    waiting = {p.key for p in after.pods if p.node is None}
    rest = [d for d in second.decisions if d.reason not in moves_of_the_next(snapshot)]
    gives_up = all(d.new < d.old and set(d.remove) <= waiting for d in rest)
    assert gives_up or first.blocked.keys() - second.blocked.keys()


@calm
@given(snapshots(), st.integers(0, 1000))
def test_the_order_of_the_input_changes_nothing(snapshot: Snapshot, seed: int) -> None:
    random = Random(seed)
    shuffled = Snapshot(
        nodes=tuple(random.sample(snapshot.nodes, len(snapshot.nodes))),
        pods=tuple(random.sample(snapshot.pods, len(snapshot.pods))),
        jobs=tuple(random.sample(snapshot.jobs, len(snapshot.jobs))),
        queues=tuple(random.sample(snapshot.queues, len(snapshot.queues))),
    )
    assert plan(shuffled, NOW) == plan(snapshot, NOW)


def free_once_left(snapshot: Snapshot, made: Plan) -> dict[str, int]:
    """GPUs of each usable node once the leavers of now and of this plan are gone."""
    removed = {key for d in made.decisions for key in d.remove}
    extra: set[str] = set()
    for owner in snapshot.jobs:
        extra |= {p.key for p in told_to_leave(snapshot, owner)}
    free = {n.name: n.allocatable[GPU] // 1000 for n in snapshot.nodes if n.ready}
    for p in snapshot.pods:
        if p.node in free and not p.terminating and p.key not in removed | extra:
            free[p.node] -= p.requests[GPU] // 1000
    return free


@calm
@given(snapshots(mixed=False, units=False))
def test_no_minimum_that_could_start_waits_for_surplus(snapshot: Snapshot) -> None:
    """With pods of 1 GPU and one queue, arithmetic says what can start."""
    made = plan(snapshot, NOW)
    free = sum(free_once_left(snapshot, made).values())
    ready = {n.name for n in snapshot.nodes if n.ready}
    removed = {key for d in made.decisions for key in d.remove}
    owed = takeable = 0
    short: dict[str, int] = {}
    for owner in snapshot.jobs:
        alive = [p for p in snapshot.pods if p.job == owner.key and not p.terminating]
        leaving = beyond_desired(alive, owner)
        bound = [p for p in alive if p.node is not None and p not in leaving]
        leaderless = lacks_first(owner, bound)
        short[owner.key] = max(owner.min - len(bound), int(leaderless))
        if owner.key in made.admitted:
            owed += short[owner.key]
        stays = [p for p in bound if p.key not in removed]
        on_ready = sum(p.node in ready and p.index != 0 for p in stays)
        spare = min(len(stays), size_after(made, owner)) - owner.min
        takeable += max(0, min(on_ready, spare))
    assert owed <= free
    for key in made.blocked:
        assert free - owed + takeable < short[key]


@calm
@given(snapshots())
def test_queues_stay_within_their_capability(snapshot: Snapshot) -> None:
    made = plan(snapshot, NOW)
    for queue in snapshot.queues:
        if queue.capability is None:
            continue
        after, surplus = 0, 0
        removed = {key for d in made.decisions for key in d.remove}
        for owner in snapshot.jobs:
            if owner.queue != queue.name:
                continue
            each = owner.pod_requests[GPU] // 1000
            alive = [p for p in snapshot.pods if p.job == owner.key and not p.terminating]
            if size_after(made, owner) > owner.desired:
                after += each * (size_after(made, owner) - owner.desired)
            stay = sum(p.node is not None and p.key not in removed for p in alive)
            # Those beyond it are leaving already.
            stay = min(stay, owner.desired, size_after(made, owner))
            after += each * stay
            unit = owner.node_unit if each and not owner.unmodelled else 0
            least = size_after(made, owner) - unit >= owner.min and stay > owner.min
            surplus += bool(unit and least)
        limit = queue.capability[GPU] // 1000
        grew = any(
            d.new > d.old and j.queue == queue.name and d.reason is Reason.GREW_INTO_IDLE
            for d in made.decisions
            for j in snapshot.jobs
            if j.key == d.job
        )
        assert after <= limit or not grew
        assert after <= limit or not surplus, "who holds more than it may gives what it can"


@calm
@given(snapshots())
def test_growth_respects_the_cooldown_and_fits_into_idle_gpus(snapshot: Snapshot) -> None:
    made = plan(snapshot, NOW)
    jobs = {j.key: j for j in snapshot.jobs}
    free = {n.name: n.allocatable[GPU] // 1000 for n in snapshot.nodes if n.ready}
    for p in snapshot.pods:
        if p.node in free:
            free[p.node] -= p.requests[GPU] // 1000
    grown = 0
    for decision in made.decisions:
        owner = jobs[decision.job]
        if decision.reason is Reason.GREW_INTO_IDLE:
            grown += (decision.new - decision.old) * owner.pod_requests[GPU] // 1000
            assert owner.last_scale is None or NOW - owner.last_scale >= owner.cooldown
            assert decision.remove == ()
    assert grown <= sum(max(0, room) for room in free.values())


@calm
@given(snapshots(mixed=False, units=False))
def test_no_gpu_idles_that_an_unsated_job_could_use(snapshot: Snapshot) -> None:
    made = plan(snapshot, NOW)
    free = sum(
        n.allocatable[GPU] // 1000 - sum(p.node == n.name for p in snapshot.pods)
        for n in snapshot.nodes
        if n.ready
    )
    promised = 0
    for owner in snapshot.jobs:
        if owner.key in made.admitted:
            alive = [p for p in snapshot.pods if p.job == owner.key and not p.terminating]
            bound = [p for p in alive if p.node is not None]
            leaderless = lacks_first(owner, bound)
            promised += max(int(leaderless), size_after(made, owner) - len(bound))
    for key, stay in made.unchanged.items():
        if stay.why_not_more in (Reason.NO_ROOM, Reason.ROOM_OWED_TO_MINIMUM):
            owner = next(j for j in snapshot.jobs if j.key == key)
            assert free - promised < owner.node_unit


@calm
@given(snapshots(mixed=False))
def test_every_reason_to_stay_is_true(snapshot: Snapshot) -> None:
    """So that no job is sated, cooling or inefficient by mere assertion while GPUs idle."""
    made = plan(snapshot, NOW)
    jobs = {j.key: j for j in snapshot.jobs}
    bound: dict[str, set[int]] = {key: set() for key in jobs}
    unsettled = set()
    for p in snapshot.pods:
        if p.node is None or p.terminating:
            unsettled.add(p.job)
        else:
            bound[p.job or ""].add(p.index)
    waits = any(
        len(bound[k]) < j.min or (j.needs_first and 0 not in bound[k]) for k, j in jobs.items()
    )
    for key, stay in made.unchanged.items():
        owner = jobs[key]
        match stay.why_not_more:
            case Reason.AT_MAX:
                assert owner.desired + owner.node_unit > owner.max
            case Reason.COOLING_DOWN:
                assert owner.last_scale is not None
                assert NOW - owner.last_scale < max(owner.cooldown, timedelta(seconds=1))
            case Reason.WAITING_FOR_PODS:
                there = bound[key]
                assert key in unsettled or 0 not in there or len(there) != owner.desired
            case Reason.ROOM_OWED_TO_MINIMUM:
                assert waits
            case why:
                assert why is Reason.NO_ROOM
        match stay.why_not_less:
            case Reason.AT_MIN:
                assert owner.desired <= owner.min
            case Reason.NOBODY_WAITS:
                assert not waits and not made.blocked
            case less:
                assert less is Reason.NOT_NEEDED


@settings(max_examples=examples(60), deadline=None)
@given(snapshots())
def test_plan_apply_and_settle_come_to_rest(snapshot: Snapshot) -> None:
    now: datetime = NOW
    quiet = 0
    for _ in range(20):
        made = plan(snapshot, now)
        quiet = quiet + 1 if not made.decisions else 0
        if quiet == 3:
            break
        snapshot = settled(applied(snapshot, made, now))
        now += timedelta(seconds=61)
    assert quiet == 3
    usable = {n.name for n in snapshot.nodes}
    for n in (n for n in snapshot.nodes if n.ready):
        used = sum(p.requests[GPU] for p in snapshot.pods if p.node == n.name)
        assert used <= n.allocatable[GPU]
    assert all(p.node is None or p.node in usable for p in snapshot.pods)
