"""Pods of one role may ask for different things, where somebody says so, and never by accident."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pytorchjob.world import Object, World, begin, running
from volcano_elastic.operator.snapshot_builder import snapshot_of

MORE = {"requests": {"memory": "8Gi"}, "limits": {"memory": "8Gi"}}
# What tells a pod who it is, and what Volcano goes by.
IDENTITY = {
    "volcano.sh/task-priority",
    "volcano.sh/preemptable",
    "volcano.sh/cooldown-time",
    "volcano-elastic.io/restarts",
    "volcano-elastic.io/failures-in-a-row",
}


def resources(world: World, pod: str) -> Object:
    found: Object = world.pods[pod]["spec"]["containers"][0]["resources"]
    return found


def fail(world: World, pod: str) -> None:
    """A failed pod is made again."""
    world.fail(pod)
    world.now += timedelta(seconds=1)
    world.settle()
    world.run_all()


def test_a_pod_that_is_given_more_gets_it_when_it_is_made_again_and_no_other_does() -> None:
    world = running(2)
    world.resources = {"a-worker-1": MORE}
    assert "requests" not in resources(world, "a-worker-1"), "a pod that runs stays as it is"
    fail(world, "a-worker-1")
    assert resources(world, "a-worker-1") == {
        "limits": {"nvidia.com/gpu": 1, "memory": "8Gi"},
        "requests": {"memory": "8Gi"},
    }
    world.grow(4)
    for name in ("a-worker-0", "a-worker-2", "a-worker-3"):
        assert resources(world, name) == {"limits": {"nvidia.com/gpu": 1}}


def test_min_resources_add_up_the_pods_as_they_are() -> None:
    world = running(2)
    assert world.podgroup is not None
    world.resources = {"a-worker-1": MORE}
    fail(world, "a-worker-1")
    spec = world.podgroup["spec"]
    assert spec["minResources"] == {"nvidia.com/gpu": "2", "memory": "8Gi"}
    world.grow(4)
    assert world.podgroup["spec"]["minResources"] == spec["minResources"], "of the minimum alone"


def test_min_resources_are_right_before_an_unequal_pod_is_made() -> None:
    world = World(copy.deepcopy(begin(3).job), begin(3).now)
    world.job["status"] = {}
    world.resources = {"a-worker-0": MORE}
    world.step()
    assert world.podgroup is not None
    assert world.podgroup["spec"]["minResources"] == {"nvidia.com/gpu": "3", "memory": "8Gi"}


def test_the_planner_sees_what_each_pod_asks_for() -> None:
    world = running(2)
    world.resources = {"a-worker-1": MORE}
    fail(world, "a-worker-1")
    pods = snapshot_of({**pod, "kind": "Pod"} for pod in world.pods.values()).pods
    asked = {pod.key: pod.requests.get("memory", 0) for pod in pods}
    assert asked == {"team/a-worker-0": 0, "team/a-worker-1": 8 * 2**30 * 1000}


def but_for_identity(pod: Object) -> Any:
    """Return what two pods of one role must have in common."""
    meta, spec = pod["metadata"], copy.deepcopy(pod["spec"])
    spec.pop("nodeName", None)
    own = {"VOLCANO_ELASTIC_POD_INDEX", "RANK", "PET_NODE_RANK"}
    for container in spec["containers"]:
        container["env"] = [v for v in container["env"] if v["name"] not in own]
        for variable in container["env"]:
            if variable["name"] == "PET_RDZV_CONF":
                pairs = variable["value"].split(",")
                variable["value"] = [pair for pair in pairs if not pair.startswith("is_host=")]
    labels = {k: v for k, v in meta["labels"].items() if not k.endswith(("-index", "job-role"))}
    given = {k: v for k, v in meta["annotations"].items() if k not in IDENTITY}
    return labels, given, spec


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(
        st.tuples(st.sampled_from(["fail", "evict", "leave", "grow"]), st.integers(0, 4)),
        max_size=8,
    ),
    master=st.booleans(),
    given_more=st.sets(st.integers(1, 4), max_size=1),
)
def test_pods_of_a_role_are_equal_but_for_who_they_are(
    events: list[tuple[str, int]], master: bool, given_more: set[int]
) -> None:
    world = running(2, 5, master=master)
    world.protect = timedelta(seconds=30)
    world.resources = {f"a-worker-{i}": MORE for i in given_more}
    for event, index in events:
        name = f"a-worker-{index}"
        if event == "grow":
            world.grow(max(2, index))
        elif name in world.pods and event == "fail":
            world.fail(name)
        elif name in world.pods:
            world.leaving(name, evicted=event == "evict")
        world.settle()
        world.collect()
        world.now += timedelta(minutes=6)
        world.settle()
        world.run_all()
    equal = [
        pod
        for name, pod in world.pods.items()
        if name.startswith("a-worker") and name not in world.resources
    ]
    assert len(equal) >= 1
    assert all(but_for_identity(pod) == but_for_identity(equal[0]) for pod in equal)
