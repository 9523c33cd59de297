"""No step for long: ranks are looked at, and what hangs is ended, while what works goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence

from elastic_trainer.coordinator.hang import (
    KEPT,
    KEPT_STACKS,
    LONGEST,
    MEDIANS,
    WORKING,
    Hang,
    StepWatch,
    as_json,
    judge,
    with_hang,
)
from elastic_trainer.coordinator.model import Phase, Tick
from elastic_trainer.coordinator.status import status
from elastic_trainer.protocol.message import (
    Dismissed,
    Goodbye,
    Inspect,
    Inspected,
    Join,
    Progress,
    RoundOver,
    Transferring,
    WorkerReport,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.world import Job

STACK = "process 7, state S\nThread 0x1 (most recent call first):\n  File train.py, line 3"


def rank(number: int, **more: object) -> WorkerReport:
    fields = {"rank": number, "step": 20, "collectives": 42, "answers": True, "stack": STACK}
    return WorkerReport(**{**fields, **more})  # type: ignore[arg-type]


def trained(*indexes: int, seconds: float = 0.5) -> Job:
    """A round that has made 20 steps, and makes no more."""
    job = Job(min_nodes=1, max_nodes=len(indexes)).running(*indexes)
    for step in range(1, 21):
        job.pass_time(seconds)
        job.say("a0", Progress(1, step))
    return job


def asked(job: Job) -> list[str]:
    return sorted(
        name for name, heard in job.heard.items() if any(isinstance(m, Inspect) for m in heard)
    )


def test_a_round_without_a_step_is_looked_at_and_ended_and_the_rank_behind_is_named() -> None:
    job = trained(0, 1, 2)
    job.pass_time(59.0)
    assert not asked(job)
    job.pass_time(1.5)
    assert asked(job) == ["a0", "a1", "a2"] and job.state.phase is Phase.RUNNING
    for index in (0, 1, 2):
        job.say(f"a{index}", Inspected(1, (rank(index, collectives=42 - (index == 1)),)))
    assert job.state.phase is Phase.RESTARTING and job.last("a1", RoundOver)
    assert "rank 1 is behind: at collective 41, others at 42" in job.state.reason
    (told,) = status(job.state, "ns/job", job.now, job.now)["hangs"]
    assert (told["behind"], told["step"], told["broken"]) == ([1], 20, True)
    assert told["stacks"] == [{"ranks": [1, 0, 2], "stack": STACK}]
    json.dumps(told)


def test_a_rank_without_a_step_in_its_round_is_named_so_and_not_by_a_number() -> None:
    job = trained(0, 1)
    job.pass_time(61.0)
    for index in (0, 1):
        job.say(f"a{index}", Inspected(1, (rank(index, step=20 if index else -1),)))
    assert "rank 0 is behind: in the round's first step, others at 20" in job.state.reason


def test_agents_that_do_not_answer_are_not_waited_for() -> None:
    job = trained(0, 1)
    job.pass_time(61.0)
    job.say("a0", Inspected(1, (rank(0),)))
    job.pass_time(9.0)
    assert job.state.phase is Phase.RUNNING
    job.pass_time(1.5)
    assert job.state.phase is Phase.RESTARTING
    assert "worker 1 did not report" in job.state.hangs[-1].words


def test_an_evaluation_that_computes_is_waited_for_ten_times_as_long() -> None:
    job = trained(0, 1)
    job.pass_time(61.0)
    for index in (0, 1):
        job.say(f"a{index}", Inspected(1, (rank(index, collectives=42 - index, cpus=1.0 * index),)))
    assert job.state.phase is Phase.RUNNING and not job.state.hangs[-1].broken
    assert "at work: rank 1" in job.state.hangs[-1].words
    job.heard.clear()
    job.pass_time(WORKING * 60.0 - 70.0)
    assert not asked(job)
    job.say("a0", Progress(1, 21))
    assert job.state.watch.limit(60.0) > LONGEST * 500.0, "the next one is usual"


def test_who_has_computed_for_ten_times_as_long_hangs_too() -> None:
    job = trained(0, 1)
    for seconds in (61.0, WORKING * 60.0 - 60.0):
        job.heard.clear()
        job.pass_time(seconds)
        for index in (0, 1):
            job.say(f"a{index}", Inspected(1, (rank(index, cpus=1.0),)))
    assert job.state.phase is Phase.RESTARTING and job.state.hangs_total == 1


def test_long_steps_stretch_the_limit_and_a_step_that_comes_meanwhile_ends_the_look() -> None:
    job = trained(0, 1, seconds=20.0)
    job.pass_time(MEDIANS * 20.0 - 1.0)
    assert not asked(job)
    job.pass_time(2.0)
    assert asked(job)
    job.say("a1", Progress(1, 21))
    for index in (0, 1):
        job.say(f"a{index}", Inspected(1, (rank(index),)))
    job.pass_time(30.0)
    assert job.state.phase is Phase.RUNNING and not job.state.hangs


def test_the_first_step_of_a_round_and_a_state_on_its_way_have_time() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.pass_time(WORKING * 60.0 - 5.0)
    job.say("a0", Transferring(1, 1 << 30))
    job.pass_time(WORKING * 60.0 - 5.0)
    assert not asked(job)
    job.pass_time(10.0)
    assert asked(job)


def test_a_pause_of_the_coordinators_own_is_no_hang() -> None:
    job = trained(0, 1)
    job.now += 3600.0
    job.feed(Tick())
    assert not asked(job)


@given(
    st.lists(
        st.builds(
            rank,
            st.integers(0, 200),
            step=st.integers(-1, 3),
            collectives=st.integers(-1, 3),
            answers=st.booleans(),
            committing=st.booleans(),
            cpus=st.floats(0, 64),
            stack=st.text(max_size=40),
        ),
        unique_by=lambda one: one.rank,
        max_size=60,
    ),
    st.lists(st.integers(0, 20), max_size=3, unique=True),
    st.booleans(),
)
def test_whatever_is_reported_the_word_is_bounded_and_never_blames_all_or_a_rank_ahead(
    reports: list[WorkerReport], silent: Sequence[int], working: bool
) -> None:
    found = judge(reports, silent, StepWatch(step=9, working=working), 4, 100.0)
    behind = [one for one in reports if one.rank in found.behind]
    assert not reports or len(behind) < len(reports)
    for one in behind:
        assert all(one.step <= other.step for other in reports)
    suspects = behind or reports
    idle = not any(one.committing or one.cpus > 0.3 for one in suspects)
    assert found.broken == (idle or working or bool(silent))
    told = [number for ranks, _ in found.stacks for number in ranks]
    assert len(told) == len(set(told)) and len(found.stacks) <= KEPT_STACKS
    assert len(json.dumps(as_json(found, 0.0))) < 100_000
    assert set(found.behind) <= set(told) or len(found.stacks) == KEPT_STACKS
    kept: tuple[Hang, ...] = ()
    for _ in range(2 * KEPT):
        kept = with_hang(kept, found)
    assert len(kept) == KEPT and kept[-1] == found
    assert all(len(one.stacks) <= 1 for one in kept[:-1])


@given(st.lists(st.floats(0.001, 500.0), min_size=1, max_size=60), st.floats(0.5, 120.0))
def test_no_step_as_long_as_one_that_came_to_its_end_is_stopped(
    seconds: list[float], least: float
) -> None:
    watch, now = StepWatch().begun(0.0).stepped(0, 0.0), 0.0
    for step, one in enumerate(seconds, 1):
        now += one
        watch = watch.stepped(step, now)
    assert watch.limit(least) >= max(least, *seconds) * 0.999
    assert watch.begun(now).limit(least) >= watch.limit(least)


def hang(job: Job, made: int, *behind: int) -> None:
    """The next round makes steps up to `made`, from 11 on, and hangs; all come back.

    Args:
        behind: pod indexes of the workers whose ranks are.
    """
    assert job.state.round is not None
    number, members = job.state.round.round, [one.pod_index for one in job.state.round.members]
    for step in range(11, made + 1):
        job.pass_time(0.1)
        job.say(f"a{members[0]}", Progress(number, step))
    job.pass_time(job.state.watch.limit(60.0) + 0.2)
    for place, index in enumerate(members):
        report = rank(place, collectives=42 - (index in behind))
        job.say(f"a{index}", Inspected(number, (report,)))
    if job.state.phase is Phase.RESTARTING:
        for index in members:
            job.say(f"a{index}", Join(5000 + index))
        job.pass_time(0.5)
        assert job.state.round is not None
        job.link(*(one.pod_index for one in job.state.round.members))


def test_a_node_that_hangs_again_at_the_same_step_is_left_out() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    hang(job, 20, 1)
    assert job.state.last_round == 2 and not job.state.excluded
    hang(job, 20, 1)
    assert job.state.excluded == {
        "worker 1": "on this node alone, rounds 1 and 2 hung after step 20, the later one no step "
        "further: rank 1 is behind: at collective 41, others at 42, on worker 1; no step for 1200 s"
    }
    assert job.members() == ["a0"]


def test_a_hang_at_the_same_step_on_another_node_ends_the_job_in_words() -> None:
    job = Job(min_nodes=2, max_nodes=3).running(0, 1, 2)
    hang(job, 20, 1)
    hang(job, 20, 2)
    told = job.last("a0", Dismissed)
    assert job.state.phase is Phase.FAILED and told.failed
    assert "rounds 1 and 2 hung after step 20, the later one no step further: rank 2" in told.reason
    assert "VOLCANO_ELASTIC_HANG_SECONDS" in told.reason


def test_a_hang_of_a_node_that_is_needed_ends_the_job_and_one_alone_does_too() -> None:
    for indexes, words in (((0, 1), "rank 1 is behind"), ((1,), "rank 0 is alone, on worker 1")):
        job = Job(min_nodes=len(indexes), max_nodes=2).running(*indexes)
        for _ in range(2):
            hang(job, 20, 1)
        assert job.state.phase is Phase.FAILED and words in job.state.failure_reason


def test_hangs_that_come_further_call_for_nothing() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for made in (20, 21, 22):
        hang(job, made, 1)
    assert job.state.phase is Phase.RUNNING and job.state.last_round == 4
    assert job.state.watch.fruitless == 1, "each came further than the one before"


def test_hangs_without_a_rank_behind_have_one_round_more() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    hang(job, 20)
    hang(job, 20)
    assert job.state.phase is Phase.RUNNING and job.state.watch.fruitless == 2
    hang(job, 20)
    assert job.state.phase is Phase.FAILED and "no rank is behind" in job.state.failure_reason


def test_a_hang_without_a_rank_behind_is_not_another_nodes() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    hang(job, 20)
    hang(job, 20, 1)
    assert job.state.phase is Phase.RUNNING and not job.state.excluded
    hang(job, 20, 1)
    assert list(job.state.excluded) == ["worker 1"] and job.members() == ["a0"]


def test_the_node_that_is_behind_each_time_is_left_out_though_others_were_so_once() -> None:
    job = Job(min_nodes=2, max_nodes=3).running(0, 1, 2)
    hang(job, 20, 1, 2)
    hang(job, 20, 1)
    assert list(job.state.excluded) == ["worker 1"] and job.members() == ["a0", "a2"]


def test_hangs_before_any_step_repeat_too() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for _ in range(2):
        hang(job, 0, 1)
    assert "rounds 1 and 2 hung before any step: rank 1" in job.state.failure_reason


def test_a_step_that_is_only_slow_has_time_when_it_is_made_again_from_a_commit() -> None:
    """Such as one after which rank 0 uploads something, and the others wait."""
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    hang(job, 20, 0)
    job.heard.clear()
    for step in range(11, 21):
        job.pass_time(0.1)
        job.say("a0", Progress(2, step))
        expected = 120.0 if step < 20 else WORKING * 120.0
        assert job.state.watch.limit(60.0) == expected, "others are no reason to wait so long"
    job.pass_time(WORKING * 60.0)
    assert not asked(job)
    job.say("a0", Progress(2, 21))
    assert job.state.phase is Phase.RUNNING and job.state.watch.fruitless == 0


def test_another_attempt_is_not_given_the_patience_of_the_last_ones_hangs() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for _ in range(2):
        hang(job, 20, 1)
    assert job.state.phase is Phase.FAILED
    job.say("a0", Goodbye())
    job.say("a1", Goodbye())
    job.running(2, 3)
    for step in range(11, 16):
        job.pass_time(0.1)
        job.say("a2", Progress(job.state.last_round, step))
    assert job.state.watch.limit(60.0) == 60.0
