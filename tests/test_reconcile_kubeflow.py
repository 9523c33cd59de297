"""What Kubeflow's manifests, SDK and dashboards rely on, and where its training-operator 1.9 fails.

Defects of the original carry the number of its issue where there is one (kubeflow/trainer).
"""

from __future__ import annotations

import copy
import os
import subprocess
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from job_world import World, active, job_object
from torch.distributed.run import parse_args

from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.observed import Observed
from volcano_elastic.pytorchjob.reconcile import reconcile
from volcano_elastic.pytorchjob.settings import Settings

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
METRICS = [
    {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1500m"}},
    }
]


def begin(low: int | None = None, high: int = 4, **spec: Any) -> World:
    """A job at rest with all its first pods; elastic from `low` to `high` if given."""
    policy = spec.pop("policy", {})
    elastic = None if low is None else {"min": low, "max": high, **policy}
    world = World(job_object(elastic=elastic, **spec), NOW)
    world.settle()
    return world


def running(low: int | None = None, high: int = 4, **spec: Any) -> World:
    world = begin(low, high, **spec)
    world.run_all()
    assert world.state == "Running"
    return world


def values(world: World, pod: str) -> dict[str, str]:
    return {v["name"]: v["value"] for v in world.env(pod) if "value" in v}


def conditions(world: World) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in world.status["conditions"]]


# Names, labels, environment


def test_pods_and_services_bear_the_names_that_clients_guess() -> None:
    world = begin(master=True)
    names = {"a-master-0", "a-worker-0", "a-worker-1"}
    assert set(world.pods) == set(world.services) == names
    master = world.pods["a-master-0"]["metadata"]["labels"]
    assert master["training.kubeflow.org/job-role"] == "master"
    assert master["training.kubeflow.org/replica-type"] == "master"
    assert "training.kubeflow.org/job-role" not in world.pods["a-worker-0"]["metadata"]["labels"], (
        "the Master has that role"
    )


def test_everything_is_owned_by_the_job_and_blocks_its_foreground_deletion() -> None:
    world = begin(1, policy={"metrics": METRICS})
    assert world.podgroup is not None and world.autoscaler is not None
    owned = [*world.pods.values(), *world.services.values(), world.podgroup, world.autoscaler]
    for obj in owned:
        (owner,) = obj["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": "a",
            "uid": "u1",
            "controller": True,
            "blockOwnerDeletion": True,
        }


def test_every_container_gets_the_environment_after_its_own() -> None:
    job = job_object(master=True)
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"].append({"name": "log-shipper", "image": "ship:1"})
    world = World(job, NOW)
    world.settle()
    train, ship = world.pods["a-worker-1"]["spec"]["containers"]
    assert train["env"][0] == {"name": "USER_SET", "value": "1"}
    assert train["env"][1:] == ship["env"]
    assert {v["name"] for v in ship["env"]} == {
        "PYTHONUNBUFFERED",
        "PET_NPROC_PER_NODE",
        "PET_NNODES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "PET_NODE_RANK",
    }
    assert "ports" not in ship and train["ports"][0]["containerPort"] == 23456


def test_world_size_counts_processes_where_their_number_is_known() -> None:
    assert values(begin(master=True, nprocPerNode="4"), "a-worker-1")["WORLD_SIZE"] == "12"
    auto = values(begin(master=True), "a-master-0")
    assert (auto["WORLD_SIZE"], auto["RANK"], auto["PET_NPROC_PER_NODE"]) == ("3", "0", "auto")


def test_a_job_without_master_gets_no_rank_and_no_world_size() -> None:
    found = values(begin(), "a-worker-0")
    assert found == {
        "USER_SET": "1",
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2",
    }


def test_elastic_fields_reach_torchrun() -> None:
    policy = {
        "rdzvBackend": "etcd",
        "rdzvHost": "etcd",
        "rdzvPort": 2379,
        "rdzvId": "7",
        "rdzvConf": [{"key": "timeout", "value": "9"}, {"key": "x", "value": "y"}],
        "maxRestarts": 3,
        "nodeUnit": 2,
    }
    found = values(begin(2, policy=policy), "a-worker-0")
    assert found["PET_RDZV_BACKEND"] == "etcd"
    assert found["PET_RDZV_ENDPOINT"] == "etcd:2379"
    assert found["PET_RDZV_ID"] == "7"
    assert found["PET_RDZV_CONF"] == "timeout=9,x=y"
    assert found["PET_MAX_RESTARTS"] == "3"
    assert found["VOLCANO_ELASTIC_NODE_UNIT"] == "2"


def test_a_service_is_headless_and_found_before_readiness_only_where_elastic() -> None:
    def spec(world: World) -> Any:
        return world.services["a-worker-1"]["spec"]

    fixed, elastic = begin(master=True), begin(2)
    assert spec(fixed)["clusterIP"] == spec(elastic)["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in spec(fixed)
    assert spec(elastic)["publishNotReadyAddresses"] is True
    assert spec(fixed)["ports"] == [{"name": "pytorchjob-port", "port": 23456, "protocol": "TCP"}]
    assert set(spec(fixed)["selector"]) == {
        f"training.kubeflow.org/{name}"
        for name in ("operator-name", "job-name", "replica-type", "replica-index")
    }


# The init container


def test_only_workers_of_a_job_with_a_master_wait_for_it() -> None:
    world = begin(master=True)
    assert "initContainers" not in world.pods["a-master-0"]["spec"]
    (init,) = world.pods["a-worker-0"]["spec"]["initContainers"]
    assert (init["name"], init["image"]) == ("init-pytorch", "train:1")
    assert init["env"] == [{"name": "MASTER_ADDR", "value": "a-master-0"}]
    assert "initContainers" not in begin().pods["a-worker-0"]["spec"]


def test_the_init_containers_image_and_patience_can_be_chosen() -> None:
    world = World(job_object(master=True), NOW)
    world.settings = Settings("busybox:1.36", 5)
    world.settle()
    (init,) = world.pods["a-worker-0"]["spec"]["initContainers"]
    assert init["image"] == "busybox:1.36"
    assert "-ge 5 ]" in init["command"][2]


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", 0), ("no-such-host.invalid", 1)])
def test_the_init_container_waits_and_gives_up_with_a_reason(host: str, code: int) -> None:
    world = World(job_object(master=True), NOW)
    world.settings = Settings(init_container_max_tries=1)
    world.settle()
    (init,) = world.pods["a-worker-0"]["spec"]["initContainers"]
    done = subprocess.run(
        init["command"],
        env={"PATH": os.environ["PATH"], "MASTER_ADDR": host},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr == (
        ""
        if code == 0
        else f"{host} has no address after 1 tries, 2 s apart: is the Master's pod ready?\n"
    )


def test_a_jobs_own_init_containers_come_first() -> None:
    job = job_object(master=True)
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["initContainers"] = [{"name": "fetch", "image": "x"}]
    world = World(job, NOW)
    world.settle()
    names = [c["name"] for c in world.pods["a-worker-0"]["spec"]["initContainers"]]
    assert names == ["fetch", "init-pytorch"]


# Conditions, messages, counts, events


def test_conditions_come_in_kubeflows_order_with_its_reasons_and_messages() -> None:
    world = running(master=True)
    world.fail("a-worker-1", code=137)
    world.step()
    assert conditions(world)[-1] == ("Restarting", "True", "PyTorchJobRestarting")
    message = world.status["conditions"][-1]["message"]
    assert message == "PyTorchJob a is restarting because 1 Worker replica(s) failed."
    world.run_all()
    assert world.status["conditions"][-1]["message"] == "PyTorchJob a is running."
    world.finish("a-master-0")
    world.settle()
    assert conditions(world) == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobSucceeded"),
        ("Succeeded", "True", "PyTorchJobSucceeded"),
    ]
    created, _, succeeded = world.status["conditions"]
    assert created["message"] == "PyTorchJob a is created."
    assert succeeded["message"] == "PyTorchJob a is successfully completed."
    assert world.status["startTime"] == world.status["completionTime"] == "2026-01-01T12:00:00Z"


def test_a_job_without_master_is_told_by_namespace_and_name() -> None:
    world = running()
    assert world.status["conditions"][-1]["message"] == "PyTorchJob team/a is running."
    for name in ("a-worker-0", "a-worker-1"):
        world.finish(name)
    world.settle()
    message = world.status["conditions"][-1]["message"]
    assert message == "PyTorchJob team/a successfully completed."


def test_a_failure_names_what_failed() -> None:
    world = running(restartPolicy="Never")
    world.fail("a-worker-1", code=3)
    world.settle()
    message = world.status["conditions"][-1]["message"]
    assert message.startswith("PyTorchJob a is failed because 1 Worker replica(s) failed.")
    assert "a-worker-1 (exit code 3)" in message


def test_replica_statuses_carry_the_selector_that_kubectl_scale_and_an_hpa_read() -> None:
    world = running(master=True)
    assert world.status["replicaStatuses"]["Worker"] == {
        "active": 2,
        "succeeded": 0,
        "failed": 0,
        "selector": "training.kubeflow.org/job-name=a,"
        "training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/replica-type=worker",
    }


def test_counts_of_a_finished_job_outlive_its_pods() -> None:
    world = running(runPolicy={"cleanPodPolicy": "All"})
    for name in ("a-worker-0", "a-worker-1"):
        world.finish(name)
    world.settle()
    world.collect()
    world.settle()
    assert world.pods == {}
    assert world.status["replicaStatuses"]["Worker"]["succeeded"] == 2


def test_a_burst_is_one_event() -> None:
    world = World(job_object(elastic={"min": 100, "max": 100}), NOW)
    first = world.events(world.step())
    assert first["SuccessfulCreatePod"] == "Created pod: a-worker-0"
    assert first["SuccessfulCreateService"] == "Created service: a-worker-0"
    second = world.step()
    told = [x for x in second if isinstance(x, a.EmitEvent) and x.reason == "SuccessfulCreatePod"]
    assert len(told) == 1 and told[0].message.startswith("Created 99 pods: a-worker-1, a-worker-2")
    assert told[0].message.endswith("and 91 more")


def test_an_exit_code_is_told_once() -> None:
    world = running(restartPolicy="ExitCode")
    world.fail("a-worker-1", code=137)
    first = world.events(world.step())
    assert first["ExitedWithCode"] == "Pod: team.a-worker-1 exited with code 137"
    assert "ExitedWithCode" not in world.events(world.settle())
    world.run_all()
    world.fail("a-worker-0", code=1)
    assert "exited with code 1" in world.events(world.step())["ExitedWithCode"]
    assert world.state == "Failed"


def test_what_of_a_template_is_overruled_is_told_at_the_beginning() -> None:
    job = job_object()
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec |= {"restartPolicy": "Always", "schedulerName": "mine"}
    world = World(job, NOW)
    told = world.events(world.step())
    assert told["SetPodTemplateRestartPolicy"].startswith("Restart policy in pod template will be")
    assert told["SetPodTemplateSchedulerName"].startswith("Another scheduler is specified when")
    assert world.pods["a-worker-0"]["spec"]["restartPolicy"] == "OnFailure"
    world.settle()
    assert not world.events(world.step())


# Restart policies, deadlines, limits


def test_exit_code_policy_keeps_the_kubelet_from_restarting() -> None:
    world = begin(restartPolicy="ExitCode")
    assert world.pods["a-worker-0"]["spec"]["restartPolicy"] == "Never"


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


def test_backoff_limit_zero_fails_at_the_first_restart() -> None:
    world = running(runPolicy={"backoffLimit": 0})
    world.fail("a-worker-1")
    world.settle()
    assert world.state == "Failed"
    message = world.status["conditions"][-1]["message"]
    assert message == "Job a has failed because it has reached the specified backoff limit"


def test_scaling_a_fixed_job_down_removes_the_highest_indexes() -> None:
    world = running(replicas=4)
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"]


def test_a_job_created_suspended_has_no_start_time_until_it_runs() -> None:
    world = begin(runPolicy={"suspend": True})
    assert conditions(world) == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Suspended", "True", "PyTorchJobSuspended"),
    ]
    assert world.status["conditions"][-1]["message"] == "PyTorchJob a is suspended."
    assert "startTime" not in world.status and not world.pods
    world.job["spec"]["runPolicy"]["suspend"] = False
    world.now += timedelta(minutes=1)
    world.settle()
    assert conditions(world)[-1] == ("Suspended", "False", "PyTorchJobResumed")
    assert world.status["conditions"][-1]["message"] == "PyTorchJob a is resumed."
    assert world.status["startTime"] == "2026-01-01T12:01:00Z"


def test_suspending_keeps_names_and_gang_until_the_last_checkpoint_is_written() -> None:
    world = running(2)
    world.job["spec"]["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.live() == [] and len(world.services) == 2 and world.podgroup is not None
    assert world.status["replicaStatuses"]["Worker"]["active"] == 0
    world.collect()
    told = world.events(world.settle())
    assert (world.services, world.podgroup) == ({}, None)
    assert told["JobTerminated"] == "Job has been terminated. Deleting PodGroup"
    assert told["SuccessfulDeletePodGroup"] == "Deleted PodGroup: a"


# The autoscaler


def test_metrics_make_an_autoscaler_between_min_and_max() -> None:
    world = begin(2, 6, policy={"metrics": METRICS})
    assert world.autoscaler is not None
    assert world.autoscaler["spec"] == {
        "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "a"},
        "minReplicas": 2,
        "maxReplicas": 6,
        "metrics": METRICS,
    }


def test_an_autoscaler_follows_the_job_and_is_left_alone_when_it_is_right() -> None:
    world = begin(2, 6, policy={"metrics": METRICS})
    assert world.autoscaler is not None
    # The API server adds defaults and spells quantities its own way.
    spec = world.autoscaler["spec"]
    spec["behavior"] = {"scaleUp": {"stabilizationWindowSeconds": 0}}
    spec["metrics"] = copy.deepcopy(METRICS)
    spec["metrics"][0]["resource"]["target"]["averageValue"] = "1.5"
    assert not active(world.reconcile())
    world.job["spec"]["elasticPolicy"]["max"] = 8
    world.settle()
    assert world.autoscaler["spec"]["maxReplicas"] == 8
    assert world.autoscaler["spec"]["behavior"]


@pytest.mark.parametrize("why", ["no metrics any more", "another scaler", "suspended"])
def test_an_autoscaler_goes_when_nothing_asks_for_it(why: str) -> None:
    world = begin(2, 6, policy={"metrics": METRICS})
    spec = world.job["spec"]
    if why == "no metrics any more":
        del spec["elasticPolicy"]["metrics"]
    elif why == "another scaler":
        spec["elasticPolicy"]["scaler"] = "volcano"
    else:
        spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.autoscaler is None


@pytest.mark.parametrize("scaler", ["volcano", "none"])
def test_kubectl_scale_is_ignored_with_one_warning_unless_scaler_is_hpa(scaler: str) -> None:
    world = begin(2, policy={"scaler": scaler})
    assert not world.events(world.reconcile()), "what the manifest said is no scaling"
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    (warning,) = [x for x in world.step() if isinstance(x, a.EmitEvent)]
    assert (warning.reason, warning.warning) == ("ScaleIgnored", True)
    assert "went from 2 to 3" in warning.message and "between 2 and 4" in warning.message
    world.settle()
    assert len(world.live()) == 2
    assert not world.events(world.reconcile())


def test_under_hpa_a_wish_changes_no_pods_by_itself_and_warns_nobody() -> None:
    world = begin(2, policy={"metrics": METRICS})
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 4
    assert not world.events(world.settle())
    assert len(world.live()) == 2  # the policy caps the wish, and says what is granted


# Elastic departures


def test_an_evicted_worker_fails_nobody_and_its_place_is_not_taken_back_at_once() -> None:
    world = running(2, restartPolicy="Never")
    world.grow(3)
    world.run_all()
    world.now += timedelta(seconds=5)
    world.leaving("a-worker-2", evicted=True)
    world.settle()
    assert world.state == "Running" and len(world.live()) == 2


def test_surplus_pods_get_the_policys_grace_where_it_is_shorter_than_their_own() -> None:
    world = running(1)
    world.grow(3)
    world.run_all()
    worker = world.job["spec"]["elasticPolicy"]
    world.grace = timedelta(seconds=10)
    worker["max"] = 2
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert gone.grace == timedelta(seconds=10)
    world.grace = timedelta(0)
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert gone.grace == timedelta(seconds=1), "0 would forget it while it runs"
    world.grace = timedelta(seconds=10)
    world.pods["a-worker-2"]["spec"]["terminationGracePeriodSeconds"] = 5
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert gone.grace is None, "its own is shorter"


def test_surplus_pods_carry_the_policys_protection() -> None:
    world = World(job_object(elastic={"min": 1, "max": 3}), NOW)
    world.protect = timedelta(seconds=90)
    world.settle()
    world.grow(2)
    annotations = [world.pods[f"a-worker-{i}"]["metadata"]["annotations"] for i in (0, 1)]
    assert "volcano.sh/cooldown-time" not in annotations[0]
    assert annotations[1]["volcano.sh/cooldown-time"] == "90s"


def test_an_explicit_min_available_wins_and_its_change_arrives() -> None:
    world = running(2, runPolicy={"schedulingPolicy": {"minAvailable": 1}})
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 1
    world.grow(3)
    world.job["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] = 3
    world.settle()
    assert world.podgroup["spec"]["minMember"] == 3
    assert world.podgroup["spec"]["minResources"] == {"nvidia.com/gpu": "3"}
    assert all(world.protected(name) for name in world.live())


def test_a_gang_above_the_minimum_has_all_its_members_and_keeps_them() -> None:
    # Volcano places nobody of a gang that lacks members.
    asked = {"schedulingPolicy": {"minAvailable": 3}}
    world = running(1, policy={"nodeUnit": 1}, runPolicy=asked)
    assert len(world.live()) == 3 and world.status["elastic"]["desired"] == 3
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 3
    assert all(world.protected(name) for name in world.live())
    world.grow(4)
    world.grow(1)
    assert len(world.live()) == 3, "no decision takes it below"
    world.now += timedelta(seconds=5)
    world.leaving("a-worker-2", evicted=True)
    world.settle()
    world.collect()
    world.settle()
    assert len(world.live()) == 3, "nor does an eviction"


def test_a_gang_that_asks_for_more_members_gets_them() -> None:
    world = running(1, master=True, policy={"nodeUnit": 1})
    world.job["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": 4}}
    world.settle()
    assert len(world.live()) == 4, "the Master and three Workers"
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 4


def test_a_gang_in_units_is_whole_units_and_never_beyond_the_maximum() -> None:
    asked = {"schedulingPolicy": {"minAvailable": 3}}
    assert len(begin(2, policy={"nodeUnit": 2}, runPolicy=asked).live()) == 4
    asked = {"schedulingPolicy": {"minAvailable": 9}}
    assert len(begin(2, runPolicy=asked).live()) == 4


def test_a_service_names_each_port_once() -> None:
    # A container may have a port twice; the API server refuses a service that does.
    job = job_object()
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["ports"] = [
        {"containerPort": 23456},
        {"containerPort": 23456, "protocol": "UDP", "name": None},
        {"containerPort": 80, "protocol": None},
    ]
    world = World(job, NOW)
    world.settle()
    ports = world.services["a-worker-0"]["spec"]["ports"]
    assert [(p["name"], p["port"], p["protocol"]) for p in ports] == [
        ("pytorchjob-port", 23456, "TCP"),
        ("port-1", 23456, "UDP"),
        ("port-2", 80, "TCP"),
    ]


def test_a_scheduler_name_of_null_is_none() -> None:
    job = job_object()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["schedulerName"] = None
    world = World(job, NOW)
    world.settle()
    assert world.podgroup is not None
    assert world.pods["a-worker-0"]["spec"]["schedulerName"] == "volcano"


def test_min_resources_are_right_before_there_are_pods() -> None:
    # The init container that waits for the Master asks for more cpu and memory than these Workers.
    world = World(job_object(master=True), NOW)
    actions = world.settle()
    (made,) = [x.body["spec"] for x in actions if isinstance(x, a.CreatePodGroup)]
    assert made["minResources"] == {"nvidia.com/gpu": "3", "cpu": "200m", "memory": "40Mi"}
    assert not [x for x in actions if isinstance(x, a.PatchPodGroup)], "a call saved"


def test_min_resources_follow_what_the_api_server_made_of_the_pods() -> None:
    world = begin(2)
    for pod in world.pods.values():  # a LimitRange's default, a RuntimeClass' overhead
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "250m"}
        pod["spec"]["overhead"] = {"memory": "64Mi"}
    world.settle()
    assert world.podgroup is not None
    assert world.podgroup["spec"]["minResources"] == {
        "nvidia.com/gpu": "2",
        "cpu": "500m",
        "memory": "128Mi",
    }


def test_a_changed_queue_is_refused_and_said_once() -> None:
    world = begin(1)
    world.job["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "research"}
    (warning,) = [x for x in world.reconcile() if isinstance(x, a.EmitEvent)]
    assert (warning.reason, warning.standing) == ("QueueUnchanged", True)
    assert "asks for queue research, but its PodGroup stays in default" in warning.message
    world.settle()
    assert world.podgroup is not None and world.podgroup["spec"]["queue"] == "default"


def test_shared_memory_is_mounted_where_it_is_asked_for() -> None:
    job = job_object()
    job["metadata"]["annotations"] = {"volcano-elastic.io/shared-memory": "8Gi"}
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"].append({"name": "log-shipper", "image": "ship:1"})
    world = World(job, NOW)
    world.settle()
    found = world.pods["a-worker-0"]["spec"]
    name = "volcano-elastic-shared-memory"
    assert found["volumes"] == [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    ]
    train, ship = found["containers"]
    assert train["volumeMounts"] == [{"name": name, "mountPath": "/dev/shm"}]
    assert "volumeMounts" not in ship


def test_a_templates_own_shared_memory_is_left_alone() -> None:
    job = job_object()
    job["metadata"]["annotations"] = {"volcano-elastic.io/shared-memory": "8Gi"}
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm/"}]
    world = World(job, NOW)
    world.settle()
    assert world.pods["a-worker-0"]["spec"]["volumes"] == spec["volumes"]


# Each call to the API server counts


def test_nothing_is_asked_of_the_api_server_while_nothing_changes() -> None:
    for world in (running(2, policy={"metrics": METRICS}), running(master=True)):
        world.now += timedelta(hours=1)
        assert not active(world.reconcile())


def test_counts_of_a_burst_are_told_once_a_second() -> None:
    world = begin(4, 8)
    world.now += timedelta(seconds=5)
    world.run("a-worker-0")
    assert any(isinstance(x, a.PatchStatus) for x in world.step())
    world.run("a-worker-1")
    waits = world.step()
    assert not active(waits) and a.Requeue(timedelta(seconds=1)) in waits
    world.now += timedelta(seconds=1)
    world.step()
    assert world.status["elastic"]["ready"] == 2
    world.run("a-worker-2")
    world.run("a-worker-3")
    world.step()
    assert (world.state, world.status["elastic"]["ready"]) == ("Running", 4), "the last at once"


def test_a_thousand_replicas_cost_one_call_a_pod_one_a_service_and_a_few_more() -> None:
    world = World(job_object(elastic={"min": 1000, "max": 1000}), NOW)
    calls = [x for x in world.settle() if not isinstance(x, a.Requeue)]
    kinds = {kind: sum(type(x) is kind for x in calls) for kind in {type(x) for x in calls}}
    assert kinds[a.CreatePod] == kinds[a.CreateService] == 1000
    assert len(calls) - 2000 <= 12, kinds


@pytest.mark.parametrize("elastic", [True, False])
def test_a_reconcile_of_a_thousand_replicas_takes_milliseconds(elastic: bool) -> None:
    policy = {"min": 1000, "max": 1000} if elastic else None
    world = World(job_object(elastic=policy, replicas=1000), NOW)
    world.step()
    spent = []
    for _ in range(5):
        began = time.process_time()
        actions = world.reconcile()
        spent.append(time.process_time() - began)
    world.apply(actions)
    assert len(world.pods) == 1000
    # 11 ms where it was written; a copy of the template for each pod would take ten times that.
    assert min(spent) < 0.1


# Defects of the original


def test_defect_an_empty_pet_standalone_stops_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values(begin(1, policy={"standalone": True}), "a-worker-0")
    monkeypatch.setenv("PET_STANDALONE", found["PET_STANDALONE"])
    assert parse_args(["train.py"]).standalone is True
    assert "PET_STANDALONE" not in values(begin(1), "a-worker-0")


def test_defect_an_empty_rdzv_conf_panics_the_operator() -> None:
    assert "PET_RDZV_CONF" not in values(begin(1, policy={"rdzvConf": []}), "a-worker-0")


def test_defect_2277_pet_nnodes_leaves_the_master_out() -> None:
    assert values(begin(1, 3, master=True), "a-master-0")["PET_NNODES"] == "2:4"


def test_defect_every_reconcile_puts_the_podgroup() -> None:
    world = running(2)
    assert not any(isinstance(x, a.PatchPodGroup) for x in world.reconcile())


def test_defect_replacing_the_podgroup_loses_foreign_fields() -> None:
    world = running(2)
    assert world.podgroup is not None
    world.podgroup["spec"]["networkTopology"] = {"mode": "hard"}
    world.podgroup["metadata"]["annotations"] = {"volcano.sh/sla-waiting-time": "1h"}
    world.job["spec"]["elasticPolicy"]["min"] = 1
    (patch,) = [x for x in world.reconcile() if isinstance(x, a.PatchPodGroup)]
    assert patch.body == {"spec": {"minMember": 1, "minResources": {"nvidia.com/gpu": "1"}}}


def test_defect_1571_the_gang_is_all_replicas_instead_of_the_minimum() -> None:
    world = begin(2, 8, replicas=8)
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 2


@pytest.mark.parametrize("phase", [None, "", "Pending", "Inqueue", "Unknown"])
def test_defect_1630_pods_and_status_wait_for_the_podgroups_phase(phase: str | None) -> None:
    world = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    world.step()
    assert world.podgroup is not None
    world.podgroup["status"] = {"phase": phase}
    world.settle()
    assert len(world.live()) == 2
    world.run_all()
    world.podgroup["status"] = {"phase": "Pending"}
    for name in ("a-worker-0", "a-worker-1"):
        world.fail(name, 137)
    world.settle()
    assert world.state == "Restarting" and len(world.live()) == 2


def test_defect_an_hpa_step_is_all_or_nothing() -> None:
    world = running(2, 8)
    world.grow(5)
    assert len(world.live()) == 5
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 2


def test_defect_1504_workers_run_on_after_worker_0_succeeded() -> None:
    world = running(2)
    world.finish("a-worker-0")
    world.settle()
    assert world.state == "Succeeded"
    world.now += timedelta(seconds=30)
    world.settle()
    world.collect()
    assert world.live() == []


def test_defect_1751_a_pending_extra_worker_keeps_the_job_running() -> None:
    world = running(2)
    world.grow(3)
    for name in ("a-worker-0", "a-worker-1"):
        world.finish(name)
    world.settle()
    assert world.state == "Succeeded" and world.live() == []


def test_defect_a_deleted_worker_that_exits_0_counts_as_success() -> None:
    world = running(2)
    world.leaving("a-worker-1")
    world.finish("a-worker-1")
    world.settle()
    assert not world.ended


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_defect_a_terminating_pod_under_never_fails_the_job(low: int | None) -> None:
    world = running(low, restartPolicy="Never")
    world.leaving("a-worker-1")
    world.settle()
    assert not world.ended
    world.collect()
    world.settle()
    assert len(world.live()) == 2 and not world.ended


def test_defect_running_with_fewer_than_min() -> None:
    world = begin(2)
    world.run("a-worker-0")
    world.settle()
    assert world.state == "Created"


def test_defect_restarting_stays_true_beside_succeeded() -> None:
    world = running(2)
    world.fail("a-worker-1", 137)
    world.step()
    assert world.state == "Restarting"
    world.finish("a-worker-0")
    world.settle()
    assert [c[0] for c in conditions(world) if c[1] == "True"] == ["Created", "Succeeded"]


def test_defect_after_success_a_failure_is_added() -> None:
    world = running(2, restartPolicy="Never")
    world.finish("a-worker-0")
    world.fail("a-worker-1", 1)
    world.settle()
    world.now += timedelta(minutes=1)
    world.settle()
    assert [c[0] for c in conditions(world) if c[1] == "True"] == ["Created", "Succeeded"]


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_defect_2045_backoff_limit_forgets_pods_that_are_gone(low: int | None) -> None:
    world = running(low, runPolicy={"backoffLimit": 3})
    for _ in range(3):
        assert not world.ended
        world.now += timedelta(minutes=11)  # long enough to start the back-off afresh
        world.fail("a-worker-1", 1)
        world.settle()
        if not world.ended:
            world.run_all()
    assert world.state == "Failed"


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


def test_defect_3358_the_deadline_is_looked_at_only_at_the_next_event() -> None:
    world = running(2, runPolicy={"activeDeadlineSeconds": 60})
    world.now += timedelta(seconds=59)
    assert a.Requeue(timedelta(seconds=1)) in world.reconcile()
    world.now += timedelta(seconds=1)
    world.settle()
    assert world.state == "Failed"
    message = world.status["conditions"][-1]["message"]
    assert message == "Job a has failed because it was active longer than specified deadline"


def test_defect_3420_deadline_and_backoff_ignore_clean_pod_policy() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 60, "cleanPodPolicy": "None"})
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.state == "Failed" and len(world.live()) == 2
    world = running(runPolicy={"activeDeadlineSeconds": 60, "cleanPodPolicy": "All"})
    world.now += timedelta(seconds=60)
    world.settle()
    world.collect()
    assert world.pods == {}


def test_defect_the_hpa_outlives_the_job() -> None:
    world = running(2, policy={"metrics": METRICS})
    world.finish("a-worker-0")
    assert any(isinstance(x, a.DeleteAutoscaler) for x in world.step())
    world.settle()
    assert world.autoscaler is None


def test_defect_1426_the_podgroup_is_made_and_deleted_endlessly_after_the_end() -> None:
    world = running(2, runPolicy={"cleanPodPolicy": "All"})
    world.finish("a-worker-0")
    world.settle()
    assert world.podgroup is not None, "pods still leave"
    world.collect()
    world.settle()
    assert world.podgroup is None
    assert not active(world.reconcile())


def test_defect_the_podgroup_goes_while_others_still_run() -> None:
    world = running(master=True)
    world.finish("a-master-0")
    world.settle()
    assert world.state == "Succeeded"
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"], "cleanPodPolicy None"
    assert world.podgroup is not None


def test_defect_1570_a_node_shutdown_fails_on_failure_jobs() -> None:
    world = running(restartPolicy="OnFailure")
    world.fail("a-worker-1", evicted=True)
    world.pods["a-worker-1"]["status"].pop("containerStatuses")  # nobody knows an exit code
    world.step()
    assert world.state == "Restarting" and len(world.live()) == 2


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_defect_2072_a_pod_of_a_dead_node_blocks_its_index_for_ever(low: int | None) -> None:
    world = running(low)
    world.leaving("a-worker-0")
    world.settle()
    assert a.Requeue(timedelta(minutes=1)) in world.reconcile()
    world.now += timedelta(seconds=59)
    assert not active(world.step())
    world.now += timedelta(seconds=1)
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert (gone.name, gone.grace) == ("a-worker-0", timedelta(0))
    world.settle()
    assert "a-worker-0" in world.live()


def test_defect_2361_pods_are_created_one_after_the_other() -> None:
    world = World(job_object(replicas=50), NOW)
    created = [x for x in world.reconcile() if isinstance(x, a.CreatePod)]
    assert len(created) == 50 and {x.stage for x in created} == {a.Stage.CREATE}


def test_a_job_of_somebody_elses_manager_gets_nothing_at_all() -> None:
    job = job_object(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert reconcile(parse(job), Observed(), NOW) == []
