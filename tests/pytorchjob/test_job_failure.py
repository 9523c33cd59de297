"""Pods that fail: which are made again, when a job fails with them, and its limits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.pytorchjob.world import begin, running
from volcano_elastic.pytorchjob.action import (
    DeletePod,
    PatchPod,
    Requeue,
    Stage,
)
from volcano_elastic.pytorchjob.observed import Resize


def test_a_failed_pod_comes_back_at_its_index_and_later_each_time() -> None:
    world = begin(2)
    world.run_all()
    world.fail("a-worker-1", code=1)
    first = world.step()
    (gone,) = [a for a in first if isinstance(a, DeletePod)]
    assert (gone.name, gone.grace) == ("a-worker-1", timedelta(0))
    assert world.created(first) == ["a-worker-1"]
    world.settle()
    world.fail("a-worker-1", code=1)
    second = world.reconcile()
    assert world.created(second) == []
    assert Requeue(timedelta(seconds=1)) in second
    world.apply(second)
    assert world.state == "Restarting"
    world.now += timedelta(seconds=1)
    assert world.created(world.step()) == ["a-worker-1"]
    world.settle()
    world.run_all()
    world.settle()
    assert world.state == "Running"
    assert world.status["elastic"]["restarts"] == 2


def test_worker_0_comes_back_before_anybody_new() -> None:
    world = begin(2)
    world.grow(4)
    world.run_all()
    world.fail("a-worker-0", code=137)
    world.remove("a-worker-3")
    assert world.created(world.step()) == ["a-worker-0"]
    assert world.created(world.step()) == ["a-worker-3"]


def test_worker_0_comes_back_before_others_that_failed_too() -> None:
    world = running(2, 3)
    world.grow(3)
    world.run_all()
    for name in ("a-worker-0", "a-worker-1"):
        world.fail(name, code=137)
    assert world.created(world.step()) == ["a-worker-0"]
    assert world.created(world.step()) == ["a-worker-1"]


def test_others_that_failed_come_back_once_worker_0_has_moved() -> None:
    world = running(2, 3)
    world.grow(3)
    world.run_all()
    world.fail("a-worker-1", code=137)
    world.resize = Resize(3, 3, "LeftNode", "", move=frozenset({"a-worker-0"}))
    actions = world.step()
    assert "a-worker-0" in [a.name for a in actions if isinstance(a, DeletePod)]
    assert world.created(actions) == []
    world.remove("a-worker-0")
    assert world.created(world.settle()) == ["a-worker-0", "a-worker-1"]


def test_a_pod_that_ran_for_long_is_made_again_at_once_however_often_it_has_failed() -> None:
    world = running(2)
    for _ in range(3):
        world.now += timedelta(minutes=11)
        world.fail("a-worker-1")
        assert world.created(world.step()) == ["a-worker-1"]
        world.run_all()
        world.settle()


def test_workers_that_ended_well_are_not_made_again_while_the_master_goes_on() -> None:
    world = running(1, 3, master=True)
    world.grow(3)
    world.run_all()
    world.finish("a-worker-2")
    assert world.created(world.settle()) == []
    assert world.state == "Running" and world.status["elastic"]["desired"] == 3


def test_a_job_ends_with_worker_0_though_its_minimum_is_there() -> None:
    world = running(1, 3, restartPolicy="Never")
    world.grow(3)
    world.run_all()
    world.now += timedelta(seconds=5)
    world.fail("a-worker-0")
    world.step()
    assert world.state == "Failed"


@pytest.mark.parametrize(
    ("code", "reason", "state"),
    [
        (255, "Unknown", "Running"),
        (137, "ContainerStatusUnknown", "Running"),
        (255, "Error", "Failed"),
    ],
)
def test_containers_that_a_rebooted_node_starts_again_are_no_restarts(
    code: int, reason: str, state: str
) -> None:
    world = begin(2, runPolicy={"backoffLimit": 3})
    world.grow(4)
    world.run_all()
    world.settle()
    for index in (1, 2, 3):
        ended = {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T12:00:00Z"}
        world.pods[f"a-worker-{index}"]["status"]["containerStatuses"] = [
            {
                "name": "pytorch",
                "restartCount": 1,
                "state": {"running": {}},
                "lastState": {"terminated": ended},
            }
        ]
    world.settle()
    assert world.state == state


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [
        ("OnFailure", 1, "Restarting"),
        ("Always", 1, "Restarting"),
        ("ExitCode", 137, "Restarting"),
        ("ExitCode", 1, "Failed"),
        ("Never", 137, "Failed"),
    ],
)
def test_what_a_failed_pod_of_the_minimum_means(policy: str, code: int, state: str) -> None:
    world = begin(2, restartPolicy=policy)
    world.run_all()
    world.settle()
    world.fail("a-worker-1", code=code)
    world.step()
    assert world.state == state


def test_the_job_goes_on_while_its_minimum_can() -> None:
    world = begin(2, restartPolicy="Never")
    world.grow(4)
    world.run_all()
    world.now += timedelta(seconds=5)
    world.fail("a-worker-3", code=1)
    world.settle()
    assert (world.state, world.status["elastic"]["desired"]) == ("Running", 3)
    world.now += timedelta(seconds=5)
    world.fail("a-worker-2", code=1)
    world.settle()
    assert (world.state, world.status["elastic"]["desired"]) == ("Running", 2)
    world.now += timedelta(seconds=5)
    world.fail("a-worker-1", code=3)
    world.settle()
    assert world.state == "Failed"
    assert "a-worker-1 (exit code 3)" in world.status["conditions"][-1]["message"]


def test_a_terminating_pod_that_failed_fails_nobody() -> None:
    world = begin(2, restartPolicy="Never")
    world.run_all()
    world.leaving("a-worker-1")
    world.fail("a-worker-1", code=143)
    world.settle()
    assert world.state == "Running" or world.state == "Restarting"


def test_exit_codes_from_128_on_restart_and_lower_ones_fail_with_completion_time() -> None:
    world = running(restartPolicy="ExitCode")
    world.fail("a-worker-1", code=130)
    world.step()
    assert world.state == "Restarting" and "a-worker-1" in world.live()
    world.run_all()
    world.fail("a-worker-1", code=127)
    world.settle()
    assert world.state == "Failed"
    assert world.status["completionTime"], "the original forgets it, and its TTL then errs"


def test_restarts_of_a_replica_add_up_whoever_restarted_it() -> None:
    world = running(2)
    status = world.pods["a-worker-1"]["status"]
    status["containerStatuses"] = [{"name": "pytorch", "restartCount": 4, "state": {"running": {}}}]
    world.settle()
    world.fail("a-worker-1", 1)
    world.pods["a-worker-1"]["status"]["containerStatuses"][0]["restartCount"] = 4
    world.settle()
    assert world.status["elastic"]["restarts"] == 5
    world.remove("a-worker-1")
    world.settle()
    assert world.status["elastic"]["restarts"] == 5, "it never falls"


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_restarts_go_on_adding_up_after_their_pods_have_gone(low: int | None) -> None:
    """By a drain, a finalizer that kept the failed pod, or an operator that was killed between
    deletion and creation."""
    world = running(low, runPolicy={"backoffLimit": 4})
    for restarts, goes in enumerate(("drained", "killed", "kept"), 1):
        assert not world.settle(), "counts that were handed on stay so"
        world.now += timedelta(minutes=11)
        last = world.live()[-1]
        world.fail(last, 1)
        if goes == "killed":
            world.apply(world.reconcile(), until=Stage.REMOVE)
        elif goes == "kept":
            world.apply(world.reconcile(), until=Stage.RECORD)
            world.leaving(last)
            world.settle()
            assert not world.ended
            world.collect()
        world.settle()
        world.run_all()
        if goes == "drained":
            world.remove(last)
            world.settle()
            world.run_all()
        assert not world.ended and world.status["elastic"]["restarts"] == restarts
    world.now += timedelta(minutes=11)
    world.fail(world.live()[-1], 1)
    world.settle()
    assert world.state == "Failed"


def test_a_failed_pod_that_somebody_keeps_from_going_counts_meanwhile() -> None:
    world = running(runPolicy={"backoffLimit": 2})
    world.fail("a-worker-1", 1)
    world.apply(world.reconcile(), until=Stage.RECORD)
    world.leaving("a-worker-1")  # its finalizer stays
    (handed,) = [a for a in world.settle() if isinstance(a, PatchPod)]
    assert (handed.name, handed.body) == (
        "a-worker-0",
        {"metadata": {"annotations": {"volcano-elastic.io/restarts": "1"}}},
    )
    world.fail("a-worker-0", 1)
    world.settle()
    assert world.state == "Failed"


def test_the_failure_that_reaches_the_backoff_limit_brings_no_new_pod() -> None:
    world = running(runPolicy={"backoffLimit": 1})
    world.fail("a-worker-1", 1)
    done = world.settle()
    assert world.state == "Failed" and world.created(done) == []
    assert world.events(done)["ExitedWithCode"] == "Pod: team.a-worker-1 exited with code 1"
    assert world.status["replicaStatuses"]["Worker"]["failed"] == 1


def test_a_lost_worker_is_told_once() -> None:
    world = running(1, restartPolicy="Never")
    world.grow(4)
    world.run_all()
    codes = []
    for index, code in ((3, 7), (2, 8)):
        world.now += timedelta(seconds=5)
        world.fail(f"a-worker-{index}", code)
        codes.append(world.events(world.settle())["ExitedWithCode"])
    assert codes == [f"Pod: team.a-worker-{i} exited with code {c}" for i, c in ((3, 7), (2, 8))]


def test_backoff_limit_zero_fails_at_the_first_restart() -> None:
    world = running(runPolicy={"backoffLimit": 0})
    world.fail("a-worker-1")
    world.settle()
    assert world.state == "Failed"
    message = world.status["conditions"][-1]["message"]
    assert message == "Job a has failed because it has reached the specified backoff limit"


def test_the_backoff_limit_and_the_deadline_end_a_job() -> None:
    world = begin(2, runPolicy={"backoffLimit": 1})
    world.run_all()
    world.pods["a-worker-1"]["status"]["containerStatuses"] = [
        {"name": "pytorch", "restartCount": 1, "state": {"running": {}}}
    ]
    world.settle()
    assert world.state == "Failed"
    assert "backoff limit" in world.status["conditions"][-1]["message"]

    world = begin(2, runPolicy={"activeDeadlineSeconds": 60})
    assert Requeue(timedelta(seconds=60)) in world.reconcile()
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.state == "Failed"
    assert "deadline" in world.status["conditions"][-1]["message"]
