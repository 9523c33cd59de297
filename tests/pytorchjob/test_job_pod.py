"""A job's pods: names, labels, environment, init container, volumes."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.pytorchjob.world import METRICS, NOW, World, begin, job_object, running, values
from volcano_elastic.pytorchjob.settings import Settings


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
        "VOLCANO_ELASTIC_GRACE_SECONDS": "30",
        "VOLCANO_ELASTIC_COORDINATOR": "worker0",
        "VOLCANO_ELASTIC_PEERS": "a-worker-0,a-worker-1,a-worker-2,a-worker-3",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    path = variables["VOLCANO_ELASTIC_POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "status.podIP"
    node = variables["VOLCANO_ELASTIC_NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert node == "spec.nodeName"
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


@pytest.mark.parametrize(("given", "told"), [(600, "600"), (0, "1")])
def test_a_pod_knows_the_grace_that_its_template_gives_it(given: int, told: str) -> None:
    job = job_object(elastic={"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"})
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = given
    world = World(job, NOW)
    world.settle()
    variables = world.pods["a-worker-0"]["spec"]["containers"][0]["env"]
    assert {"name": "VOLCANO_ELASTIC_GRACE_SECONDS", "value": told} in variables


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


def test_a_pod_that_is_made_later_hears_of_the_commits_and_those_there_stay() -> None:
    world = running(2, 2)
    assert "VOLCANO_ELASTIC_COMMITS" not in values(world, "a-worker-1")
    there = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    world.job["status"]["elastic"]["commits"] = {"ef": 4, "ab": 60}
    world.settle()
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods.items()} == there
    world.lose("a-worker-1")
    world.settle()
    assert world.pods["a-worker-1"]["metadata"]["uid"] != there["a-worker-1"]
    assert values(world, "a-worker-1")["VOLCANO_ELASTIC_COMMITS"] == "ab=60 ef=4"


def test_exit_code_policy_keeps_the_kubelet_from_restarting() -> None:
    world = begin(restartPolicy="ExitCode")
    assert world.pods["a-worker-0"]["spec"]["restartPolicy"] == "Never"


def test_a_scheduler_name_of_null_is_none() -> None:
    job = job_object()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["schedulerName"] = None
    world = World(job, NOW)
    world.settle()
    assert world.podgroup is not None
    assert world.pods["a-worker-0"]["spec"]["schedulerName"] == "volcano"


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


@pytest.mark.process
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
