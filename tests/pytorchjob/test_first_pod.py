"""Worker 0 is away: who goes on without it, by what coordinators answer, and what becomes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pytorchjob.test_reconcile_properties import come_to_rest, pods
from tests.pytorchjob.world import World, job_object, resize, running
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.first_pod import PATIENCE, Answers, needs_first, silent, told
from volcano_elastic.pytorchjob.rendezvous import SUCCESSION, can_elect

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OURS = {"rdzvBackend": "volcano-elastic"}


def seconds(count: float) -> datetime:
    return NOW + timedelta(seconds=count)


# What coordinators say


def test_who_has_just_told_of_a_round_needs_no_worker_0_until_it_was_silent_for_a_while() -> None:
    known = told(Answers(), 1, NOW)
    assert not needs_first(known, NOW - PATIENCE)
    for late in (10, 20, 59.9):
        known = silent(known, seconds(late))
        assert not needs_first(known, NOW - PATIENCE)
    assert needs_first(silent(known, NOW + PATIENCE), NOW - PATIENCE)
    assert not needs_first(told(silent(known, NOW + PATIENCE), 1, NOW + PATIENCE), NOW)


def test_one_answer_may_be_late_however_seldom_questions_are_put() -> None:
    known = silent(told(Answers(), 1, NOW), seconds(100))
    assert not needs_first(known, NOW)
    assert needs_first(silent(known, seconds(200)), NOW)


def test_patience_begins_again_when_a_worker_0_is_given_up() -> None:
    known = told(Answers(left=NOW - timedelta(seconds=9)), 1, NOW)
    given_up = Answers(known.told, seconds(50), survivors=1)
    for late, needed in ((51, False), (109, False), (111, True)):
        given_up = silent(given_up, seconds(late))
        assert needs_first(given_up, NOW) == needed


def test_a_round_none_of_whose_containers_lives_on_is_waited_for_by_nobody() -> None:
    assert needs_first(told(Answers(), 0, NOW), NOW)
    assert not needs_first(told(Answers(), None, NOW), NOW)


def test_an_operator_that_begins_asks_for_a_while_before_it_takes_anybody_away() -> None:
    assert not needs_first(Answers(), NOW - 9 * PATIENCE), "nobody was asked yet"
    known = silent(Answers(), seconds(59))
    assert not needs_first(known, NOW)
    assert needs_first(silent(known, NOW + PATIENCE), NOW)
    assert needs_first(silent(Answers(), NOW), NOW - PATIENCE), "a job that never began a round"


@given(
    begun=st.integers(0, 300),
    words=st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=30),
)
def test_worker_0_is_needed_only_after_a_minute_of_silence_and_always_after_two(
    begun: int, words: list[tuple[int, bool]]
) -> None:
    known, at, began = Answers(), 0.0, seconds(-begun)
    heard = -float(begun)
    for wait, speaks in words:
        at += wait
        known = told(known, 1, seconds(at)) if speaks else silent(known, seconds(at))
        heard = at if speaks else heard
        needed = needs_first(known, began)
        assert not (needed and at - heard < 60)
        assert needed or at - heard < 120


# What becomes of the pods


@pytest.mark.parametrize(
    ("policy", "needed", "stays"),
    [
        (OURS, False, 1),
        (OURS | {"coordinator": "dedicated"}, False, 1),
        (OURS, True, 0),
        ({"rdzvBackend": "c10d"}, False, 0),
    ],
)
def test_without_room_for_pod_0_those_that_can_go_on_without_it_do(
    policy: dict[str, str], needed: bool, stays: int
) -> None:
    world = running(1, 3, policy=policy)
    world.grow(2)
    world.run_all()
    world.needs_first = needed
    world.lose("a-worker-0")
    assert world.created(world.step()) == ["a-worker-0"]
    assert world.protected("a-worker-0") == (stays == 0)
    assert world.protected("a-worker-1")
    world.resize = resize(2, 1)
    world.step()
    going = {name for name, pod in world.pods.items() if "deletionTimestamp" in pod["metadata"]}
    assert going == {f"a-worker-{1 - stays}"} & world.pods.keys()
    world.collect()
    assert f"a-worker-{stays}" in world.pods
    world.grow(2)
    world.run_all()
    assert {"a-worker-0", "a-worker-1"} == {name for name in world.pods if "worker" in name}
    world.settle()
    assert world.protected("a-worker-0")


def alone(policy: dict[str, Any] = OURS, **spec: Any) -> World:
    """A job that goes on with worker 1 alone, since nothing had room for worker 0."""
    world = running(1, 3, policy=policy, **spec)
    world.grow(2)
    world.run_all()
    world.needs_first = False
    world.lose("a-worker-0")
    world.step()
    world.resize = resize(2, 1, "a-worker-0")
    world.settle()
    assert [name for name in world.pods if "worker" in name] == ["a-worker-1"]
    return world


def test_a_survivor_that_can_no_longer_host_makes_room_for_worker_0() -> None:
    world = alone()
    world.needs_first = True
    actions = world.step()
    assert [x.name for x in actions if isinstance(x, a.DeletePod)] == ["a-worker-1"]
    assert world.created(actions) == ["a-worker-0"]
    world.collect()
    world.settle()
    assert world.live() == ["a-worker-0"] and world.protected("a-worker-0")


def test_worker_0_and_others_come_in_any_order_while_the_job_goes_on_without() -> None:
    world = alone()
    world.grow(3)
    assert set(world.live()) == {"a-worker-0", "a-worker-1", "a-worker-2"}
    world.run("a-worker-2")
    world.resize = resize(3, 2)
    world.settle()
    assert set(world.live()) == {"a-worker-1", "a-worker-2"}, "what holds nothing goes"


def test_a_job_whose_template_turns_elections_off_needs_its_pod_0() -> None:
    obj = job_object(elastic={"min": 1, "max": 2, **OURS})
    assert can_elect(parse(obj))
    template = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["env"] = [{"name": SUCCESSION, "value": "0"}]
    assert not can_elect(parse(obj))


@pytest.mark.parametrize("policy", [OURS, {"rdzvBackend": "c10d"}])
@pytest.mark.parametrize("needed", [False, True])
def test_worker_0_lost_for_good_fails_only_a_job_that_does_not_go_on(
    policy: dict[str, str], needed: bool
) -> None:
    world = running(1, 3, policy=policy, restartPolicy="Never")
    world.grow(3)
    world.run_all()
    world.needs_first = needed
    world.fail("a-worker-0")
    world.settle()
    assert world.ended == (needed or policy != OURS)
    if world.ended:
        return
    assert world.status["elastic"]["desired"] == 2
    assert set(world.live()) == {"a-worker-1", "a-worker-2"}
    world.grow(3)
    assert set(world.live()) == {"a-worker-1", "a-worker-2", "a-worker-3"}
    world.needs_first = True
    world.settle()
    assert world.ended, "nobody can host any more"


def test_worker_0_lost_for_good_fails_a_job_that_is_below_min_without_it() -> None:
    world = running(2, 3, policy=OURS, restartPolicy="Never")
    world.needs_first = False
    world.fail("a-worker-0")
    world.settle()
    assert world.ended and world.state == "Failed"


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=pods("pending", "running", "leaving", "evicting", "failed", "evicted"),
    low=st.integers(1, 3),
    more=st.integers(0, 3),
    desired=st.integers(1, 6),
    lost=st.sets(st.integers(0, 6)),
    dedicated=st.booleans(),
    turns=st.lists(st.booleans(), max_size=6),
    needed=st.booleans(),
)
@example([(1, "running", False)], 1, 1, 1, set(), False, [], False)
@example([(0, "leaving", False), (1, "running", False)], 1, 0, 1, set(), False, [], False)
@example([(0, "leaving", False), (1, "running", False)], 3, 0, 1, set(), False, [], False)
@example([(0, "pending", True), (1, "running", False)], 1, 1, 1, set(), False, [True], False)
def test_from_any_state_nobody_who_trains_goes_for_worker_0_unless_all_wait_for_it(
    before: list[tuple[int, str, bool]],
    low: int,
    more: int,
    desired: int,
    lost: set[int],
    dedicated: bool,
    turns: list[bool],
    needed: bool,
) -> None:
    policy = OURS | ({"coordinator": "dedicated"} if dedicated else {})
    world = World(job_object(elastic={"min": low, "max": low + more, **policy}), NOW)
    for index, state, protected in before:
        world.seed(index, state, protected=protected)
        if index in lost:
            world.lose(f"a-worker-{index}")
    world.job["status"] = {"elastic": {"desired": desired}}
    for turn in (*turns, needed):
        world.needs_first = turn
        actions = world.reconcile()
        trains = {
            name for name in world.live() if world.pods[name]["status"]["phase"] == "Running"
        } - {name for name, pod in world.pods.items() if pod["metadata"]["uid"] in world.lost}
        goes = {x.name for x in actions if isinstance(x, a.DeletePod)} & trains
        world.apply(actions)
        size = world.status["elastic"]["desired"]
        if not turn:
            assert len(goes) <= max(0, len(trains) - size), "one goes for a pod that is away"
        world.collect()
        world.now += timedelta(seconds=2)
    come_to_rest(world)
    live = [name for name in world.live() if "worker" in name]
    assert len(live) == world.status["elastic"]["desired"]
    assert "a-worker-0" in live or not needed
    assert sum(world.protected(name) for name in live) == low
