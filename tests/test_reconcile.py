"""reconcile(job, observed, now): by table, and by property in a tiny pure world."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from job_world import World, job_object

from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.pytorchjob.action import (
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteJob,
    DeletePod,
    EmitEvent,
    PatchPod,
    PatchStatus,
    Requeue,
    Stage,
)
from volcano_elastic.pytorchjob.observed import Observed, Resize
from volcano_elastic.pytorchjob.reconcile import reconcile, refuse

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def elastic(low: int = 2, high: int = 4, **spec: Any) -> World:
    world = World(job_object(elastic={"min": low, "max": high}, **spec), NOW)
    world.settle()
    return world


def resize(old: int, new: int, *remove: str) -> Resize:
    reason = "GrewIntoIdle" if new > old else "ShrunkForMinimum"
    return Resize(old, new, reason, f"from {old} to {new}", frozenset(remove))


# Beginning


def test_a_new_job_gets_its_podgroup_and_waits_for_the_planner() -> None:
    world = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    world.admitted = False
    actions = world.reconcile()
    assert [type(a) for a in actions if a.stage is not Stage.TELL] == [PatchStatus, CreatePodGroup]
    assert Requeue(timedelta(seconds=2)) in actions
    world.now += timedelta(seconds=2)
    assert any(isinstance(a, CreatePod) for a in world.reconcile())


@pytest.mark.parametrize("policy", [None, {"min": 100_000, "max": 2**31 - 1}])
def test_a_huge_job_is_made_in_portions(policy: dict[str, Any] | None) -> None:
    world = World(job_object(elastic=policy, replicas=100_000), NOW)
    if policy:
        assert world.created(world.step()) == ["a-worker-0"]
    for so_far in (0, 2000):
        actions = world.reconcile()
        assert sum(isinstance(a, CreatePod) for a in actions) == 2000
        assert Requeue(timedelta(0)) in actions
        assert len(world.created(world.step())) == 2000
        assert len(world.pods) == so_far + 2000 + bool(policy)


def test_worker_0_comes_first_and_the_others_when_it_exists() -> None:
    world = World(job_object(elastic={"min": 3, "max": 4}), NOW)
    assert world.created(world.step()) == ["a-worker-0"]
    assert world.created(world.step()) == ["a-worker-1", "a-worker-2"]
    assert world.step() == []


def test_a_pod_tells_torchrun_and_the_trainer_who_they_are() -> None:
    world = World(
        job_object(
            elastic={"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}, nprocPerNode="1"
        ),
        NOW,
    )
    world.settle()
    pod = world.pods["a-worker-0"]
    variables = {v["name"]: v for v in pod["spec"]["containers"][0]["env"]}
    values = {name: v["value"] for name, v in variables.items() if "value" in v}
    assert values == {
        "USER_SET": "1",
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "1:4",
        "PET_RDZV_BACKEND": "volcano-elastic",
        "PET_RDZV_ENDPOINT": "a-worker-0:23456",
        "PET_RDZV_ID": "u1",
        "PET_MAX_RESTARTS": "100",
        "VOLCANO_ELASTIC_JOB": "team/a",
        "VOLCANO_ELASTIC_NODE_UNIT": "1",
        "VOLCANO_ELASTIC_POD_INDEX": "0",
        "VOLCANO_ELASTIC_COORDINATOR": "worker0",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    path = variables["VOLCANO_ELASTIC_POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "status.podIP"
    assert pod["metadata"]["labels"] == {
        "team": "vision",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "a",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
    }
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["spec"]["futureField"] == {"kept": True}
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert port["containerPort"] == 23456
    service = world.services["a-worker-0"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"]["training.kubeflow.org/replica-index"] == "0"


def test_a_fixed_job_with_master_is_kubeflows() -> None:
    world = World(job_object(master=True, replicas=2), NOW)
    assert world.created(world.step()) == ["a-master-0", "a-worker-0", "a-worker-1"]
    env = {v["name"]: v.get("value") for v in world.env("a-worker-1")}
    assert (env["MASTER_ADDR"], env["RANK"], env["WORLD_SIZE"]) == ("a-master-0", "2", "3")
    assert env["PET_NNODES"] == "3"
    assert "PET_RDZV_BACKEND" not in env and "VOLCANO_ELASTIC_JOB" not in env
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 3
    world.settle()
    world.run_all()
    assert world.state == "Running"
    world.finish("a-worker-0")
    world.settle()
    assert world.state == "Running"
    world.finish("a-master-0")
    world.settle()
    assert world.state == "Succeeded"


# Size


def test_growing_takes_the_lowest_free_indexes_and_says_why() -> None:
    world = elastic()
    world.resize = resize(2, 4)
    actions = world.step()
    assert world.created(actions) == ["a-worker-2", "a-worker-3"]
    assert EmitEvent("GrewIntoIdle", "from 2 to 4") in actions
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (4, "GrewIntoIdle")
    assert status["message"] == "from 2 to 4"
    assert status["lastScaleTime"].startswith("2026-01-01T12:00:0")
    world.settle()
    assert [world.protected(f"a-worker-{i}") for i in range(4)] == [True, True, False, False]


def test_shrinking_records_the_size_first_then_removes_exactly_the_named_pods() -> None:
    world = elastic()
    world.grow(4)
    world.run_all()
    world.resize = resize(4, 2, "a-worker-1", "a-worker-2")
    actions = world.reconcile()
    assert [a.name for a in actions if isinstance(a, DeletePod)] == ["a-worker-1", "a-worker-2"]
    assert [a.grace for a in actions if isinstance(a, DeletePod)] == [None, None]
    # worker 1 was protected: another is, before it goes
    (promotion,) = [a for a in actions if isinstance(a, PatchPod)]
    assert promotion.name == "a-worker-3"
    assert promotion.body["metadata"]["annotations"] == {"volcano.sh/preemptable": "false"}
    assert Stage.RECORD < PatchPod.stage < DeletePod.stage < CreatePod.stage
    world.apply(actions)
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-3"]


def test_a_decision_half_carried_out_is_finished() -> None:
    world = elastic()
    world.grow(4)
    world.resize = resize(4, 2, "a-worker-1", "a-worker-3")
    world.apply(world.reconcile(), until=Stage.RECORD)  # the API server fails after that
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-2"]


def test_an_operator_killed_half_way_through_a_decision_keeps_its_size() -> None:
    world = elastic()
    world.grow(4)
    world.resize = resize(4, 2, "a-worker-1", "a-worker-3")
    world.apply(world.reconcile(), until=Stage.RECORD)
    world.resize = None  # only the API server remembers
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"]


def test_a_size_without_names_takes_what_holds_least_then_the_highest_index() -> None:
    world = elastic(1, 4)
    world.grow(4)
    for name in ("a-worker-0", "a-worker-2", "a-worker-3"):
        world.run(name)
    world.resize = resize(4, 2)
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-2"]


def test_a_stale_decision_is_dropped() -> None:
    world = elastic()
    world.resize = resize(3, 4)
    world.settle()
    assert world.status["elastic"]["desired"] == 2


def test_worker_0_never_leaves_while_others_remain() -> None:
    world = elastic(1, 4)
    world.grow(3)
    world.resize = resize(3, 1, "a-worker-0", "a-worker-1")
    world.settle()
    assert world.live() == ["a-worker-0"]


def test_a_lost_status_is_taken_from_the_live_pods() -> None:
    world = elastic()
    world.grow(3)
    world.job["status"] = {}
    world.settle()
    assert world.status["elastic"]["desired"] == 3
    assert len(world.live()) == 3


def test_a_pod_on_its_way_out_holds_its_index_but_counts_for_nothing() -> None:
    world = elastic(1, 4)
    world.grow(2)
    world.leaving("a-worker-1")
    assert world.created(world.step()) == ["a-worker-2"]
    world.finish("a-worker-1")  # exits 0 on SIGTERM
    world.settle()
    assert world.state != "Succeeded"
    assert world.status["replicaStatuses"]["Worker"]["succeeded"] == 0


def test_a_lowered_max_is_kept_to() -> None:
    world = elastic()
    world.grow(4)
    world.job["spec"]["elasticPolicy"]["max"] = 3
    world.settle()
    assert world.status["elastic"]["lastScaleReason"] == "LimitsChanged"
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1", "a-worker-2"]


def test_an_evicted_surplus_pod_lowers_the_size_once() -> None:
    world = elastic()
    world.grow(4)
    world.run_all()
    world.now += timedelta(seconds=20)
    world.leaving("a-worker-3", evicted=True)
    actions = world.settle()
    assert world.created(actions) == []
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (3, "Evicted")
    assert status["message"] == "1 replica was evicted: a-worker-3"
    # It grows again while the evicted pod is still there.
    world.now += timedelta(seconds=5)
    world.resize = resize(3, 4)
    world.settle()
    assert world.status["elastic"]["desired"] == 4
    assert sorted(world.live())[-1] == "a-worker-4"


def test_an_evicted_pod_of_the_minimum_comes_back() -> None:
    world = elastic()
    world.run_all()
    world.leaving("a-worker-1", evicted=True)
    world.settle()
    assert world.status["elastic"]["desired"] == 2
    assert sorted(world.live()) == ["a-worker-0", "a-worker-2"]


# Failure


def test_a_failed_pod_comes_back_at_its_index_and_later_each_time() -> None:
    world = elastic()
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
    world = elastic()
    world.grow(4)
    world.run_all()
    world.fail("a-worker-0", code=137)
    world.remove("a-worker-3")
    assert world.created(world.step()) == ["a-worker-0"]
    assert world.created(world.step()) == ["a-worker-3"]


def test_a_protected_pod_that_is_lost_has_its_protection_taken_up_first() -> None:
    world = elastic()
    world.grow(4)
    world.run_all()
    world.fail("a-worker-1")
    actions = world.reconcile()
    assert [a.name for a in actions if isinstance(a, PatchPod)] == ["a-worker-2"]
    world.apply(actions)
    world.settle()
    assert [world.protected(f"a-worker-{i}") for i in range(4)] == [True, False, True, False]


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
    world = elastic(restartPolicy=policy)
    world.run_all()
    world.settle()
    world.fail("a-worker-1", code=code)
    world.step()
    assert world.state == state


def test_the_job_goes_on_while_its_minimum_can() -> None:
    world = elastic(restartPolicy="Never")
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
    world = elastic(restartPolicy="Never")
    world.run_all()
    world.leaving("a-worker-1")
    world.fail("a-worker-1", code=143)
    world.settle()
    assert world.state == "Running" or world.state == "Restarting"


def test_the_backoff_limit_and_the_deadline_end_a_job() -> None:
    world = elastic(runPolicy={"backoffLimit": 1})
    world.run_all()
    world.pods["a-worker-1"]["status"]["containerStatuses"] = [
        {"name": "pytorch", "restartCount": 1, "state": {"running": {}}}
    ]
    world.settle()
    assert world.state == "Failed"
    assert "backoff limit" in world.status["conditions"][-1]["message"]

    world = elastic(runPolicy={"activeDeadlineSeconds": 60})
    assert Requeue(timedelta(seconds=60)) in world.reconcile()
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.state == "Failed"
    assert "deadline" in world.status["conditions"][-1]["message"]


# The end


def test_any_worker_that_succeeds_ends_an_elastic_job() -> None:
    world = elastic()
    world.grow(4)
    for name in ("a-worker-0", "a-worker-1", "a-worker-2"):
        world.run(name)
    world.settle()
    world.finish("a-worker-2")
    world.settle()
    assert world.state == "Succeeded"
    # the pending one would never contribute; the running ones may finish by themselves
    assert "a-worker-3" not in world.live()
    assert {"a-worker-0", "a-worker-1"} <= set(world.live())
    assert world.podgroup is not None
    world.finish("a-worker-0")
    world.now += timedelta(seconds=30)
    world.settle()
    world.collect()
    world.settle()
    assert world.live() == [] and world.podgroup is None
    assert set(world.pods) == {"a-worker-0", "a-worker-2"}  # their logs remain
    assert world.status["completionTime"]


@pytest.mark.parametrize(
    ("policy", "left"),
    [("Running", {"a-worker-1"}), ("All", set())],
)
def test_clean_pod_policy(policy: str, left: set[str]) -> None:
    world = elastic(runPolicy={"cleanPodPolicy": policy})
    world.run_all()
    world.finish("a-worker-1")
    world.settle()
    world.collect()
    world.settle()
    assert set(world.pods) == left
    assert world.services == {} and world.podgroup is None


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    world = elastic(runPolicy={"ttlSecondsAfterFinished": 100})
    world.run_all()
    world.finish("a-worker-1")
    world.settle()
    assert Requeue(timedelta(seconds=100)) in world.reconcile()
    world.now += timedelta(seconds=100)
    assert DeleteJob() in world.reconcile()


def test_suspending_takes_all_away_and_resuming_brings_the_minimum() -> None:
    world = elastic()
    world.grow(4)
    world.run_all()
    world.settle()
    world.job["spec"]["runPolicy"] = {"suspend": True}
    world.settle()
    world.collect()
    world.settle()
    assert (world.pods, world.services, world.podgroup) == ({}, {}, None)
    assert world.state == "Suspended"
    world.job["spec"]["runPolicy"] = {"suspend": False}
    world.now += timedelta(seconds=30)
    world.settle()
    assert len(world.live()) == 2
    assert world.status["startTime"] == "2026-01-01T12:00:30Z"


def test_jobs_managed_by_others_or_being_deleted_are_left_alone() -> None:
    obj = job_object(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert reconcile(parse(obj), Observed(), NOW) == []
    obj = job_object()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    assert reconcile(parse(obj), Observed(), NOW) == []


def test_another_scheduler_gets_no_podgroup() -> None:
    world = World(job_object(elastic={"min": 1, "max": 2}), NOW)
    worker = world.job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["schedulerName"] = "mine"
    world.settle()
    assert world.podgroup is None
    pod = world.pods["a-worker-0"]
    assert pod["spec"]["schedulerName"] == "mine"
    assert "scheduling.k8s.io/group-name" not in pod["metadata"]["annotations"]


def test_running_means_the_minimum_runs() -> None:
    world = elastic(2, 4)
    world.run("a-worker-0")
    world.settle()
    assert world.state == "Created"
    world.run("a-worker-1")
    world.settle()
    assert world.state == "Running"
    assert world.status["elastic"]["ready"] == 2
    assert world.status["replicaStatuses"]["Worker"]["active"] == 2


def test_an_invalid_job_fails_saying_what_would_be_right_and_gets_no_pods() -> None:
    obj = job_object(elastic={"min": 3, "max": 2})
    actions = refuse(obj, validate(obj), NOW)
    (patch,) = [a for a in actions if isinstance(a, PatchStatus)]
    message = patch.status["conditions"][-1]["message"]
    assert message == (
        "spec.elasticPolicy.min: Invalid value: 3: must be at most max (2); a failed job stays "
        "failed: correct it and create it anew"
    )
    assert patch.status["conditions"][-1]["type"] == "Failed"
    assert EmitEvent("PyTorchJobInvalid", message, warning=True) in actions
    assert not any(isinstance(a, CreatePod | CreateService | CreatePodGroup) for a in actions)
    obj["status"] = patch.status
    assert refuse(obj, validate(obj), NOW) == []


def test_however_much_is_wrong_the_status_can_hold_it() -> None:
    obj = job_object()
    containers = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    containers += [{"name": f"c{i}", "image": ""} for i in range(20_000)]
    obj["spec"]["pytorchReplicaSpecs"]["x" * 100_000] = {}
    actions = refuse(obj, validate(obj), NOW)
    (patch,) = (a for a in actions if isinstance(a, PatchStatus))
    message = patch.status["conditions"][-1]["message"]
    assert "containers[1].image" in message and "and 19981 more" in message
    assert len(message) < 10_000


def test_a_running_job_that_is_edited_into_nonsense_goes_on() -> None:
    world = elastic()
    world.run_all()
    world.settle()
    world.job["spec"]["elasticPolicy"]["max"] = 1
    actions = refuse(world.job, validate(world.job), NOW)
    world.apply(actions)
    assert world.state == "Running"
    assert "must be at most max (1)" in world.status["elastic"]["message"]
    assert refuse(world.job, validate(world.job), NOW) == []
    world.job["spec"]["elasticPolicy"]["max"] = 4
    world.settle()
    assert "message" not in world.status["elastic"]


def test_a_running_job_that_is_edited_into_nonsense_gets_no_new_pods_until_it_is_right() -> None:
    world = elastic()
    world.run_all()
    world.settle()
    world.job["spec"]["elasticPolicy"]["max"] = 1
    world.apply(refuse(world.job, validate(world.job), NOW))
    world.remove("a-worker-1")
    # There is no telling what the pod should be like; the others go on.
    assert refuse(world.job, validate(world.job), NOW) == []
    assert "a-worker-0" in world.pods
    world.job["spec"]["elasticPolicy"]["max"] = 4
    assert world.created(world.settle()) == ["a-worker-1"]


def test_a_job_that_is_elastic_no_longer_forgets_its_size() -> None:
    world = elastic(low=1, replicas=1)
    world.status["elastic"]["gpuHours"] = 1.5
    del world.job["spec"]["elasticPolicy"]
    world.settle()
    assert world.status["elastic"] == {"gpuHours": 1.5, "restarts": 0}


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_pods_of_a_type_that_was_taken_out_go_and_decide_nothing(phase: str) -> None:
    world = World(job_object(master=True, restartPolicy="Never"), NOW)
    world.settle()
    world.run_all()
    world.settle()
    world.pods["a-worker-1"]["status"]["phase"] = phase
    del world.services["a-worker-1"]
    del world.job["spec"]["pytorchReplicaSpecs"]["Worker"]
    world.step()
    world.collect()
    world.settle()
    assert world.pods.keys() == world.services.keys() == {"a-master-0"}
    assert world.state == "Running"
