"""What each field of a queue policy and of a queue does to the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from planner_world import NOW, OPEN, applied, by_job, gpus, job, node, pod, pods, settled, world

from volcano_elastic.api.queue_policy import (
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
from volcano_elastic.queue_policy.decision import Plan, Reason, Stay
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.queue_policy.snapshot import Gang, Job, Pod, Queue, Requirement, Snapshot
from volcano_elastic.queue_policy.terms import weight

EIGHT = (node("n1", 8),)
LINEAR = {size: float(size) for size in range(1, 65)}


def ruled(snapshot: Snapshot, queue: str = "default", **fields: object) -> Snapshot:
    policy = replace(QueuePolicy(queue, name="rules"), **fields)  # type: ignore[arg-type]
    return replace(snapshot, policies=(*snapshot.policies, policy))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def alone(owner: Job, size: int, nodes: Iterable[object] = EIGHT, **fields: object) -> Snapshot:
    """`owner` with `size` running workers on the first of the nodes."""
    return ruled(world(nodes, [owner], pods(owner, *["n1"] * size)), **fields)  # type: ignore[arg-type]


def new_size(made: Plan, name: str) -> int | None:
    decision = by_job(made).get(name)
    return None if decision is None else decision.new


# Growth


def test_growth_stops_below_min_efficiency() -> None:
    a = job("a", 1, 8, speeds={1: 1.0, 2: 1.9, 4: 3.0, 8: 3.9})
    made = plan(alone(a, 1), NOW)
    assert new_size(made, "a") == 7
    free = plan(alone(a, 1, surplus=Surplus(min_efficiency=0)), NOW)
    assert new_size(free, "a") == 8


def test_a_measured_slowdown_undoes_the_last_step_and_is_remembered() -> None:
    speeds = {1: 1.0, 2: 1.9, 4: 3.4, 8: 2.9}
    a = job("a", 1, 8, 8, speeds=speeds, last_scale=NOW - seconds(61))
    made = plan(alone(a, 8), NOW)
    assert by_job(made)["a"].reason is Reason.SLOWED_DOWN
    assert new_size(made, "a") == 4
    smaller = replace(a, desired=4)
    assert plan(alone(smaller, 4), NOW).stays["ns/a"].why_not_more is Reason.INEFFICIENT


def test_a_little_slower_is_noise() -> None:
    a = job("a", 1, 8, 8, speeds={1: 1.0, 4: 3.4, 8: 3.38}, last_scale=NOW - seconds(61))
    assert plan(alone(a, 8), NOW).decisions == ()


def test_the_steeper_curve_gets_the_room() -> None:
    flat = {1: 1.0, 2: 1.3, 3: 1.5, 4: 1.6}
    a, b = job("a", 1, 4, speeds=flat), job("b", 1, 4, speeds=LINEAR)
    seen = world([node("n1", 5)], [a, b], pods(a, "n1"), pods(b, "n1"))
    made = plan(ruled(seen, surplus=Surplus(step=Step.ANY)), NOW)
    assert new_size(made, "b") == 4
    assert new_size(made, "a") is None


def test_a_young_job_counts_for_more() -> None:
    old, young = job("old", 2, 4, gpu_hours=99.0), job("young", 2, 4)
    seen = world([node("n1", 6)], [old, young], pods(old, "n1", "n1"), pods(young, "n1", "n1"))
    assert {k: d.new for k, d in by_job(plan(seen, NOW)).items()} == {"young": 4}


def test_youth_fades_evenly() -> None:
    """A sudden fall would take from a job in one moment what it was given in the one before."""
    policy = QueuePolicy("default")
    weights = [weight(job("a", 1, 2, gpu_hours=hours), policy) for hours in (0.0, 8.0, 16.0, 99.0)]
    assert weights == [8.0, 4.5, 1.0, 1.0]
    none = replace(policy, surplus=replace(policy.surplus, young_gpu_hours=0.0))
    assert weight(job("a", 1, 2), none) == 1.0


def test_order_equal_goes_to_the_smallest_whatever_the_curves() -> None:
    a = job("a", 1, 8, speeds=LINEAR)
    b = job("b", 1, 8, speeds={k: k**0.7 for k in range(1, 9)})
    seen = world([node("n1", 8)], [a, b], pods(a, "n1"), pods(b, "n1"))
    made = plan(ruled(seen, surplus=Surplus(order=Order.EQUAL, step=Step.ANY)), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (4, 4)


def test_order_priority_fills_the_highest_first() -> None:
    a, b = job("a", 1, 8), job("b", 1, 8, priority=5)
    seen = world([node("n1", 8)], [a, b], pods(a, "n1"), pods(b, "n1"))
    made = plan(ruled(seen, surplus=Surplus(order=Order.PRIORITY)), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (None, 7)


def test_steps_are_aligned_to_nodes_where_two_jobs_compete() -> None:
    nodes = [node(f"n{i}", 4) for i in range(1, 5)]
    a, b, c = (job(name, 4, 16, speeds=LINEAR) for name in "abc")
    placed = [pods(owner, *[f"n{i}"] * 4) for i, owner in enumerate((a, b, c), 1)]
    aligned = plan(ruled(world(nodes, [a, b, c], *placed)), NOW)
    assert sorted(d.new for d in aligned.decisions) == [8]
    any_step = ruled(world(nodes, [a, b, c], *placed), surplus=Surplus(step=Step.ANY))
    assert sorted(d.new for d in plan(any_step, NOW).decisions) == [5, 5, 6]


def test_max_step_limits_one_decision() -> None:
    made = plan(alone(job("a", 1, 8), 1, grow=Grow(max_step=3)), NOW)
    assert new_size(made, "a") == 4


def test_max_per_job_caps_growth_and_takes_back_what_is_above() -> None:
    most = Surplus(max_per_job=2)
    assert new_size(plan(alone(job("a", 1, 8), 1, surplus=most), NOW), "a") == 3
    made = plan(alone(job("a", 1, 8, 6), 6, surplus=most), NOW)
    assert (new_size(made, "a"), by_job(made)["a"].reason) == (3, Reason.LOWERED_TO_MAX)


@pytest.mark.parametrize(
    ("headroom", "size"), [(Headroom(amount=2000), 6), (Headroom(percent=50), 4)]
)
def test_headroom_stays_idle(headroom: Headroom, size: int) -> None:
    made = plan(alone(job("a", 1, 8), 1, headroom=headroom), NOW)
    assert new_size(made, "a") == size
    full = alone(job("a", 1, 8, size), size, headroom=headroom)
    assert plan(full, NOW).stays["ns/a"].why_not_more is Reason.HEADROOM_KEPT


def test_the_longer_cooldown_of_job_and_policy_counts() -> None:
    a = job("a", 1, 8, 2, cooldown=seconds(5), last_scale=NOW - seconds(30))
    assert new_size(plan(world(EIGHT, [a], pods(a, "n1", "n1")), NOW), "a") == 8
    held = alone(a, 2, grow=Grow(cooldown=seconds(60)))
    assert plan(held, NOW).stays["ns/a"].why_not_more is Reason.COOLING_DOWN
    assert new_size(plan(held, NOW + seconds(30)), "a") == 8


def test_scaler_none_grows_without_curves_and_hpa_up_to_its_wish() -> None:
    slow = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.0}
    assert new_size(plan(alone(job("a", 1, 8, speeds=slow, scaler="none"), 1), NOW), "a") == 8
    hpa = job("a", 1, 8, scaler="hpa", replicas=5)
    assert new_size(plan(alone(hpa, 1), NOW), "a") == 5
    lowered = plan(alone(replace(hpa, desired=7), 7), NOW)
    assert new_size(lowered, "a") == 5


def test_growth_that_does_not_pay_for_the_pause_waits() -> None:
    a = job("a", 1, 64, 60, speeds={k: k**0.5 for k in range(1, 65)}, pause=seconds(600))
    seen = alone(a, 60, [node("n1", 64)], surplus=Surplus(min_efficiency=0))
    assert plan(seen, NOW).stays["ns/a"].why_not_more is Reason.NOT_WORTH_A_PAUSE


# Modes


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        (Mode.ACTIVE, {"a": 3, "c": 4}),
        (Mode.HOLD, {}),
        (Mode.HOLD_AND_DRAIN, {"a": 1}),
        (Mode.OFF, {}),
    ],
)
def test_modes(mode: Mode, sizes: dict[str, int]) -> None:
    a, c = job("a", 1, 3, 2), job("c", 1, 4)
    made = plan(ruled(world(EIGHT, [a, c], pods(a, "n1", "n1"), pods(c, "n1")), mode=mode), NOW)
    assert {name: d.new for name, d in by_job(made).items()} == sizes


@pytest.mark.parametrize(("mode", "gives"), [(Mode.HOLD, True), (Mode.OFF, False)])
def test_hold_gives_to_claims_and_off_does_not(mode: Mode, gives: bool) -> None:
    a, b = job("a", 1, 8, 8), job("b", 1, 1)
    made = plan(ruled(world(EIGHT, [a, b], pods(a, *["n1"] * 8)), mode=mode), NOW)
    assert new_size(made, "a") == (7 if gives else None)
    assert ("ns/b" in made.blocked) is not gives


def test_dry_run_shows_what_it_would_do_and_counts_on_nothing_of_it() -> None:
    a, b = job("a", 1, 8, 8), job("b", 1, 1)
    made = plan(ruled(world(EIGHT, [a, b], pods(a, *["n1"] * 8)), mode=Mode.DRY_RUN), NOW)
    assert (new_size(made, "a"), by_job(made)["a"].dry_run) == (7, True)
    assert set(made.blocked) == {"ns/b"}


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.HOLD_AND_DRAIN])
def test_surplus_without_a_place_is_given_up_in_every_mode(mode: Mode) -> None:
    a = job("a", 1, 4, 2)
    seen = ruled(world(EIGHT, [a], [pod(a, 0, "n1"), pod(a, 1, None, age=31)]), mode=mode)
    decision = by_job(plan(seen, NOW))["a"]
    assert (decision.reason, decision.dry_run) == (Reason.SURPLUS_UNPLACED, False)


def test_an_unmodelled_job_is_neither_grown_nor_shrunk_nor_shrunk_for() -> None:
    a, b = job("a", 1, 8, 4, unmodelled="resourceClaims"), job("b", 6, 6)
    seen = world(EIGHT, [a, b], pods(a, *["n1"] * 4))
    made = plan(seen, NOW)
    assert made.decisions == ()
    assert made.stays["ns/a"] == Stay(Reason.UNMODELLED, Reason.UNMODELLED)
    turned = world(
        EIGHT,
        [replace(a, unmodelled=""), replace(b, unmodelled="resourceClaims")],
        pods(a, *["n1"] * 4),
    )
    assert "resourceClaims" in plan(turned, NOW).blocked["ns/b"]


# Shrinking


def test_protect_seconds_delay_a_claim_and_say_so() -> None:
    a, b = job("a", 1, 8, 8), job("b", 1, 1)
    fresh = [replace(p, created=NOW - seconds(10)) for p in pods(a, *["n1"] * 8)]
    seen = ruled(world(EIGHT, [a, b], fresh), shrink=Shrink(protect=seconds(20)))
    assert "protectSeconds" in plan(seen, NOW).blocked["ns/b"]
    assert new_size(plan(seen, NOW + seconds(10)), "a") == 7


def test_protection_moves_to_a_running_pod_before_a_protected_one_leaves() -> None:
    nodes = [node("n1", labels={"zone": "x"}), node("n2", 3)]
    a = job("a", 2, 5, 5)
    b = job("b", 1, 1, node_selector={"zone": "x"})
    mine = [pod(a, 1, "n1"), *(pod(a, i, "n2") for i in (0, 2, 3))]
    mine.append(pod(a, 4, "n1", protected=True))
    decision = by_job(plan(world(nodes, [a, b], mine), NOW))["a"]
    assert decision.remove == ("ns/a-worker-4",)
    assert decision.protect == ()
    sole = [replace(p, protected=p.index in (0, 1)) for p in mine if p.index != 4]
    moved = by_job(
        plan(
            world(
                [node("n1", 1, labels={"zone": "x"}), nodes[1]], [replace(a, desired=4), b], sole
            ),
            NOW,
        )
    )["a"]
    assert (moved.remove, moved.protect) == (("ns/a-worker-1",), ("ns/a-worker-2",))


def test_required_node_affinity_counts_for_fit() -> None:
    nodes = [node("n1", 2, labels={"gpu": "h100"}), node("n2", 2, labels={"gpu": "t4"})]
    wants = ((Requirement("gpu", "In", ("h100",)),),)
    a, b = job("a", 1, 4, 4), job("b", 1, 1, node_affinity=wants)
    made = plan(world(nodes, [a, b], pods(a, "n2", "n2", "n1", "n1")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-3",)
    c = job("c", 1, 4, node_affinity=((Requirement("gpu", "NotIn", ("h100",)),),))
    assert new_size(plan(world(nodes, [c], pods(c, "n2")), NOW), "c") == 2


# Rebalancing


def unequal() -> tuple[Job, Job, Snapshot]:
    """a has nearly all of the node and b one GPU; both scale alike."""
    a = job("a", 1, 8, 7, speeds=LINEAR, created=NOW - timedelta(hours=2), gpu_hours=99.0)
    b = job("b", 1, 8, speeds=LINEAR, created=NOW - timedelta(hours=2), gpu_hours=99.0)
    return a, b, world(EIGHT, [a, b], pods(a, *["n1"] * 7), pods(b, "n1"))


def test_gpus_move_to_who_gains_most_and_then_stay() -> None:
    _, _, seen = unequal()
    seen = ruled(seen, surplus=Surplus(step=Step.ANY), rebalance=Rebalance(gap=1))
    made = plan(seen, NOW)
    decision = by_job(made)["a"]
    assert decision.reason is Reason.REBALANCED
    assert "b gains more" in decision.message
    after, now = settled(applied(seen, made, NOW)), NOW + seconds(1)
    for _ in range(6):
        now += seconds(61)
        next_made = plan(after, now)
        after = settled(applied(after, next_made, now))
    assert sorted(j.desired for j in after.jobs) == [4, 4]
    assert plan(after, now + seconds(61)).decisions == ()


def test_rebalancing_needs_the_gap_the_payback_and_the_cooldown() -> None:
    a, b, seen = unequal()
    assert plan(ruled(seen, rebalance=Rebalance(gap=0)), NOW).decisions == ()
    assert plan(ruled(seen, rebalance=Rebalance(gap=40)), NOW).decisions == ()
    slow = [replace(j, pause=timedelta(hours=9)) for j in (a, b)]
    assert plan(ruled(replace(seen, jobs=tuple(slow))), NOW).decisions == ()
    recent = job(
        "c", 1, 1, last_scale=NOW - seconds(30), last_reason=Reason.REBALANCED, created=NOW
    )
    third = replace(seen, jobs=(*seen.jobs, recent), pods=(*seen.pods, pod(recent, 0, "n2")))
    assert plan(ruled(third), NOW).decisions == ()
    assert plan(ruled(third), NOW + seconds(31)).decisions != ()


# Queues


def test_an_ancestors_capability_limits_its_children_together() -> None:
    tree = (
        Queue("top", capability=gpus(4)),
        Queue("left", parent="top"),
        Queue("right", parent="top"),
    )
    a, b = job("a", 1, 8, queue="left"), job("b", 1, 8, queue="right")
    made = plan(world(EIGHT, [a, b], pods(a, "n1"), pods(b, "n1"), queues=tree), NOW)
    assert sum(d.new for d in made.decisions) == 4
    c = job("c", 1, 1, queue="right")
    full = [replace(a, desired=3), b, c]
    shrunk = plan(world(EIGHT, full, pods(a, *["n1"] * 3), pods(b, "n1"), queues=tree), NOW)
    assert new_size(shrunk, "a") == 2


@pytest.mark.parametrize("parents", [("x", "y"), ("y", "x"), ("default", "z")])
def test_parents_in_a_ring_stop_no_plan(parents: tuple[str, str]) -> None:
    """Nothing forbids them; whatever hangs below still counts in what is above it."""
    x = Queue("x", parent=parents[0], capability=gpus(3), guarantee=gpus(1))
    tree = (*OPEN, x, Queue("y", parent=parents[1], guarantee=gpus(1)), Queue("z", parent="y"))
    below, other = job("below", 1, 8, queue="x"), job("other", 1, 8)
    seen = world(EIGHT, [below, other], pods(below, "n1"), pods(other, "n1"), queues=tree)
    made = plan(seen, NOW)
    assert new_size(made, "below") == 3
    # y's guarantee stays free.
    assert new_size(made, "other") == 4


def test_the_guarantee_of_a_sibling_is_kept_within_the_parent() -> None:
    tree = (
        Queue("top", capability=gpus(6)),
        Queue("left", parent="top"),
        Queue("right", parent="top", guarantee=gpus(2)),
    )
    a = job("a", 1, 8, queue="left")
    made = plan(world(EIGHT, [a], pods(a, "n1"), queues=tree), NOW)
    assert new_size(made, "a") == 4


def test_proportion_divides_by_weight_what_all_want() -> None:
    queues = (Queue("p", weight=1), Queue("q", weight=3), Queue("idle", weight=9))
    a, b = job("a", 1, 8, queue="p"), job("b", 1, 8, queue="q")
    seen = world(EIGHT, [a, b], pods(a, "n1"), pods(b, "n1"), queues=queues)
    made = plan(replace(seen, proportion=True), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (2, 6)
    small = replace(seen, jobs=(a, replace(b, max=3)), proportion=True)
    assert new_size(plan(small, NOW), "a") == 5


def test_the_borrowing_limit_caps_minimums_too() -> None:
    queues = (Queue("default", deserved=gpus(2)),)
    a, b = job("a", 1, 8, 3), job("b", 1, 1)
    seen = world(EIGHT, [a, b], pods(a, *["n1"] * 3), queues=queues)
    made = plan(ruled(seen, borrowing_limit=1000), NOW)
    assert new_size(made, "a") == 2
    assert plan(ruled(seen, borrowing_limit=2000), NOW).decisions == ()


def test_figures_say_what_a_queue_holds_and_owes() -> None:
    queues = (Queue("default", deserved=gpus(3)), Queue("empty"))
    a, b = job("a", 1, 8, 5), job("b", 2, 2)
    made = plan(world(EIGHT, [a, b], pods(a, *["n1"] * 5), queues=queues), NOW)
    figures = made.queues["default"]
    assert (figures.free, figures.guaranteed, figures.surplus) == (3000, 1000, 4000)
    assert (figures.borrowed, figures.owed_to_minimums, figures.jobs) == (2000, 2000, 2)
    assert made.queues["empty"].jobs == 0


# Patience


def turns(snapshot: Snapshot, *moments: float) -> list[Plan]:
    """Plans at these seconds, each with the memory of the one before."""
    found: list[Plan] = []
    for moment in moments:
        found.append(plan(snapshot, NOW + seconds(moment)))
        snapshot = replace(snapshot, memory=found[-1].memory)
    return found


def test_a_claim_that_has_room_and_does_not_start_is_set_aside_for_longer_each_time() -> None:
    a, stuck = job("a", 1, 8), job("stuck", 4, 4)
    seen = world(EIGHT, [a, stuck], pods(a, "n1"), pods(stuck, *[None] * 4))
    made = turns(ruled(seen, mode=Mode.HOLD), 0, 14, 15, 74, 75, 90, 209, 211)
    assert ["ns/stuck" in each.blocked for each in made] == [
        False, False, True, True, False, True, True, False,
    ]  # fmt: skip
    assert "did not start" in made[2].blocked["ns/stuck"]
    (_, _, aside) = turns(seen, 0, 14, 15)
    assert new_size(aside, "a") == 8


def test_a_claim_whose_victims_still_leave_is_not_set_aside() -> None:
    a, b = job("a", 1, 8, 8), job("b", 2, 2)
    start = world(EIGHT, [a, b], pods(a, *["n1"] * 8))
    first = plan(start, NOW)
    waiting = applied(start, first, NOW)
    assert plan(replace(waiting, memory=first.memory), NOW + seconds(20)).blocked == {}


def others(count: int, gang: str | None) -> list[Pod]:
    """Pods of 2 GPUs that wait, and are no job's."""
    owner = job("other", 1, 1, pod_requests=gpus(2))
    return [pod(owner, i, None, job=None, gang=gang) for i in range(count)]


@pytest.mark.parametrize("gang", [None, "ns/other"], ids=["nobody's", "of a gang of three"])
def test_room_is_not_kept_for_ever_for_pods_that_do_not_take_it(gang: str | None) -> None:
    """A volume that isn't there, say, or a gang whose other pods never come."""
    a = job("a", 1, 8)
    seen = world(EIGHT, [a], pods(a, "n1"), others(2, gang))
    seen = replace(seen, gangs=(Gang("ns/other", "default", 3, NOW),) if gang else ())
    made = turns(seen, 0, 14, 15, 74, 76)
    assert [new_size(each, "a") for each in made] == [4, 4, 8, 8, 4]


def test_no_room_is_kept_for_pods_that_their_queue_has_none_for() -> None:
    a, queues = job("a", 1, 8), (Queue("default"), Queue("small", capability=gpus(2)))
    seen = world(EIGHT, [a], pods(a, "n1"), others(2, "ns/other"), queues=queues)
    gang = Gang("ns/other", "small", 0, NOW)
    assert new_size(plan(replace(seen, gangs=(gang,)), NOW), "a") == 6
    closed = (queues[0], replace(queues[1], open=False))
    assert new_size(plan(replace(seen, gangs=(gang,), queues=closed), NOW), "a") == 8


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.DRY_RUN])
def test_half_a_unit_that_runs_stays_where_nothing_may_be_changed(mode: Mode) -> None:
    a = job("a", 2, 8, 6, node_unit=2)
    seen = world([node("n1", 5)], [a], pods(a, *["n1"] * 5))
    assert new_size(plan(seen, NOW), "a") == 4
    made = plan(ruled(seen, mode=mode), NOW)
    assert [d for d in made.decisions if not d.dry_run] == []


def test_gangs_of_others_go_by_priority_and_count_the_pods_they_have() -> None:
    vcjob = Gang("ns/other", "default", 4, NOW, priority=5, pod_requests=gpus(2))
    first = job("first", 4, 4, created=NOW - timedelta(days=1))
    seen = replace(world(EIGHT, [first], others(2, "ns/other")), gangs=(vcjob,))
    assert plan(seen, NOW).blocked.keys() == {"ns/first"}
    assert plan(replace(seen, nodes=(node("n1", 12),)), NOW).blocked == {}
    seen = replace(seen, gangs=(replace(vcjob, priority=-1),))
    assert plan(seen, NOW).blocked.keys() == {"ns/other"}


def test_headroom_is_left_in_the_queues_above_too() -> None:
    queues = (Queue("team", capability=gpus(5)), Queue("default", parent="team"))
    a = job("a", 1, 8)
    seen = world(EIGHT, [a], pods(a, "n1"), queues=queues)
    assert new_size(plan(ruled(seen, headroom=Headroom(1000)), NOW), "a") == 4


def blocking(first: datetime, second: datetime) -> tuple[Snapshot, Job, Job]:
    """Two gangs of two that have one pod each on a node of two."""
    a, b = job("a", 2, 2, created=first), job("b", 2, 2, created=second)
    halves: list[Pod] = [pod(a, 0, "n1"), pod(b, 0, "n1"), pod(a, 1, None), pod(b, 1, None)]
    return world([node("n1", 2)], [a, b], halves), a, b


def test_of_gangs_that_block_each_other_the_least_entitled_gives_up_all_its_pods() -> None:
    seen, _, _ = blocking(NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    early, late = turns(seen, 0, 60)
    assert early.decisions == () and set(early.blocked) == {"ns/a", "ns/b"}
    (decision,) = late.decisions
    assert (decision.job, decision.new, decision.reason) == ("ns/b", 2, Reason.GAVE_UP_MINIMUM)
    assert set(decision.remove) == {"ns/b-worker-0", "ns/b-worker-1"}
    assert set(late.blocked) == {"ns/b"}
    after = settled(applied(seen, late, NOW + seconds(60)))
    assert {p.job for p in after.pods if p.node} == {"ns/a"}


def test_a_gang_is_not_given_up_where_that_helps_nobody() -> None:
    seen, a, _ = blocking(NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    larger = replace(a, min=4, max=4, desired=4)
    seen = replace(seen, jobs=(larger, *seen.jobs[1:]))
    assert turns(seen, 0, 61)[-1].decisions == ()


def test_surplus_that_finds_no_place_again_rests_twice_as_long() -> None:
    a = job("a", 1, 4, 1, cooldown=seconds(60))
    seen, now = world([node("n1", 4)], [a], pods(a, "n1")), NOW
    rests: list[float] = []
    gave_up = NOW
    for _ in range(3):
        made = plan(seen, now)
        while not made.decisions:
            now += seconds(1)
            made = plan(seen, now)
        if seen.memory.unplaced:
            rests.append((now - gave_up).total_seconds())
        seen = applied(seen, made, now)
        now += seconds(31)
        made = plan(seen, now)
        assert by_job(made)["a"].reason is Reason.SURPLUS_UNPLACED
        seen, gave_up = applied(seen, made, now), now
    assert rests == [60, 120]


def test_the_first_growth_has_no_cooldown_even_in_a_policy() -> None:
    assert new_size(plan(alone(job("a", 1, 4), 1, grow=Grow(cooldown=seconds(300))), NOW), "a") == 4
