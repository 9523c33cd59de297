"""A newcomer follows for no longer than it is worth, whatever comes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_trainer.feed.following import (
    BRIEF_SECONDS,
    LEAST_SECONDS,
    MOST_WAIT,
    NEAR,
    STILL_GROWING,
    STILL_MISSED,
    Course,
    Decision,
    count_missing,
    decide,
    wait_seconds,
)
from hypothesis import given, settings
from hypothesis import strategies as st

GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class World:
    """How fast everything goes, as a simulation has it; by step, going round."""

    state_bytes: int
    bytes_per_second: float
    step_seconds: tuple[float, ...]
    replay_seconds: tuple[float, ...]
    staying: int
    newcomers: int
    missed: bool

    @property
    def still(self) -> float:
        return STILL_MISSED if self.missed else STILL_GROWING

    @property
    def nodes(self) -> int:
        return self.staying + self.newcomers

    @property
    def whole_seconds(self) -> float:
        return self.state_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Outcome:
    cost: float
    """Seconds of a node: absent newcomers, waiting steps, and all standing still."""
    pause: float
    """Seconds that all stand still as it joins."""
    decision: Decision
    last: Course
    """The course by which that was decided."""


MOST_STEPS = 3000


def follow(world: World, *, decides: bool = True, waits: bool = True) -> Outcome:
    """Simulate a newcomer's way.

    Args:
        decides: else it follows until it is near, however long that takes.
        waits: steps may wait for it.
    """
    now = lost = 0.0
    copied = world.whole_seconds
    made, done, steps = -1.0, copied, 0
    """Steps that the newcomer has made again, when it had made the last one; and the others'."""
    begun: list[float] = []
    while True:
        step = world.step_seconds[steps % len(world.step_seconds)]
        replay = world.replay_seconds[steps % len(world.replay_seconds)]
        if now >= copied:
            made = max(made, 0.0)
        while made >= 0 and made < steps:
            ends = max(done, begun[int(made)]) + replay
            if ends > now:
                break
            made, done = made + 1, ends
        course = Course(
            state_bytes=world.state_bytes,
            seconds=now,
            lost=lost,
            staying=world.staying,
            newcomers=world.newcomers,
            missed=world.missed,
            behind=None if made < 0 else steps - int(made),
            copy_seconds=max(0.0, copied - now),
            replay_seconds=replay if made > 0 else 0.0,
            step_seconds=step,
            bytes_per_second=world.bytes_per_second,
        )
        decision = decide(course) if decides or course.near else Decision.FOLLOW
        if decision is not Decision.FOLLOW or steps > MOST_STEPS:
            behind = course.behind_seconds if decision is Decision.JOIN else 0.0
            pause = world.whole_seconds if decision is Decision.TAKE_WHOLE else behind
            spent = world.newcomers * now + world.staying * lost
            return Outcome(spent + world.still * world.nodes * pause, pause, decision, course)
        wait = wait_seconds(course) if waits else 0.0
        now += step + wait
        lost += wait
        begun.append(now)
        steps += 1


SPEEDS = st.floats(1e7, 1e10)
SECONDS = st.floats(0.01, 30.0)
WORLDS = st.builds(
    World,
    state_bytes=st.integers(1 << 25, 200 * GB),
    bytes_per_second=SPEEDS,
    step_seconds=st.tuples(SECONDS),
    replay_seconds=st.tuples(SECONDS),
    staying=st.integers(1, 64),
    newcomers=st.integers(1, 8),
    missed=st.booleans(),
)
CHANGING = st.builds(
    replace,
    WORLDS,
    step_seconds=st.lists(SECONDS, min_size=1, max_size=5).map(tuple),
    replay_seconds=st.lists(SECONDS, min_size=1, max_size=5).map(tuple),
)


def at_once(world: World) -> float:
    """Return what it costs to have all wait for the state as the newcomer comes."""
    return world.still * world.nodes * world.whole_seconds


def one_step(world: World) -> float:
    """Return what the longest step costs, in whose midst nothing is decided."""
    longest = (1 + MOST_WAIT) * max(world.step_seconds)
    return world.nodes * longest


@settings(max_examples=300, deadline=None)
@given(WORLDS)
def test_following_costs_little_more_than_twice_the_better_way(world: World) -> None:
    found = follow(world)
    to_the_end = follow(world, decides=False, waits=False)
    best = min(at_once(world), to_the_end.cost if to_the_end.last.near else float("inf"))
    least = world.newcomers * LEAST_SECONDS + world.still * world.nodes * BRIEF_SECONDS
    near = world.still * world.nodes * NEAR * max(world.replay_seconds)
    assert found.cost <= 2 * best + least + one_step(world) + near


@settings(deadline=None)
@given(CHANGING)
def test_no_speeds_cost_more_than_twice_waiting_at_once(world: World) -> None:
    found = follow(world)
    least = world.newcomers * LEAST_SECONDS + world.still * world.nodes * BRIEF_SECONDS
    near = world.still * world.nodes * NEAR * max(world.replay_seconds)
    assert found.cost <= 2 * at_once(world) + least + one_step(world) + near


@settings(deadline=None)
@given(CHANGING)
def test_a_join_never_stands_still_for_longer_than_the_whole_state_takes(world: World) -> None:
    found = follow(world)
    near = NEAR * max(world.replay_seconds)
    assert found.pause <= max(world.whole_seconds, BRIEF_SECONDS, near)


@settings(deadline=None)
@given(WORLDS)
def test_a_newcomer_that_comes_near_in_a_moment_is_not_kept_from_it(world: World) -> None:
    """So the join of a small state pauses the others no longer than if it followed for ever."""
    to_the_end = follow(world, decides=False)
    moment = world.newcomers * LEAST_SECONDS
    if to_the_end.last.near and to_the_end.last.spent + one_step(world) < moment:
        assert follow(world).pause <= to_the_end.pause


COURSES = st.builds(
    Course,
    state_bytes=st.integers(0, 200 * GB),
    seconds=st.floats(0, 1e4),
    lost=st.floats(0, 1e3),
    staying=st.integers(1, 4096),
    newcomers=st.integers(1, 64),
    missed=st.booleans(),
    behind=st.none() | st.integers(0, 50),
    copy_seconds=st.floats(0, 1e4),
    replay_seconds=st.just(0.0) | SECONDS,
    step_seconds=st.just(0.0) | SECONDS,
    bytes_per_second=SPEEDS,
)


@given(COURSES, st.integers(0, 100 * GB))
def test_a_larger_state_is_followed_for_longer(course: Course, more: int) -> None:
    larger = replace(course, state_bytes=course.state_bytes + more)
    if decide(course) is Decision.FOLLOW:
        assert decide(larger) is Decision.FOLLOW
    if decide(larger) is Decision.TAKE_WHOLE:
        assert decide(course) is Decision.TAKE_WHOLE


@given(COURSES, st.floats(0, 1e4), st.floats(0, 1e3))
def test_what_was_decided_stays_right_as_time_passes(
    course: Course, seconds: float, lost: float
) -> None:
    later = replace(course, seconds=course.seconds + seconds, lost=course.lost + lost)
    if decide(course) is not Decision.FOLLOW:
        assert decide(later) is decide(course)


@given(COURSES)
def test_a_job_that_grows_follows_where_one_that_misses_a_node_does(course: Course) -> None:
    if decide(replace(course, missed=True)) is Decision.FOLLOW:
        assert decide(replace(course, missed=False)) is Decision.FOLLOW


@given(COURSES, st.booleans())
def test_no_step_waits_for_long_nor_once_it_has_cost_enough(course: Course, full: bool) -> None:
    waits = wait_seconds(course, full=full)
    assert 0.0 <= waits <= MOST_WAIT * course.step_seconds
    if course.near or course.spent >= course.most:
        assert waits == 0.0


def test_steps_wait_only_for_who_comes_no_nearer_by_itself() -> None:
    behind = Course(GB, 1.0, 0.0, 1, 1, missed=False, behind=5, step_seconds=1.0)
    assert wait_seconds(replace(behind, replay_seconds=0.4)) == 0.0
    assert wait_seconds(replace(behind, replay_seconds=0.8)) == 2 * 0.8 - 1.0
    assert wait_seconds(replace(behind, replay_seconds=2.9)) == MOST_WAIT
    assert wait_seconds(replace(behind, replay_seconds=3.0)) == 0.0, "it would come no nearer"
    many = replace(behind, staying=63)
    assert wait_seconds(replace(many, replay_seconds=0.8)) == 0.0
    assert wait_seconds(replace(many, replay_seconds=0.8), full=True) == MOST_WAIT


def test_a_lost_node_is_had_back_by_a_standstill_where_memory_comes_slowly() -> None:
    """1 GB, two nodes, and seven seconds until there is memory for a copy and steps."""
    course = Course(GB, 0.1, 0.0, 1, 1, missed=True, copy_seconds=7.0)
    assert decide(course) is Decision.TAKE_WHOLE
    assert decide(replace(course, missed=False)) is Decision.FOLLOW


def test_who_is_lost_is_missed_until_as_many_have_come() -> None:
    missing = count_missing(0, 3, 2, stood=False)
    assert missing == 1
    assert count_missing(missing, 2, 2, stood=True) == 1
    assert count_missing(missing, 2, 3, stood=True) == 0
    assert count_missing(missing, 2, 1, stood=True) == 1, "who leaves is not lost"
    assert count_missing(0, 0, 3, stood=False) == 0, "the first round"
