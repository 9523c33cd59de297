"""Pods that ran out of memory: they come back with more, at no cost to the job's restarts, until
there is no more to give."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pytorchjob.test_reconcile_properties import check_step
from tests.pytorchjob.world import Object, World, active, job_object
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import MOST_MEMORY_ANNOTATION
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.out_of_memory import more_memory
from volcano_elastic.pytorchjob.pod import RESTARTS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def node(memory: str, name: str = "n", **more: Any) -> Object:
    allocatable = {"memory": memory, "nvidia.com/gpu": "8", "cpu": "8", **more}
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def world(
    low: int | None = 2,
    high: int = 4,
    *,
    memory: str | None = "1Gi",
    limit: str | None = "1Gi",
    **spec: Any,
) -> World:
    """A job that runs, whose pods ask for so much."""
    elastic = None if low is None else {"min": low, "max": high}
    found = World(job_object(elastic=elastic, **spec), NOW)
    resources = {
        "requests": {} if memory is None else {"memory": memory},
        "limits": {"nvidia.com/gpu": 1} | ({} if limit is None else {"memory": limit}),
    }
    for replica in found.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"] = resources
    found.nodes = [node("64Gi")]
    found.settle()
    found.run_all()
    return found


def memory(world: World, pod: str) -> tuple[str | None, str | None]:
    found = world.pods[pod]["spec"]["containers"][0]["resources"]
    return (found.get("requests") or {}).get("memory"), found["limits"].get("memory")


def come_back(world: World) -> list[a.Action]:
    done = world.settle()
    if world.collect():
        done += world.settle()
    world.run_all()
    return done


def gib(count: float) -> Bytes:
    return Bytes.gib(count)


@pytest.mark.parametrize(
    ("asked", "peak", "estimate", "more"),
    [
        (gib(1), gib(1), gib(0), gib(2)),
        (gib(1), gib(4), gib(0), gib(4.8).whole_mebibytes()),
        (gib(1), gib(1), gib(7), gib(7)),
        (Bytes(1), Bytes(1), Bytes(0), Bytes(2**20)),
    ],
    ids=["twice the request", "a fifth above the peak", "the estimate", "whole mebibytes"],
)
def test_more_memory_is_the_greatest_of_three(
    asked: Bytes, peak: Bytes, estimate: Bytes, more: Bytes
) -> None:
    assert more_memory(asked, peak, estimate) == more


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_pod_that_ran_out_of_memory_comes_back_with_twice_as_much_and_no_other_does(
    index: int, elastic: bool, in_place: bool
) -> None:
    w = world(2 if elastic else None, replicas=2)
    name, other = f"a-worker-{index}", f"a-worker-{1 - index}"
    uids = {n: w.pods[n]["metadata"]["uid"] for n in (name, other)}
    w.run_out_of_memory(name, in_place=in_place)
    done = come_back(w)
    assert memory(w, name) == ("2Gi", "2Gi") and w.pods[name]["metadata"]["uid"] != uids[name]
    assert memory(w, other) == ("1Gi", "1Gi") and w.pods[other]["metadata"]["uid"] == uids[other]
    message = w.events(done)["OutOfMemory"]
    assert message == f"Pod: {name} ran out of 1Gi of memory, made anew with 2Gi"
    assert w.status["elastic"]["memory"] == {name: "2Gi"}
    assert sorted(w.live()) == sorted(uids), "nobody came at another index"
    assert w.state == "Running" and w.podgroup is not None
    assert w.podgroup["spec"]["minResources"]["memory"] == "3Gi"


def test_a_pod_whose_rank_the_kernel_killed_comes_back_with_more_though_it_runs_on() -> None:
    w = world(2)
    first = w.pods["a-worker-0"]["metadata"]["uid"]
    w.lose_a_rank_for_memory("a-worker-0")
    done = come_back(w)
    assert memory(w, "a-worker-0") == ("2Gi", "2Gi"), "worker 0 too"
    assert memory(w, "a-worker-1") == ("1Gi", "1Gi")
    assert w.pods["a-worker-0"]["metadata"]["uid"] != first and not w.ended
    assert "a-worker-0 ran out of 1Gi of memory" in w.events(done)["OutOfMemory"]
    assert w.status["elastic"]["memory"] == {"a-worker-0": "2Gi"}
    assert not w.status["elastic"].get("restarts")
    assert not [x for x in w.reconcile() if isinstance(x, a.DeletePod)], "it's another pod"


def test_a_pod_without_limit_gets_a_fifth_more_than_it_was_measured_to_use() -> None:
    w = world(2, limit=None)
    told = {"a-worker-0": {"cpu": "1", "memory": "10Gi"}, "a-worker-1": {"memory": "nonsense"}}
    w.job["status"]["elastic"]["loads"] = {"pods": told}
    w.run_out_of_memory("a-worker-0")
    w.run_out_of_memory("a-worker-1")
    come_back(w)
    assert memory(w, "a-worker-0") == ("12Gi", None)
    assert memory(w, "a-worker-1") == ("2Gi", None)


def test_a_pod_gets_what_brain_recommends_where_that_is_more() -> None:
    w = world(2)
    roles = {"Worker": {"cpu": "1", "memory": "7Gi", "message": "p95 of 41 runs"}}
    w.job["status"]["elastic"]["recommendation"] = {"roles": roles}
    w.run_out_of_memory("a-worker-1")
    come_back(w)
    assert memory(w, "a-worker-1") == ("7Gi", "7Gi")


@pytest.mark.parametrize("in_place", [True, False])
def test_running_out_of_memory_costs_no_restart_of_the_backoff_limit(in_place: bool) -> None:
    w = world(2, runPolicy={"backoffLimit": 1})
    for _ in range(4):
        w.run_out_of_memory("a-worker-1", in_place=in_place)
        come_back(w)
    assert memory(w, "a-worker-1")[0] == "16Gi"
    assert not w.ended and RESTARTS not in w.pods["a-worker-1"]["metadata"]["annotations"]
    assert not w.status["elastic"].get("restarts")


def test_what_a_pod_got_it_keeps_through_evictions_and_suspension() -> None:
    w = world(2)
    w.run_out_of_memory("a-worker-1")
    come_back(w)
    w.fail("a-worker-1", evicted=True)
    come_back(w)
    assert memory(w, "a-worker-1") == ("2Gi", "2Gi")
    w.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    come_back(w)
    assert not w.pods
    w.job["spec"]["runPolicy"]["suspend"] = False
    come_back(w)
    assert memory(w, "a-worker-1") == ("2Gi", "2Gi")
    assert memory(w, "a-worker-0") == ("1Gi", "1Gi")


def test_a_limit_above_the_request_is_the_peak() -> None:
    w = world(2, memory="1Gi", limit="4Gi")
    w.run_out_of_memory("a-worker-0")
    come_back(w)
    assert memory(w, "a-worker-0") == ("4916Mi", "4916Mi")


def test_a_pod_without_limit_gets_none() -> None:
    w = world(2, limit=None)
    w.run_out_of_memory("a-worker-0")
    come_back(w)
    assert memory(w, "a-worker-0") == ("2Gi", None)


def test_a_pod_without_any_amount_of_memory_is_restarted_as_it_was() -> None:
    w = world(2, memory=None, limit=None)
    w.run_out_of_memory("a-worker-1")
    come_back(w)
    assert memory(w, "a-worker-1") == (None, None)
    assert w.status["elastic"]["restarts"] == 1


def test_no_pod_asks_for_more_than_a_node_that_it_fits_has() -> None:
    w = world(2)
    w.nodes = [node("1536Mi", "small"), node("512Gi", "no-gpus", **{"nvidia.com/gpu": "0"})]
    w.run_out_of_memory("a-worker-1")
    done = come_back(w)
    assert memory(w, "a-worker-1") == ("1536Mi", "1536Mi")
    assert (
        "the most that it can have: no node that it fits has more than small"
        in (w.events(done)["OutOfMemory"])
    )
    w.run_out_of_memory("a-worker-1")
    actions = w.reconcile()
    come_back(w)
    assert memory(w, "a-worker-1") == ("1536Mi", "1536Mi")
    assert w.status["elastic"]["restarts"] == 1, "from here on it counts"
    assert "can't have more: no node" in w.events(actions)["OutOfMemory"]


def test_the_jobs_annotation_says_the_most_that_its_pods_get() -> None:
    w = world(2)
    w.job["metadata"]["annotations"] = {MOST_MEMORY_ANNOTATION: "1200Mi"}
    w.run_out_of_memory("a-worker-1")
    done = come_back(w)
    assert memory(w, "a-worker-1") == ("1200Mi", "1200Mi")
    assert f"annotation {MOST_MEMORY_ANNOTATION} says 1200Mi" in w.events(done)["OutOfMemory"]


@pytest.mark.parametrize(("annotated", "gets"), [(None, "1300Mi"), ("1200Mi", "1200Mi")])
def test_the_queues_policy_says_the_most_that_its_pods_get(
    annotated: str | None, gets: str
) -> None:
    w = world(2)
    w.most_memory = Bytes.parse("1300Mi")
    if annotated is not None:
        w.job["metadata"]["annotations"] = {MOST_MEMORY_ANNOTATION: annotated}
    w.run_out_of_memory("a-worker-1")
    done = come_back(w)
    assert memory(w, "a-worker-1") == (gets, gets)
    why = "its queue's policy says 1300Mi" if annotated is None else "annotation"
    assert why in w.events(done)["OutOfMemory"]


def test_a_pod_that_must_never_be_restarted_is_not() -> None:
    w = world(2, restartPolicy="Never")
    w.run_out_of_memory("a-worker-1")
    w.settle()
    assert "memory" not in w.status["elastic"] and w.ended


def test_a_pod_that_has_run_well_since_is_left_alone() -> None:
    w = world(2)
    w.run_out_of_memory("a-worker-1", in_place=True)
    w.now += timedelta(minutes=10)
    assert not [x for x in w.reconcile() if isinstance(x, a.DeletePod | a.CreatePod)]


def test_an_evicted_pod_has_not_run_out_of_memory() -> None:
    w = world(1)
    w.grow(3)
    w.run_all()
    w.run_out_of_memory("a-worker-2", in_place=True)
    w.leaving("a-worker-2", evicted=True)
    come_back(w)
    assert w.status["elastic"]["desired"] == 2 and "memory" not in w.status["elastic"]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(
                ["oom", "oom in place", "rank", "fail", "evict", "grow", "stop the operator"]
            ),
            st.integers(0, 4),
        ),
        max_size=10,
    ),
    most=st.sampled_from(["900Mi", "3Gi", "64Gi"]),
    elastic=st.booleans(),
    kill=st.sampled_from(a.Stage),
)
def test_memory_only_grows_stays_within_its_bounds_and_the_job_comes_to_rest(
    events: list[tuple[str, int]], most: str, elastic: bool, kill: a.Stage
) -> None:
    w = world(2 if elastic else None, 5, replicas=3)
    w.nodes = [node(most)]
    bound, before = max(gib(1), Bytes.parse(most)), dict[str, Bytes]()
    for event, index in events:
        name = f"a-worker-{index}"
        alive = name in w.live()
        if event == "grow" and elastic:
            w.grow(max(2, index))
        elif event.startswith("oom") and alive:
            w.run_out_of_memory(name, in_place=event.endswith("place"))
        elif event == "rank" and alive:
            w.lose_a_rank_for_memory(name)
        elif event == "fail" and alive:
            w.fail(name)
        elif event == "evict" and alive and elastic:
            w.leaving(name, evicted=True)
        elif event == "stop the operator":
            # Killed between two of its stages; who comes next knows only what is written.
            w.apply(w.reconcile(), until=kill)
        for _ in range(20):
            actions = w.reconcile()
            check_step(w, actions)
            w.apply(actions)
            moved = w.collect()
            w.now += timedelta(minutes=6)
            if not active(actions) and not moved:
                break
        else:
            pytest.fail(f"no rest: {w.reconcile()}")
        for pod in w.pods:
            w.run(pod)
        w.settle()
        assert not w.ended
        for pod in w.pods:
            asked, limit = memory(w, pod)
            assert asked is not None and asked == limit
            assert before.get(pod, gib(1)) <= Bytes.parse(asked) <= bound
            before[pod] = Bytes.parse(asked)


def test_a_status_without_memory_is_as_it_was() -> None:
    """Jobs that never ran out of memory are not patched for it."""
    w = world(2)
    before = copy.deepcopy(w.status)
    w.settle()
    assert w.status == before and "memory" not in w.status["elastic"]
