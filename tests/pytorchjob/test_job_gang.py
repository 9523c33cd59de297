"""A job's gang: its members, requests, protection and queue."""

from __future__ import annotations

from datetime import timedelta

from tests.pytorchjob.world import NOW, World, begin, job_object, running
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.action import (
    PatchPod,
)


def test_another_scheduler_gets_no_podgroup() -> None:
    world = World(job_object(elastic={"min": 1, "max": 2}), NOW)
    worker = world.job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["schedulerName"] = "mine"
    world.settle()
    assert world.podgroup is None
    pod = world.pods["a-worker-0"]
    assert pod["spec"]["schedulerName"] == "mine"
    assert "scheduling.k8s.io/group-name" not in pod["metadata"]["annotations"]


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


def test_a_protected_pod_that_is_lost_has_its_protection_taken_up_first() -> None:
    world = begin(2)
    world.grow(4)
    world.run_all()
    world.fail("a-worker-1")
    actions = world.reconcile()
    assert [a.name for a in actions if isinstance(a, PatchPod)] == ["a-worker-2"]
    world.apply(actions)
    world.settle()
    assert [world.protected(f"a-worker-{i}") for i in range(4)] == [True, False, True, False]


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
    assert (warning.reason, warning.deduplicated) == ("QueueUnchanged", True)
    assert "asks for queue research, but its PodGroup stays in default" in warning.message
    world.settle()
    assert world.podgroup is not None and world.podgroup["spec"]["queue"] == "default"
