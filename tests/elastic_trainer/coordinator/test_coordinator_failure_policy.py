"""An error of two nodes fails the job; one that a node raises again leaves that node out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_trainer.coordinator.failure_policy import NO_PROGRESS_ROUNDS, NO_PROGRESS_SECONDS
from elastic_trainer.coordinator.model import Lost, Phase
from elastic_trainer.coordinator.status import status
from elastic_trainer.failures.node_fault import node_fault
from elastic_trainer.failures.record import OUT_OF_MEMORY
from elastic_trainer.protocol.message import (
    Dismissed,
    Failed,
    Hello,
    Join,
    Progress,
    Round,
    RoundOver,
    WorkersFailed,
)

from tests.elastic_trainer.coordinator.world import Job

OWN = Failed(code=1, message="ValueError: x", error="ValueError at train.py:7")


def fail(job: Job, index: int, step: int | None, failed: Failed = OWN) -> None:
    """Worker `index` ends in an error after `step` (None: before any), and all come back."""
    assert job.state.round is not None
    number = job.state.round.round
    members = [member.pod_index for member in job.state.round.members]
    name = f"a{index}"
    if step is not None:
        job.say(name, Progress(number, step))
    pid = 100 * number + index
    told = replace(failed, round=number, pid=pid, step=-1 if step is None else step)
    job.say(name, WorkersFailed(number), told)
    for member in members:
        if f"a{member}" in job.state.agents:
            job.say(f"a{member}", Join(5000 + member))
    if job.state.round is not None:
        job.link(*members)


def test_the_same_error_and_no_step_further_ends_all_though_it_was_another_nodes() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2, 3)
    fail(job, 1, 7)
    assert job.state.phase is Phase.RUNNING and job.state.last_round == 2
    fail(job, 3, 7)
    assert job.state.phase is Phase.FAILED
    for index in range(4):
        told = job.last(f"a{index}", Dismissed)
        assert told.failed
        assert told.reason == (
            "rounds 1 and 2 ended in the same error, and the later one no step further: "
            "ValueError at train.py:7: ValueError: x"
        )
    assert status(job.state, "ns/job", job.now, 0.0)["verdict"] == told.reason


def test_survivors_that_train_on_in_process_are_ended_too() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    fail(job, 0, 7)
    number = job.state.last_round
    job.say("a1", replace(OWN, round=number, pid=9, step=7))  # its round is not over yet
    assert job.last("a0", RoundOver).round == number
    assert job.last("a0", Dismissed).failed


@pytest.mark.parametrize(
    ("why", "step", "failed"),
    [
        ("it came further", 8, OWN),
        ("another place", 7, replace(OWN, error="ValueError at train.py:9")),
        ("no error of the code's own", 7, replace(OWN, error="")),
    ],
)
def test_another_round_may_help_where(why: str, step: int, failed: Failed) -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    fail(job, 0, 7, failed if not failed.error else OWN)
    fail(job, 1, step, failed)
    assert job.state.phase is Phase.RUNNING, why


def test_siblings_that_fail_alike_are_one_try() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Progress(1, 3), WorkersFailed(1), replace(OWN, round=1, pid=1, step=3))
    job.say("a1", replace(OWN, round=1, pid=2, step=3))
    assert job.state.phase is not Phase.FAILED


def test_what_the_others_did_in_between_is_progress() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    fail(job, 1, 7)
    job.say("a0", Progress(2, 1000))
    fail(job, 1, None)  # a newcomer that made no step of its own
    assert job.state.phase is Phase.RUNNING


def test_after_a_rollback_the_same_error_is_a_repetition() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    fail(job, 1, 7)
    fail(job, 0, 5)  # from an earlier commit, and not even as far
    assert job.state.phase is Phase.FAILED


def test_what_failed_before_the_coordinators_restart_counts_for_nothing() -> None:
    job = Job(min_nodes=1, max_nodes=2)
    for index in (0, 1):
        job.say(f"a{index}", Hello(f"a{index}", index, "h", last_round=6), Join(1))
        job.say(f"a{index}", replace(OWN, round=6, pid=index, step=7))
    job.pass_time(0.5)
    job.link(0, 1)
    fail(job, 0, 7)
    assert job.state.phase is Phase.RUNNING, "nobody knows what was done since round 6"


def test_rounds_without_a_step_end_the_job_though_each_was_another_nodes_fault() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2, 3)
    for number in range(NO_PROGRESS_ROUNDS):
        assert job.state.phase is Phase.RUNNING
        fail(job, number % 4, None, Failed(code=1, message=f"ImportError: {number}"))
    assert job.state.failure_reason == (
        "5 rounds in a row failed before their first step; the last: ImportError: 4"
    )


GLOO = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"


@pytest.mark.parametrize(
    ("failed", "counts"),
    [
        (Failed(code=1), True),
        (Failed(code=-11, message="killed by SIGSEGV"), True),
        (Failed(code=-9, message=OUT_OF_MEMORY), True),
        (Failed(code=-9, message="killed by SIGKILL"), False),
        (Failed(code=-15), False),
        (Failed(code=0, message="gave way to another's failure"), False),
        (Failed(code=1, message="RuntimeError: [gloo/gloo/pair.cc:5] Shapes differ"), True),
        (Failed(code=1, message=f"RuntimeError: [{GLOO}:5] Connection closed by peer [h]"), False),
        (Failed(code=1, message="DistBackendError: NCCL error: remote process exited"), False),
    ],
)
def test_only_workers_that_failed_by_themselves_count(failed: Failed, counts: bool) -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for _ in range(NO_PROGRESS_ROUNDS):
        fail(job, 0, None, failed)
    assert (job.state.phase is Phase.FAILED) is counts


def test_a_step_or_a_long_life_between_starts_the_count_anew() -> None:
    for step, seconds in ((1, 0.0), (None, NO_PROGRESS_SECONDS + 1.0)):
        job = Job(min_nodes=2, max_nodes=2).running(0, 1)
        for number in range(2 * NO_PROGRESS_ROUNDS - 1):
            fruitful = number == NO_PROGRESS_ROUNDS - 1
            job.pass_time(seconds if fruitful else 0.0)
            fail(job, 0, step if fruitful else None, Failed(code=1))
        assert job.state.phase is Phase.RUNNING
        fail(job, 0, None, Failed(code=1))
        assert job.state.phase is Phase.FAILED


def test_a_rejected_agent_that_comes_again_is_told_again() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    fail(job, 0, 7)
    fail(job, 0, 7)
    job.feed(Lost("a1"))  # for a moment
    job.heard.clear()
    job.join(0, 1)
    assert job.last("a0", Dismissed).failed and job.last("a1", Dismissed).failed


def test_started_again_by_their_owner_the_nodes_get_another_attempt() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    fail(job, 0, 7)
    fail(job, 1, 7)
    for index in (0, 1):
        job.feed(Lost(f"a{index}"))
        job.say(f"b{index}", Hello(f"b{index}", index, "h"), Join(1))
    job.pass_time(0.5)
    assert job.members() == ["b0", "b1"] and job.last("b0", Round).round == 3
    number, failed = 3, replace(OWN, round=3, pid=1, step=7)
    job.say("b0", Progress(number, 7), WorkersFailed(number), failed)
    assert job.state.phase is Phase.RESTARTING, "the earlier attempt's errors don't count"


NO_GPU = Failed(code=1, message="RuntimeError: No CUDA GPUs are available", node_fault="CUDA")


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error.",
        "RuntimeError: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "DistBackendError: NCCL error: ncclUnhandledCudaError: Call to CUDA function failed",
    ],
)
def test_a_node_whose_devices_fail_twice_is_left_out_and_the_others_train_on(message: str) -> None:
    job = Job(min_nodes=2, max_nodes=4).running(0, 1, 2, 3)
    bad = replace(NO_GPU, message=message, node_fault=node_fault(message, "", 1))
    fail(job, 2, 7, bad)
    assert job.members() == ["a0", "a1", "a2", "a3"]
    fail(job, 2, 7, bad)
    assert job.state.phase is Phase.RUNNING and job.members() == ["a0", "a1", "a3"]
    told = status(job.state, "ns/job", job.now, 0.0)
    assert told["verdict"] is None
    assert told["excluded"] == [
        {
            "node": "worker 2",
            "workers": [2],
            "reason": f"its devices failed in rounds 1 and 2; the last: {message}",
        }
    ]
    job.pass_time(30.0)
    assert job.state.phase is Phase.RUNNING, "nobody is let in who is excluded"


def test_device_errors_of_two_nodes_are_not_the_scripts_fault() -> None:
    job = Job(min_nodes=2, max_nodes=4).running(0, 1, 2, 3)
    fail(job, 2, 7, NO_GPU)
    fail(job, 3, 7, NO_GPU)
    assert job.state.phase is Phase.RUNNING and len(job.members()) == 4
    fail(job, 3, 7, NO_GPU)
    fail(job, 2, 7, NO_GPU)
    assert job.members() == ["a0", "a1"]


def test_rounds_that_devices_ended_are_none_of_those_without_a_step() -> None:
    job = Job(min_nodes=2, max_nodes=5).running(0, 1, 2, 3, 4)
    for node in range(NO_PROGRESS_ROUNDS - 1):
        fail(job, node, None, NO_GPU)
    fail(job, 4, None, Failed(code=1, message="ValueError: a file was away"))
    assert job.state.phase is not Phase.FAILED


def test_devices_that_fail_now_and_then_leave_their_node_out_at_the_third_time() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for step in (1000, 2000):
        fail(job, 1, step, NO_GPU)
        assert len(job.members()) == 2
    fail(job, 1, 3000, NO_GPU)
    assert job.members() == ["a0"]


def test_too_few_healthy_nodes_fail_the_job() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    fail(job, 1, 7, NO_GPU)
    fail(job, 1, 7, NO_GPU)
    assert job.state.failure_reason.startswith(
        "too few nodes are left without worker 1: its devices"
    )


def test_an_error_of_one_node_alone_leaves_it_out_and_if_another_has_it_too_fails_the_job() -> None:
    """Rank 0's export fails: the next rank 0 shows whether it was the node or the script."""
    job = Job(min_nodes=1, max_nodes=3).running(0, 1, 2)
    fail(job, 0, 7)
    fail(job, 0, 7)
    assert job.members() == ["a1", "a2"]
    fail(job, 1, 7)
    assert job.state.phase is Phase.FAILED


def test_a_node_that_can_not_start_is_left_out_after_five_rounds() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for _ in range(NO_PROGRESS_ROUNDS):
        assert len(job.members()) == 2
        fail(job, 1, None, Failed(code=1, message="ImportError: x"))
    assert job.members() == ["a0"]


def test_agents_of_one_machine_are_one_node() -> None:
    job = Job(min_nodes=1, max_nodes=3)
    for index, node in enumerate(("gpu-1", "gpu-7", "gpu-7")):
        job.say(f"a{index}", Hello(f"a{index}", index, "h", node=node), Join(1))
    job.pass_time(0.5)
    job.link(0, 1, 2)
    fail(job, 1, 7, NO_GPU)
    fail(job, 2, 7, NO_GPU)
    assert job.members() == ["a0"] and list(job.state.excluded) == ["gpu-7"]
    job.feed(Lost("a2"))
    job.say("b2", Hello("b2", 2, "h", node="gpu-8"), Join(1))
    job.pass_time(1.5)
    assert job.state.phase is Phase.FENCING, "the pod was made anew on another machine"


def test_a_new_attempt_has_all_nodes() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for step in (1, 1):
        fail(job, 1, step, NO_GPU)
    fail(job, 0, 1)
    fail(job, 0, 1)
    assert job.state.phase is Phase.FAILED
    for index in (0, 1):
        job.feed(Lost(f"a{index}"))
        job.say(f"b{index}", Hello(f"b{index}", index, "h", node=f"worker {index}"), Join(1))
    job.pass_time(0.5)
    assert job.members() == ["b0", "b1"]
