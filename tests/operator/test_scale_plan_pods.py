"""Pods that a ScalePlan names: which leave now, and what of the planner's decision stays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.operator.scale_plan_pods import resize
from volcano_elastic.pytorchjob.observed import Resize
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.snapshot.snapshot import Job, Pod

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(desired: int, least: int = 1, unit: int = 1) -> Job:
    return Job("team/a", "q", NOW, least, 8, desired, {"cpu": 1000}, node_unit=unit)


def pods(count: int, **more: Any) -> list[Pod]:
    return [
        Pod(f"team/a-worker-{i}", f"p{i}", {}, "team/a", index=i, node="n", **more)
        for i in range(count)
    ]


def plan(remove: tuple[int, ...] = (), migrate: tuple[int, ...] = ()) -> ScalePlan:
    def names(indexes: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(f"a-worker-{index}" for index in indexes)

    meant = {f"a-worker-{index}": f"p{index}" for index in (*remove, *migrate)}
    return ScalePlan("p", "team", "a", remove=names(remove), migrate=names(migrate), pods=meant)


def carried_out(
    plan: ScalePlan,
    job: Job,
    there: list[Pod],
    decision: Decision | None = None,
    mode: Mode = Mode.ACTIVE,
) -> Resize | None:
    return resize(plan, job, there, decision, QueuePolicy("q", mode=mode))


def test_named_pods_leave_with_the_size_and_then_others_are_made_anew() -> None:
    both = plan(remove=(1,), migrate=(2,))
    first = carried_out(both, job(4), pods(4))
    assert first is not None and (first.old, first.new) == (4, 3)
    assert (first.remove, first.move) == ({"a-worker-1"}, frozenset())
    assert first.message == "ScalePlan p removes a-worker-1"
    rest = [pod for pod in pods(4) if pod.index != 1]
    then = carried_out(both, job(3), rest)
    assert then is not None and (then.old, then.new, then.move) == (3, 3, {"a-worker-2"})
    anew = [*rest[:1], Pod("team/a-worker-2", "new", {}, "team/a", index=2), rest[2]]
    assert carried_out(both, job(3), anew) is None, "who came after isn't meant"


def test_nothing_is_done_while_pods_come_or_go_or_the_queue_is_held() -> None:
    named = plan(remove=(1,), migrate=(2,))
    assert carried_out(named, job(4), pods(3)) is None
    assert carried_out(named, job(4), pods(4, terminating=True)) is None
    assert carried_out(named, job(4), pods(4), mode=Mode.HOLD) is None
    assert carried_out(named, job(4), pods(4), mode=Mode.DRY_RUN) is None
    grows = Decision("team/a", 4, 6, Reason.GREW_INTO_IDLE, "it grows")
    assert carried_out(named, job(4), pods(4), grows) is None


def test_worker_0_is_not_removed_nor_any_below_the_least_or_within_a_unit() -> None:
    assert carried_out(plan(remove=(0,)), job(4), pods(4)) is None
    held = carried_out(plan(remove=(1, 2, 3)), job(4, least=2), pods(4))
    assert held is not None and (held.new, held.remove) == (2, {"a-worker-1", "a-worker-2"})
    assert carried_out(plan(remove=(1,)), job(4, unit=2), pods(4)) is None


def test_of_those_that_the_planner_has_leave_the_named_ones_are_first() -> None:
    leaving = ("team/a-worker-3", "team/a-worker-2")
    shrinks = Decision("team/a", 4, 2, Reason.LOWERED_TO_MAX, "it shrinks", remove=leaving)
    found = carried_out(plan(remove=(1,)), job(4), pods(4), shrinks)
    assert found is not None and (found.old, found.new) == (4, 2)
    assert found.remove == {"a-worker-1", "a-worker-3"}
    assert found.reason == "LoweredToMax"
    assert carried_out(plan(migrate=(1,)), job(4), pods(4), shrinks) is None


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sets(st.integers(0, 9)),
    st.sets(st.integers(0, 9)),
)
def test_the_size_stays_within_its_bounds_and_just_the_named_go(
    desired: int, least: int, unit: int, remove: set[int], migrate: set[int]
) -> None:
    least = min(least, desired)
    named = plan(tuple(sorted(remove)), tuple(sorted(migrate - remove)))
    found = carried_out(named, job(desired, least, unit), pods(desired))
    if found is None:
        return
    assert least <= found.new <= found.old == desired
    assert (found.old - found.new) % unit == 0 and len(found.remove) == found.old - found.new
    assert found.remove <= set(named.remove) - {"a-worker-0"}
    assert found.move <= set(named.migrate) and bool(found.move) != bool(found.remove)
