"""Mode AtStart: a job's pods are made with what is recommended for them, and the job says why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pytorchjob.test_out_of_memory import node
from tests.pytorchjob.world import Object, World, job_object
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.brain_mode import BrainMode
from volcano_elastic.api.role_resources import RoleResources, read, with_resources
from volcano_elastic.api.scale_plan import RolePlan, ScalePlan
from volcano_elastic.operator.snapshot_builder import snapshot_of
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.at_start import PATIENCE, within_a_node

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WHY = "p95 of 41 runs by this user with this image, and 15 %"


def wanted(cpu: str, memory: str, message: str = WHY) -> RoleResources:
    return RoleResources(Cpu.parse(cpu), Bytes.parse(memory), message)


def world(mode: BrainMode | None = BrainMode.AT_START, **resources: Any) -> World:
    found = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    container = found.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container[0]["resources"] = resources or {
        "requests": {"cpu": "8", "memory": "16Gi"},
        "limits": {"nvidia.com/gpu": 1, "memory": "32Gi"},
    }
    found.brain_mode, found.nodes = mode, [node("64Gi")]
    return found


def recommend(world: World, **roles: tuple[str, str]) -> None:
    told = {
        role: {"cpu": cpu, "memory": memory, "message": WHY}
        for role, (cpu, memory) in roles.items()
    }
    said = {"elastic": {"recommendation": {"time": "2026-01-01T12:00:00Z", "roles": told}}}
    world.job["status"] = {**world.job.get("status", {}), **said}


def asked(world: World, pod: str = "a-worker-0") -> Object:
    found: Object = world.pods[pod]["spec"]["containers"][0]["resources"]
    return found


def events(done: list[a.Action], reason: str) -> list[str]:
    return [e.message for e in done if isinstance(e, a.EmitEvent) and e.reason == reason]


def test_pods_are_made_with_what_is_recommended_and_the_job_says_why() -> None:
    w = world()
    recommend(w, Worker=("2409m", "4712Mi"))
    done = w.settle()
    expected = {
        "requests": {"cpu": "2409m", "memory": "4712Mi"},
        "limits": {"nvidia.com/gpu": 1, "memory": "9424Mi"},
    }
    assert asked(w, "a-worker-0") == asked(w, "a-worker-1") == expected
    assert events(done, "ResourcesApplied") == [
        f"Worker pods ask for 2409m CPU, 4712Mi instead of 8 CPU, 16Gi: {WHY}"
    ]
    assert w.status["elastic"]["resources"] == {
        "Worker": {"cpu": "2409m", "memory": "4712Mi", "message": WHY}
    }
    assert w.podgroup is not None
    least = w.podgroup["spec"]["minResources"]
    assert (least["cpu"], least["memory"]) == ("4818m", "9424Mi"), "the gang asks for the same"
    w.run_all()
    w.grow(4)
    assert asked(w, "a-worker-3") == expected, "pods that come later are made alike"


def test_it_stands_in_the_status_before_the_first_pod_is_made() -> None:
    w = world()
    recommend(w, Worker=("2", "4Gi"))
    first = w.reconcile()
    assert not any(isinstance(one, a.CreatePod) for one in first)
    w.apply(first, until=a.Stage.RECORD)
    w.settle()
    assert asked(w)["requests"] == {"cpu": "2", "memory": "4Gi"}


def test_the_planner_counts_pods_to_come_by_it() -> None:
    w = world()
    recommend(w, Worker=("2", "4Gi"))
    w.settle()
    (job,) = snapshot_of([{**w.job, "kind": "PyTorchJob"}]).jobs
    assert (job.pod_requests["cpu"], job.pod_requests["memory"]) == (2000, 4 * 2**30 * 1000)


def test_first_pods_wait_for_a_recommendation_but_not_for_long() -> None:
    w = world()
    w.settle()
    assert not w.pods
    waits = [one.after for one in w.reconcile() if isinstance(one, a.Requeue)]
    assert PATIENCE in waits
    w.now += PATIENCE
    w.settle()
    assert asked(w)["requests"] == {"cpu": "8", "memory": "16Gi"}
    recommend(w, Worker=("2", "4Gi"))
    w.settle()
    w.run_all()
    w.fail("a-worker-1")
    w.now += timedelta(seconds=1)
    w.settle()
    assert asked(w, "a-worker-1")["requests"] == {"cpu": "8", "memory": "16Gi"}, "all are alike"


def test_nobody_waits_once_there_is_nothing_to_recommend() -> None:
    w = world()
    recommend(w)
    w.settle()
    assert asked(w)["requests"] == {"cpu": "8", "memory": "16Gi"}
    assert "resources" not in w.status["elastic"]


@pytest.mark.parametrize("mode", [None, BrainMode.OFF, BrainMode.RECOMMEND])
def test_in_other_modes_pods_are_made_at_once_as_they_ask(mode: BrainMode | None) -> None:
    w = world(mode)
    recommend(w, Worker=("2", "4Gi"))
    w.settle()
    assert asked(w)["requests"] == {"cpu": "8", "memory": "16Gi"}


def test_who_turns_it_off_has_further_pods_as_the_template_says() -> None:
    w = world()
    recommend(w, Worker=("2", "4Gi"))
    w.settle()
    w.run_all()
    w.brain_mode = BrainMode.OFF
    w.settle()
    assert "resources" not in w.status["elastic"]
    w.fail("a-worker-1")
    w.now += timedelta(seconds=1)
    w.settle()
    assert asked(w, "a-worker-1")["requests"] == {"cpu": "8", "memory": "16Gi"}
    assert asked(w, "a-worker-0")["requests"] == {"cpu": "2", "memory": "4Gi"}


def test_a_pod_that_runs_out_of_memory_under_it_gets_more() -> None:
    w = world()
    recommend(w, Worker=("2", "4Gi"))
    w.settle()
    w.run_all()
    w.run_out_of_memory("a-worker-1")
    w.settle()
    w.collect()
    w.settle()
    assert asked(w, "a-worker-1")["requests"] == {
        "cpu": "2",
        "memory": "9831Mi",
    }, "1.2 times the 8Gi that it could use"


@pytest.mark.parametrize(
    ("given_resources", "expected"),
    [
        ({}, {"requests": {"cpu": "2", "memory": "4Gi"}}),
        (
            {"limits": {"cpu": "8", "memory": "8Gi"}},
            {
                "requests": {"cpu": "2", "memory": "4Gi"},
                "limits": {"cpu": "2", "memory": "4Gi"},
            },
        ),
        (
            {"requests": {"cpu": "4"}, "limits": {"cpu": "6", "memory": "8Gi", "x.io/gpu": 1}},
            {
                "requests": {"cpu": "2", "memory": "4Gi"},
                "limits": {"cpu": "3", "memory": "4Gi", "x.io/gpu": 1},
            },
        ),
        (
            {"requests": {"cpu": "0"}, "limits": {"cpu": "1"}},
            {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "2"}},
        ),
    ],
    ids=["nothing said", "limits count as requests", "in proportion", "a request of 0"],
)
def test_a_limit_keeps_its_proportion_to_the_request(
    given_resources: Object, expected: Object
) -> None:
    sidecar = {"name": "log", "resources": {"requests": {"cpu": "1"}}}
    container = {"name": "pytorch", "image": "i", "resources": given_resources}
    template = {"metadata": {"labels": {}}, "spec": {"containers": [sidecar, container]}}
    found = with_resources(template, wanted("2", "4Gi"))
    assert found["spec"]["containers"] == [sidecar, {**container, "resources": expected}]


def spec(gpus: int = 1, **more: Any) -> Object:
    sidecar = {"name": "log", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    own = {"requests": {"cpu": "8", "memory": "16Gi"}, "limits": {"nvidia.com/gpu": gpus}}
    return {"containers": [{"name": "pytorch", "resources": own}, sidecar], **more}


@pytest.mark.parametrize(
    ("nodes", "cpu", "memory"),
    [
        ([node("64Gi")], "4", "20Gi"),
        ([node("9Gi")], "4", "8Gi"),
        ([node("9Gi", "small"), node("64Gi", "large", cpu="3")], "2", "20Gi"),
        ([node("64Gi", **{"nvidia.com/gpu": "0"})], None, None),
        ([node("1Gi")], None, None),
        ([], None, None),
    ],
    ids=[
        "it fits",
        "less memory, beside a sidecar",
        "the node that is short of less",
        "no node has its GPU",
        "no room beside the sidecar",
        "no node",
    ],
)
def test_no_pod_asks_for_more_than_a_node_has(
    nodes: list[Object], cpu: str | None, memory: str | None
) -> None:
    found = within_a_node(wanted("4", "20Gi"), spec(), nodes)
    if cpu is None or memory is None:
        assert found is None
        return
    assert found is not None
    assert (str(found.cpu), str(found.memory)) == (cpu, memory)
    assert ("no node that it fits has more" in found.message) == (cpu != "4" or memory != "20Gi")


def test_a_node_that_the_pod_may_not_be_on_does_not_count() -> None:
    large, small = node("64Gi", "large"), node("9Gi", "small")
    small["metadata"]["labels"] = {"pool": "a"}
    found = within_a_node(wanted("4", "20Gi"), spec(nodeSelector={"pool": "a"}), [large, small])
    assert found is not None and str(found.memory) == "8Gi"
    assert found.message == f"{WHY}; no node that it fits has more than small"


@given(
    st.integers(1, 10**6),
    st.integers(1, 2**45),
    st.lists(st.tuples(st.integers(0, 10**3), st.integers(0, 2**12), st.integers(0, 8))),
)
def test_it_is_never_nothing_never_more_than_wanted_and_fits_a_node(
    cpu: int, memory: int, sizes: list[tuple[int, int, int]]
) -> None:
    nodes = [
        node(f"{gib}Gi", f"n{i}", cpu=str(cores), **{"nvidia.com/gpu": str(gpus)})
        for i, (cores, gib, gpus) in enumerate(sizes)
    ]
    want = RoleResources(Cpu(cpu), Bytes(memory))
    found = within_a_node(want, spec(), nodes)
    rooms = [(Cpu.cores(cores - 1), Bytes.gib(gib - 1)) for cores, gib, gpus in sizes if gpus >= 1]
    if found is None:
        assert all(room[0] <= Cpu(0) or room[1] <= Bytes(0) for room in rooms)
        return
    assert Cpu(0) < found.cpu <= want.cpu and Bytes(0) < found.memory <= want.memory
    assert any(found.cpu <= room[0] and found.memory <= room[1] for room in rooms)
    if any(want.cpu <= room[0] and want.memory <= room[1] for room in rooms):
        assert found == want


@pytest.mark.parametrize(
    "nonsense",
    [None, [], "x", {"Worker": None}, {"Worker": {"cpu": "2"}}]
    + [{"Worker": {"cpu": cpu, "memory": "1Gi"}} for cpu in ("?", "0", "-1", None)],
)
def test_a_status_that_makes_no_sense_changes_nothing(nonsense: Any) -> None:
    assert read(nonsense) == {}


def planned(cpu: str | None, memory: str | None) -> ScalePlan:
    role = RolePlan(
        cpu=None if cpu is None else Cpu.parse(cpu),
        memory=None if memory is None else Bytes.parse(memory),
    )
    return ScalePlan("by-hand", "team", "a", roles={"Worker": role})


@pytest.mark.parametrize("mode", [None, *BrainMode])
def test_a_scale_plan_counts_before_brain_in_any_mode(mode: BrainMode | None) -> None:
    w = world(mode)
    recommend(w, Worker=("2409m", "4712Mi"))
    w.plan = planned("3", "6Gi")
    done = w.settle()
    assert asked(w)["requests"] == {"cpu": "3", "memory": "6Gi"}
    assert events(done, "ResourcesApplied") == [
        "Worker pods ask for 3 CPU, 6Gi instead of 8 CPU, 16Gi: ScalePlan by-hand"
    ]


def test_a_plan_that_says_cpu_alone_leaves_memory_and_running_pods_follow() -> None:
    w = world(None)
    w.settle()
    w.run_all()
    w.plan = planned("4", None)
    w.settle()
    assert asked(w)["requests"] == {"cpu": "4", "memory": "16Gi"}
    w.grow(3)
    assert asked(w, "a-worker-2")["requests"] == {"cpu": "4", "memory": "16Gi"}
    w.plan = None
    w.settle()
    assert asked(w)["requests"]["cpu"] == "4", "who runs keeps it"
    assert "resources" not in w.status["elastic"]
    w.grow(4)
    assert asked(w, "a-worker-3")["requests"]["cpu"] == "8", "who comes later asks as before"


def test_no_plan_asks_for_more_than_a_node_has() -> None:
    w = world(None)
    w.plan = planned("4", "200Gi")
    done = w.settle()
    assert asked(w)["requests"]["memory"] == "64Gi"
    (said,) = events(done, "ResourcesApplied")
    assert "ScalePlan by-hand; no node that it fits has more than" in said


def test_a_plan_of_half_a_request_is_not_carried_out() -> None:
    w = world(None, limits={"nvidia.com/gpu": 1})
    w.plan = planned("4", None)
    w.settle()
    assert "requests" not in asked(w) or "cpu" not in asked(w)["requests"]
