"""A coordinator that is started anew learns from agents and commits where training is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_trainer.coordinator.model import (
    Phase,
)
from elastic_trainer.coordinator.settle import UNSEEN_RUNS
from elastic_trainer.protocol.message import (
    MOST_PLACES,
    Committed,
    FenceCancel,
    Fenced,
    FenceStop,
    Hello,
    Join,
    Linked,
    Member,
    NewestCommit,
    Round,
    RoundOver,
    WorkersFailed,
    newest_commits,
)

from tests.elastic_trainer.coordinator.world import Job


def adopted(**changes: Any) -> Job:
    """A restarted coordinator that hears from one of the two members of round 5."""
    job = Job(min_nodes=1, max_nodes=4)
    old = Round(5, (Member("a0", 0, "10.0.0.0"), Member("a1", 1, "10.0.0.1")), "10.0.0.0", 1, "x")
    hello = Hello("a0", 0, "10.0.0.0", 5, old, step=70, committed_step=60, linked=True)
    job.say("a0", replace(hello, **changes))
    assert job.state.phase is Phase.ADOPTING
    job.heard.clear()
    return job


def hello_again(job: Job, **changes: Any) -> None:
    hello = Hello("a1", 1, "10.0.0.1", 5, job.state.round, step=71, linked=True)
    job.say("a1", replace(hello, **changes))


def test_a_restarted_coordinator_takes_over_the_running_round() -> None:
    job = adopted()
    job.pass_time(1.0)
    hello_again(job)
    assert job.state.phase is Phase.RUNNING
    assert not any(job.heard.values())
    assert (job.state.step, job.state.committed_step, job.state.last_round) == (71, 60, 5)


def test_a_member_that_does_not_come_back_is_lost_after_the_grace() -> None:
    job = adopted()
    job.pass_time(2.5)
    assert job.state.phase is Phase.ADOPTING
    job.pass_time(1.0)
    job.last("a0", RoundOver)
    job.join(0)
    assert job.members() == ["a0"] and job.state.last_round == 6


def test_members_of_thousands_that_come_one_after_another_are_waited_for() -> None:
    job = Job(min_nodes=1, max_nodes=9)
    members = tuple(Member(f"a{index}", index, f"10.0.0.{index}") for index in range(9))
    old = Round(5, members, "10.0.0.0", 1, "x")
    for index in range(9):
        job.say(f"a{index}", Hello(f"a{index}", index, "h", 5, old, linked=True))
        job.pass_time(2.0)
    assert job.state.phase is Phase.RUNNING and job.state.last_round == 5


def test_a_replaced_member_ends_the_adopted_round_at_once() -> None:
    job = adopted()
    job.say("new", Hello("new", 1, "10.0.0.9"))
    job.last("a0", RoundOver)


def test_a_stop_step_told_to_one_rank_holds_for_all_after_a_restart() -> None:
    job = adopted(fence=9, stop_step=73)
    hello_again(job, fence=9)
    assert job.last("a1", FenceStop) == FenceStop(10, 5, 73, False, memory_stays=True)
    job.say("a0", Fenced(10, 73))
    job.say("a1", Fenced(10, 73))
    job.last("a0", RoundOver)


def test_all_commit_at_an_adopted_fence_if_one_rank_was_told_so_whatever_the_range_is() -> None:
    for told in (False, True):
        job = adopted(fence=9, stop_step=73, stop_commits=told)
        hello_again(job, fence=9, leaving=True)
        assert all(job.last(agent, FenceStop).commit is told for agent in ("a0", "a1"))


def test_a_fence_without_a_stop_step_is_called_off_after_a_restart() -> None:
    job = adopted(fence=9)
    hello_again(job)
    assert job.last("a0", FenceCancel) == FenceCancel(9)
    assert job.state.phase is Phase.RUNNING


def test_a_step_is_committed_once_all_have_it_in_memory() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Committed(1, 20, in_memory=True))
    assert job.state.committed_step == -1  # lost with one node, it would be lost
    job.say("a1", Committed(1, 10, in_memory=True))
    assert job.state.committed_step == 10
    job.say("a1", Committed(1, 20, in_memory=True))
    assert job.state.committed_step == 20
    job.say("a0", Committed(1, 30, in_memory=True), Committed(1, 30))
    assert job.state.committed_step == 30  # in storage


def test_commits_that_know_a_later_round_end_this_one_so_no_number_is_used_twice() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)  # all was lost: it began at 1 again
    job.say("a0", Committed(57, 400))
    assert job.last("a1", RoundOver).reason == "the commits know of round 57"
    job.join(0, 1)
    assert job.state.round is not None and job.state.round.round == 58
    job.link(0, 1)
    job.say("a0", Committed(57, 400), Committed(58, 410))
    assert job.state.phase is Phase.RUNNING and job.state.committed_step == 410


def test_a_round_tells_the_newest_commit_of_each_storage() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Committed(1, 20, place="x"), Committed(1, 40, place="x"))
    job.say("a0", Committed(1, 5, place="y"), Committed(1, 30, place="x"))  # told late
    job.say("a1", Committed(1, 50, in_memory=True), WorkersFailed(1))
    job.join(0, 1)
    told = job.last("a1", Round)
    assert set(told.commits) == {NewestCommit("x", 40), NewestCommit("y", 5)}


def test_a_restarted_coordinator_hears_of_the_commits_from_who_knows_them() -> None:
    job = adopted(commits=(NewestCommit("x", 60), NewestCommit("y", 9)))
    hello_again(job, commits=(NewestCommit("x", 40),))
    job.say("a1", WorkersFailed(5))
    job.join(0, 1)
    assert set(job.last("a0", Round).commits) == {NewestCommit("x", 60), NewestCommit("y", 9)}


def test_only_the_storages_told_of_last_are_remembered() -> None:
    told = [NewestCommit(str(number), number) for number in range(2 * MOST_PLACES)]
    again = NewestCommit("70", 3)
    kept = newest_commits([*told, again])
    assert len(kept) == MOST_PLACES
    assert kept[-1] == NewestCommit("70", 70) and NewestCommit("0", 0) not in kept


def test_the_next_rounds_runs_go_beyond_all_that_any_agent_told_of() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Linked(1, last_run=7000))
    job.say("a1", Linked(1, last_run=6000), WorkersFailed(1))
    job.join(0, 1)
    assert job.last("a1", Round).last_run == 7000


def test_a_new_coordinators_runs_go_beyond_those_of_rounds_that_it_never_heard_of() -> None:
    job = adopted(last_run=60)
    hello_again(job, last_run=70)
    job.say("a1", WorkersFailed(5))
    job.join(0, 1)
    assert job.last("a0", Round).last_run == 70 + UNSEEN_RUNS
    job.link(0, 1)
    job.say("a1", WorkersFailed(6))
    job.join(0, 1)
    assert job.last("a0", Round).last_run == 70 + UNSEEN_RUNS, "the last one was its own"


def test_what_is_in_memory_knows_its_round_too() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", Committed(57, 400, in_memory=True))
    assert job.last("a0", RoundOver).reason == "the commits know of round 57"
    assert job.state.last_round == 57 and job.state.committed_step == -1


def test_killed_while_forming_it_forms_with_those_who_join_again() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    for index in (1, 0):
        hello = Hello(f"a{index}", index, "10.0.0.1", last_round=6)
        job.say(f"a{index}", hello, Join(1))
    job.pass_time(0.4)
    assert job.state.round is not None and job.state.round.round == 7
    assert job.members() == ["a0", "a1"]
