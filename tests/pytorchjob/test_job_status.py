"""Conditions, counts and events of a job, in Kubeflow's order and words."""

from __future__ import annotations

from tests.pytorchjob.world import NOW, World, begin, conditions, job_object, running
from volcano_elastic.pytorchjob import action as a


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


def test_running_means_the_minimum_runs() -> None:
    world = begin(2, 4)
    world.run("a-worker-0")
    world.settle()
    assert world.state == "Created"
    world.run("a-worker-1")
    world.settle()
    assert world.state == "Running"
    assert world.status["elastic"]["ready"] == 2
    assert world.status["replicaStatuses"]["Worker"]["active"] == 2


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


def test_the_queue_that_a_job_is_in_is_in_its_status() -> None:
    world = begin(2)
    assert world.status["queue"] == "default", "though it names none"
    world = begin(None, runPolicy={"schedulingPolicy": {"queue": "research"}})
    assert world.status["queue"] == "research"
    world.job["spec"]["runPolicy"]["schedulingPolicy"]["queue"] = "elsewhere"
    world.settle()
    assert world.status["queue"] == "research", "where its PodGroup stays"
    world.job["spec"]["runPolicy"]["suspend"] = True
    world.settle()
    world.settle()
    assert world.podgroup is None and world.status["queue"] == "elsewhere", "where it will go"
    template = world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["schedulerName"] = "another"
    world.settle()
    assert "queue" not in world.status


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
