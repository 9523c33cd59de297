"""The end of a job: complete is what all workers' processes say by ending with code 0."""

from __future__ import annotations

from elastic_trainer.coordinator.model import Lost, Phase, Settings, State
from elastic_trainer.coordinator.status import status
from elastic_trainer.protocol.message import (
    Completed,
    Dismissed,
    Failed,
    FenceAsk,
    FenceCancel,
    Finished,
    Hello,
    Join,
    Leave,
    Linked,
    RoundOver,
    Standby,
    WorkersFailed,
    WorkersSucceeded,
)

from tests.elastic_trainer.coordinator.world import Job


def told(job: Job, agent: str) -> list[type]:
    return [type(message) for message in job.heard.get(agent, [])]


def test_leaving_the_loop_is_not_the_end() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Finished(1))
    job.say("a1", Finished(1))
    assert job.state.phase is Phase.COMPLETING
    assert status(job.state, "ns/job", job.now, 0.0)["phase"] == "completing"
    job.say("a0", WorkersSucceeded(1))
    assert job.state.phase is Phase.COMPLETING
    assert Completed not in told(job, "a0"), "it may have to run its tail again"
    job.say("a1", WorkersSucceeded(1))
    assert job.state.phase is Phase.FINISHED
    assert Completed in told(job, "a0") and Completed in told(job, "a1")


def test_one_that_fails_after_the_loop_is_started_again_with_all_others() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", Finished(1), WorkersSucceeded(1))
    job.say("a0", Finished(1), Failed(round=1, pid=5, code=1), Join(5000))
    assert job.state.phase is Phase.RESTARTING
    assert job.last("a1", RoundOver) == RoundOver(1, "workers of worker 0 failed")
    job.say("a1", Join(5001))
    assert job.members() == ["a0", "a1"] and job.state.phase is Phase.RUNNING
    for agent in ("a0", "a1"):
        job.say(agent, Linked(2), Finished(2), WorkersSucceeded(2))
    assert job.state.phase is Phase.FINISHED


def test_workers_of_a_plain_script_that_end_first_do_not_end_the_job() -> None:
    job = Job(min_nodes=1, max_nodes=3)
    job.join(0, 1, 2)
    job.pass_time(0.5)
    job.say("a2", WorkersSucceeded(1))
    job.pass_time(5)
    assert job.state.phase is Phase.COMPLETING
    job.say("a0", Join(5000))  # its workers have failed
    assert job.state.phase is Phase.RESTARTING
    assert RoundOver in told(job, "a2"), "all run again"


def test_where_workers_recovered_in_process_all_are_waited_for_after_the_loop() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for agent in ("a0", "a1"):
        job.say(agent, Linked(1, recovers=True, last_run=1), Finished(1))
    job.say("a0", WorkersFailed(1))
    job.say("a1", Join(5001))
    job.pass_time(5)
    assert job.state.phase is Phase.RESTARTING, "the one that failed comes back, too"
    job.say("a0", Join(5000))
    assert job.members() == ["a0", "a1"]


def test_a_node_that_is_lost_after_the_loop_takes_its_tail_to_the_others() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", Finished(1), WorkersSucceeded(1))
    job.say("a0", Finished(1))
    job.feed(Lost("a0"))
    assert job.state.phase is Phase.RESTARTING and RoundOver in told(job, "a1")
    job.say("a1", Join(5001))
    assert job.members() == ["a1"]


def test_a_node_that_is_lost_after_its_workers_succeeded_is_not_missed() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Finished(1))
    job.say("a1", Finished(1), WorkersSucceeded(1))
    job.feed(Lost("a1"))
    assert job.state.phase is Phase.COMPLETING
    job.say("a0", WorkersSucceeded(1))
    assert job.state.phase is Phase.FINISHED
    again = Hello("a1", 1, "h", round=job.state.round, finished=True, succeeded=True)
    job.heard.clear()
    job.say("a1", again)
    assert told(job, "a1") == [Completed], "only its connection was lost"


def test_a_leaver_whose_workers_have_ended_goes_and_others_may_run_to_their_end() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Finished(1))
    job.say("a1", Finished(1), WorkersSucceeded(1), Leave())
    assert Dismissed in told(job, "a1") and job.state.phase is Phase.COMPLETING
    job.feed(Lost("a1"))
    job.say("a0", WorkersSucceeded(1))
    assert job.state.phase is Phase.FINISHED


def test_a_leaver_in_its_tail_has_until_its_deadline_then_the_others_run_it() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Finished(1))
    job.say("a1", Finished(1), Leave())
    job.pass_time(5)
    assert job.state.phase is Phase.COMPLETING and Dismissed not in told(job, "a1")
    job.pass_time(60)
    assert Dismissed in told(job, "a1") and RoundOver in told(job, "a0")


def test_a_fence_under_way_is_given_up_and_nobody_is_let_in() -> None:
    job = Job(min_nodes=1, max_nodes=3).running(0, 1)
    job.join(2)
    job.pass_time(0.5)
    fence = job.last("a0", FenceAsk).fence
    job.say("a0", Finished(1))
    assert job.last("a1", FenceCancel) == FenceCancel(fence)
    job.pass_time(60)
    assert job.state.phase is Phase.COMPLETING
    job.say("a1", Join(5001))  # it failed
    job.say("a0", Join(5000))
    assert job.members() == ["a0", "a1", "a2"], "the newcomer is in the rerun"


def test_after_the_coordinators_restart_the_end_goes_on_where_it_was() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    running = job.state.round
    job.state = State(settings=Settings(1, 2), started=job.now)
    job.heard.clear()
    job.say("a0", Hello("a0", 0, "h", 1, running, linked=True, finished=True, succeeded=True))
    assert job.state.phase is Phase.ADOPTING
    job.say("a1", Hello("a1", 1, "h", 1, running, linked=True))
    assert job.state.phase is Phase.COMPLETING
    job.say("a1", Finished(1), WorkersSucceeded(1))
    assert job.state.phase is Phase.FINISHED and told(job, "a0") == [Completed]


def test_all_are_told_that_training_is_complete_whatever_their_workers_do() -> None:
    job = Job(min_nodes=1, max_nodes=3).running(0, 1)
    for agent in ("a0", "a1"):
        job.say(agent, Linked(1, recovers=True, last_run=1))
    job.say("a1", WorkersFailed(1))
    job.pass_time(0.5)
    job.say("a0", Join(5000, live=True))
    job.say("a0", Linked(2, recovers=True, last_run=1))
    job.say("a1", Join(5001))  # told to start its workers, which takes long
    assert told(job, "a1")[-1] is Standby
    job.say("a0", Finished(2), WorkersSucceeded(2))
    assert job.state.phase is Phase.FINISHED
    assert told(job, "a1")[-1] is Completed
    job.heard.clear()
    job.say("a1", Hello("a1", 1, "h"))
    assert told(job, "a1") == [Completed], "its connection was lost meanwhile"
