"""Modes of a queue policy: what each does to the plan, and how surplus is taken and moved."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.queue_policy.world import (
    EIGHT,
    LINEAR,
    NOW,
    applied,
    by_job,
    job,
    new_size,
    node,
    pod,
    pods,
    ruled,
    seconds,
    settled,
    world,
)
from volcano_elastic.api.queue_policy import Mode, Rebalance, Shrink, Step, Surplus
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Requirement, Snapshot

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
    assert made.unchanged["ns/a"] == NoChange(Reason.UNMODELLED, Reason.UNMODELLED)
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


def test_rebalancing_rests_whatever_else_has_changed_its_giver_since() -> None:
    _, _, seen = unequal()
    seen = ruled(seen)
    made = plan(seen, NOW)
    assert {d.reason for d in made.decisions} == {Reason.REBALANCED}
    # Nobody has carried it out, and another change is the last that the jobs tell of.
    jobs = [replace(j, last_scale=NOW, last_reason=Reason.GREW_INTO_IDLE) for j in seen.jobs]
    jobs = [replace(j, cooldown=seconds(0)) for j in jobs]
    later = replace(seen, jobs=tuple(jobs), memory=made.memory)
    rested = plan(later, NOW + seconds(59))
    assert rested.decisions == () and rested.memory.rebalanced == {"default": NOW}
    assert plan(replace(later, memory=rested.memory), NOW + seconds(61)).decisions != ()


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
