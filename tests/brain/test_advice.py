"""Brain's advice: the facts that it reads from objects, and what it recommends by them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.brain.world import NOW, amounts, load, run
from tests.operator.process import job
from volcano_elastic.api.amount import Percent
from volcano_elastic.api.brain_mode import BrainMode, mode_of
from volcano_elastic.api.pytorchjob_shape import (
    BRAIN_ANNOTATION,
    DATA_SET_ANNOTATION,
    USER_ANNOTATION,
)
from volcano_elastic.brain.advice import Unknown, advise, advise_running, recommendation
from volcano_elastic.brain.history.gpu_load import GpuUse
from volcano_elastic.brain.observation import (
    bounds_memory,
    largest,
    leanest,
    measured,
    reported,
    reported_gpus,
    runs_untold,
    seen,
    usage,
)
from volcano_elastic.brain.past import Past

METRICS = {
    "metadata": {"name": "a-worker-1", "namespace": "default"},
    "containers": [
        {"name": "sidecar", "usage": {"cpu": "9", "memory": "9Gi"}},
        {"name": "pytorch", "usage": {"cpu": "1500m", "memory": "3Gi"}},
    ],
}


def created(**status: Any) -> dict[str, Any]:
    made = job("a", 1, 2)
    made["metadata"] |= {
        "uid": "u9",
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "annotations": {USER_ANNOTATION: "ann", DATA_SET_ANNOTATION: "imagenet"},
    }
    container = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"] = {"cpu": "8", "memory": "16Gi"}
    return made | {"status": status}


def pod(index: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"a-worker-{index}",
            "labels": {
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": {"containers": [{"name": "pytorch", "resources": {"limits": {"cpu": "2"}}}]},
    }


def test_a_run_is_what_its_job_tells() -> None:
    elastic = {"restarts": 2, "memory": {"a-worker-0": "2Gi"}, "speeds": {"1": 30, "4": 100.5}}
    found = seen(created(elastic=elastic), None, NOW)
    assert (found.user, found.queue, found.image, found.data_set) == (
        *("ann", "default", "train:1", "imagenet"),
    )
    assert (found.restarts, found.out_of_memory, found.speeds) == (2, 1, {1: 30.0, 4: 100.5})
    assert (found.outcome, found.ended) == ("", None)
    sizes = {"checkpointSize": {"Worker": "3Gi", "PS": "24Gi"}}
    told = seen(created(elastic=sizes), found, NOW)
    assert told.checkpoint == {"Worker": amounts(1, 3).memory, "PS": amounts(1, 24).memory}
    assert seen(created(), told, NOW).checkpoint == told.checkpoint, "the last that was told"


@pytest.mark.parametrize("deleted", [False, True])
def test_the_first_end_of_a_run_stays(deleted: bool) -> None:
    status = {"conditions": [{"type": "Failed", "status": "True"}]}
    status |= {"completionTime": "2026-01-01T12:30:00Z"}
    failed = seen(created(**status), None, NOW + timedelta(hours=1), deleted=deleted)
    assert (failed.outcome, failed.ended) == ("Failed", NOW + timedelta(minutes=30))
    gone = seen(created(), failed, NOW + timedelta(hours=2), deleted=True)
    assert (gone.outcome, gone.ended) == (failed.outcome, failed.ended)
    assert seen(created(), None, NOW, deleted=True).outcome == "Deleted"


def test_a_sample_is_of_the_training_container_alone() -> None:
    used = usage([METRICS, METRICS | {"containers": [{"name": "pytorch", "usage": {"cpu": "?"}}]}])
    assert used == {("default", "a-worker-1"): amounts(1.5, 3)}
    mine = {name: one for (_, name), one in used.items()}
    found = measured(run(loads=()), [pod(0), pod(1)], mine, NOW, {})
    (only,) = found.loads
    assert (only.role, only.index, only.peak) == ("Worker", 1, amounts(1.5, 3))
    assert only.requested == amounts(2, 0)
    again = measured(found, [pod(1)], {"a-worker-1": amounts(1, 5)}, NOW, {})
    assert again.loads[0].peak == amounts(1.5, 5)


def test_what_the_trainer_told_lately_needs_no_metrics_api() -> None:
    loads = {"time": "2026-01-01T12:00:00Z"}
    loads |= {"pods": {"a-worker-0": {"cpu": "1500m", "memory": "3Gi", "gpuPercent": 70}}}
    job = created(elastic={"loads": loads})
    fresh = reported([job], NOW + timedelta(minutes=5))
    assert fresh == {("default", "a-worker-0"): amounts(1.5, 3)}
    assert reported([job], NOW + timedelta(minutes=7)) == {}, "nobody knows any more"
    assert reported_gpus([job], NOW) == {}, "that has no memory of a GPU has none"
    loads["pods"]["a-worker-0"]["gpuMemory"] = "8Gi"
    use = GpuUse(amounts(1, 8).memory, Percent(70))
    assert reported_gpus([job], NOW) == {("default", "a-worker-0"): use}
    own = {"a-worker-0": amounts(1.5, 3)}
    gpus = {"a-worker-0": use}
    (found,) = measured(run(loads=()), [pod(0)], own, NOW, gpus).loads
    assert found.gpu is not None and found.gpu.peak == use.memory
    assert found.gpu.usual is not None and 70 <= found.gpu.usual.count <= 74
    (found,) = measured(run(loads=()), [pod(0)], own, NOW, {}).loads
    assert found.gpu is None
    assert reported([created(), created(elastic={"loads": {"pods": {}}})], NOW) == {}
    running = [pod(index) | {"status": {"phase": "Running"}} for index in (0, 1)]
    assert [runs_untold(one, fresh) for one in running] == [False, True]
    assert not runs_untold(pod(1), fresh), "it has nothing to tell yet"


def test_a_job_is_told_what_runs_like_it_used_and_why() -> None:
    runs = [run(f"run-{i}", image="train:1", loads=(load(0, amounts(2, 4)),)) for i in range(41)]
    (advice,) = advise(created(), seen(created(), None, NOW), Past(runs), None)
    assert advice.asked == amounts(8, 16) and advice.wanted.memory == amounts(1, 5).memory
    assert str(advice).endswith(
        "would do: p95 of 41 runs by this user with this image on this data set, and 15 %; "
        "of memory p99 and 25 %"
    )


def test_who_asks_for_about_that_is_told_nothing_and_so_is_who_is_like_nobody() -> None:
    used = load(0, amounts(7, 13.9))
    runs = [run(f"run-{i}", image="train:1", loads=(used,)) for i in range(5)]
    this = seen(created(), None, NOW)
    assert advise(created(), this, Past(runs), None) == []
    strange = [run(f"run-{i}", user="bob", image="other:1", data_set="") for i in range(5)]
    assert advise(created(), this, Past(strange), None) == []
    assert advise(created(), this, Past([run(loads=(load(0),), image="train:1")]), None) == []


def test_no_advice_is_above_the_largest_node() -> None:
    runs = [run(f"run-{i}", image="train:1", loads=(load(0, amounts(40, 300)),)) for i in range(5)]
    node = {"status": {"allocatable": {"cpu": "32", "memory": "256Gi"}}}
    (advice,) = advise(created(), seen(created(), None, NOW), Past(runs), largest([node, {}]))
    assert advice.wanted == amounts(32, 256)
    assert largest([]) is None


@pytest.mark.parametrize(
    ("said", "queues", "mode"),
    [
        (None, BrainMode.AT_START, BrainMode.AT_START),
        (None, None, None),
        ("Off", BrainMode.AT_START, BrainMode.OFF),
        ("AtStart", None, BrainMode.AT_START),
        ("Sometimes", BrainMode.OFF, BrainMode.OFF),
    ],
)
def test_a_jobs_annotation_decides_its_mode_before_its_queue(
    said: str | None, queues: BrainMode | None, mode: BrainMode | None
) -> None:
    annotations = {} if said is None else {BRAIN_ANNOTATION: said}
    assert mode_of(annotations, queues) is mode


def test_a_recommendation_says_how_much_and_why_and_nothing_is_said_too() -> None:
    runs = [run(f"run-{i}", image="train:1", loads=(load(0, amounts(2, 4)),)) for i in range(3)]
    found = advise(created(), seen(created(), None, NOW), Past(runs), None)
    assert recommendation(found, NOW) == {
        "time": "2026-01-01T12:00:00Z",
        "roles": {
            "Worker": {
                "cpu": str(found[0].wanted.cpu),
                "memory": str(found[0].wanted.memory),
                "message": "p95 of 3 runs by this user with this image on this data set, and 15 %; "
                "of memory p99 and 40 %",
            }
        },
    }
    assert recommendation([], NOW)["roles"] == {}


def test_a_job_that_uses_more_than_others_did_is_advised_no_less_than_that() -> None:
    runs = [run(f"run-{i}", image="train:1", loads=(load(0, amounts(2, 4)),)) for i in range(3)]
    used = run("u9", image="train:1", loads=(load(0, amounts(6, 12)),))
    (advice,) = advise(created(), used, Past(runs), None)
    assert advice.wanted.memory == amounts(1, 12).memory and advice.wanted.cpu >= amounts(6, 1).cpu


def test_a_running_job_is_advised_by_what_it_uses_once_it_ran_for_three_minutes() -> None:
    """DLRover's article judges a job after 3 minutes."""
    mine = run("u9", loads=(load(0, amounts(2, 4)), load(1, amounts(1, 3))))
    job = created()
    assert advise_running(job, mine, None, NOW + timedelta(seconds=179)) == []
    (advice,) = advise_running(job, mine, None, NOW + timedelta(minutes=3))
    assert advice.asked == amounts(8, 16)
    assert amounts(2.3, 1).cpu <= advice.wanted.cpu <= amounts(2.3 * 1.06, 1).cpu
    assert advice.wanted.memory == amounts(1, 16).memory, "less of it after ten times as long"
    assert advice.why == "p95 of CPU and peak of memory of its busiest pod in 3 min, and 15 %"
    (advice,) = advise_running(job, mine, None, NOW + timedelta(minutes=30))
    assert advice.wanted.memory == amounts(1, 4.6).memory.whole_mebibytes()


def test_what_was_recommended_is_not_recommended_again_until_it_is_another() -> None:
    mine = run("u9", loads=(load(0, amounts(2, 4)),))
    now = NOW + timedelta(minutes=50)
    told = advise_running(created(), mine, None, now)
    job = created(elastic={"recommendation": recommendation(told, now)})
    assert advise_running(job, mine, None, now) == []
    more = run("u9", loads=(load(0, amounts(2, 4), amounts(2, 9)),))
    (advice,) = advise_running(job, more, None, now)
    assert advice.wanted.memory >= amounts(1, 9).memory


def test_by_few_runs_or_a_single_fact_nobody_is_told_to_ask_for_less_memory() -> None:
    this = seen(created(), None, NOW)
    few = [run(f"u{i}", image="train:1", loads=(load(0, amounts(2, 4)),)) for i in range(2)]
    strange = [run(f"u{i}", image="other", loads=(load(0, amounts(2, 4)),)) for i in range(9)]
    for runs in (few, [replace(one, data_set="") for one in strange]):
        (advice,) = advise(created(), this, Past(runs), None)
        assert advice.wanted.memory == advice.asked.memory == amounts(8, 16).memory
        assert advice.wanted.cpu < advice.asked.cpu
    more = [run(f"u{i}", data_set="", loads=(load(0, amounts(2, 40)),)) for i in range(2)]
    (advice,) = advise(created(), this, Past(more), None)
    assert advice.wanted.memory == amounts(2, 56).memory, "more it may be"


def test_a_new_kind_of_job_has_more_memory_where_its_nodes_have_it_and_the_admin_says_so() -> None:
    this, node = seen(created(), None, NOW), amounts(32, 256)
    (advice,) = advise(created(), this, Past(), node, Unknown(2.0, node))
    assert advice.wanted == amounts(8, 32)
    assert advice.why.startswith("no earlier run is like this one: more memory until ")
    lean = amounts(64, 160)  # 20 GiB for 8 CPUs
    (advice,) = advise(created(), this, Past(), node, Unknown(2.0, lean))
    assert advice.wanted == amounts(8, 20)
    assert advise(created(), this, Past(), node, Unknown(2.0, amounts(64, 64))) == []
    few = [run(f"u{i}", image="train:1", loads=(load(0, amounts(8, 4)),)) for i in range(2)]
    (advice,) = advise(created(), this, Past(few), node, Unknown(2.0, node))
    assert advice.wanted.memory == amounts(8, 32).memory
    more = [*few, run("u2", image="train:1", loads=(load(0, amounts(8, 4)),))]
    (advice,) = advise(created(), this, Past(more), node, Unknown(2.0, node))
    assert advice.wanted.memory < amounts(8, 16).memory, "three tell enough"


def test_the_leanest_node_is_that_with_the_least_memory_for_each_cpu() -> None:
    nodes = [
        {"status": {"allocatable": {"cpu": cpu, "memory": memory}}}
        for cpu, memory in (("32", "256Gi"), ("64", "128Gi"), ("4", "64Gi"), ("0", "1Gi"))
    ]
    assert leanest([*nodes, {}]) == amounts(64, 128)
    assert leanest([{}]) is None


def bounded(**more: Any) -> bool:
    given: dict[str, Any] = {"queues": [], "quotas": [], "ranges": []} | more
    return bounds_memory("team", given["queues"], given["quotas"], given["ranges"])


def queue_(name: str, parent: str = "", **capability: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"parent": parent, "capability": capability}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, False),
        ({"queues": [queue_("team", cpu="8"), queue_("other", memory="1Gi")]}, False),
        ({"queues": [queue_("team", memory="1Gi")]}, True),
        ({"queues": [queue_("team", "root"), queue_("root", memory="1Gi")]}, True),
        ({"queues": [queue_("team", "root"), queue_("root", "team")]}, False),
        ({"quotas": [{"spec": {"hard": {"requests.cpu": "8", "pods": "10"}}}]}, False),
        ({"quotas": [{}, {"spec": {"hard": {"limits.memory": "8Gi"}}}]}, True),
        (
            {"ranges": [{"spec": {"limits": [{"type": "Container", "default": {"memory": "1"}}]}}]},
            False,
        ),
        ({"ranges": [{"spec": {"limits": [{"type": "Container", "max": {"memory": "1"}}]}}]}, True),
    ],
    ids=[
        "nothing",
        "other queue",
        "queue",
        "above it",
        "round in circles",
        "others",
        "quota",
        "default",
        "range",
    ],
)
def test_a_queue_a_quota_or_a_range_bounds_the_memory_of_new_kinds_of_jobs(
    given: dict[str, Any], found: bool
) -> None:
    assert bounded(**given) is found
