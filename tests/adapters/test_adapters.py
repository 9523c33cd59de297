"""Each kind: what is read of it, and what is patched."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.adapters.world import JOB, JOBSET, TRAINJOB, indexed, job, jobset, made, trainjob
from tests.pytorchjob.world import merged
from volcano_elastic.adapters import resize
from volcano_elastic.adapters.adapter import ADAPTERS, PART, Adapter
from volcano_elastic.adapters.other_job import InvalidOtherJob, OtherJob, read

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MAX = "volcano-elastic.io/max-pods"
kinds = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)


def seen(adapter: Adapter, obj: Object) -> OtherJob:
    found = read(adapter, obj)
    assert found is not None
    return found


def resized(adapter: Adapter, obj: Object, size: int) -> Object:
    """The object after the patch."""
    body = resize.patch(seen(adapter, obj), size, reason="GrewIntoIdle", message="why", now=NOW)
    assert body["metadata"].pop("resourceVersion") == obj["metadata"]["resourceVersion"]
    assert body["metadata"].pop("uid") == obj["metadata"]["uid"]
    found: Object = merged(obj, body)
    return found


@kinds
def test_its_size_and_range_are_read(adapter: Adapter) -> None:
    found = seen(adapter, made(adapter, size=3, least=2, most=6))
    assert (found.key, found.size, found.min, found.max) == (
        f"team/{adapter.kind.lower()}/a",
        3,
        2,
        6,
    )
    assert found.queue == "default"


@kinds
def test_a_patch_changes_the_size_and_says_why_and_nothing_else(adapter: Adapter) -> None:
    old = made(adapter, size=3)
    new = resized(adapter, old, 5)
    again = seen(adapter, new)
    assert (again.size, again.last_scale, again.last_reason) == (5, NOW, "GrewIntoIdle")
    notes = new["metadata"]["annotations"]
    assert notes.pop("volcano-elastic.io/last-scale-message") == "why"
    for name in ("time", "reason"):
        notes.pop(f"volcano-elastic.io/last-scale-{name}")
    # All the rest is as made with that size: siblings, fields that we don't know, completions.
    assert new == made(adapter, size=5)


@kinds
def test_a_job_that_does_not_ask_is_left_alone(adapter: Adapter) -> None:
    obj = made(adapter)
    obj["metadata"]["annotations"] = {"other": "1"}
    assert read(adapter, obj) is None
    del obj["metadata"]["annotations"]
    assert read(adapter, obj) is None


@kinds
@pytest.mark.parametrize("end", ["Complete", "Completed", "Failed", "suspended", "deleted"])
def test_a_job_that_wants_no_pods_is_left_alone(adapter: Adapter, end: str) -> None:
    obj = made(adapter)
    match end:
        case "suspended":
            obj["spec"]["suspend"] = True
        case "deleted":
            obj["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
        case _:
            obj["status"] = {"conditions": [{"type": end, "status": "True"}]}
    assert read(adapter, obj) is None


def test_a_queue_is_named_by_the_pods_annotation_the_jobs_or_its_label() -> None:
    name, obj = "scheduling.volcano.sh/queue-name", job()
    obj["metadata"]["labels"] = {name: "c"}
    assert seen(JOB, obj).queue == "c"
    obj["metadata"]["annotations"][name] = "b"
    assert seen(JOB, obj).queue == "b"
    # Where Volcano itself looks first.
    obj["spec"]["template"]["metadata"] = {"annotations": {name: "a"}}
    assert seen(JOB, obj).queue == "a"


def test_completions_follow_where_an_indexed_job_has_as_many() -> None:
    assert resized(JOB, indexed(size=2, completions=2), 4)["spec"]["completions"] == 4
    fixed = indexed(size=2, completions=2)
    fixed["metadata"]["annotations"]["volcano-elastic.io/completions"] = "Fixed"
    assert resized(JOB, fixed, 1)["spec"]["completions"] == 2
    assert resized(JOB, indexed(size=2, completions=50), 4)["spec"]["completions"] == 50
    assert "completions" not in resized(JOB, job(size=2), 4)["spec"]
    # Pods that have succeeded count in the size of an elastic indexed job, as Kubernetes counts.
    some = indexed(size=4, completions=4) | {"status": {"succeeded": 1}}
    assert (seen(JOB, some).size, seen(JOB, some).succeeded) == (4, 1)


def test_a_job_gets_no_more_pods_than_are_left_to_do() -> None:
    nearly = job(size=4, completions=10, least=2) | {"status": {"succeeded": 7}}
    found = seen(JOB, nearly)
    assert (found.min, found.max, found.size, found.succeeded) == (2, 3, 3, 0)
    nearly["status"] = {"succeeded": 9}
    assert (seen(JOB, nearly).min, seen(JOB, nearly).max) == (1, 1)
    # Pods that share a queue of work: once one found it empty, the others end too.
    shared = job(size=4)
    assert seen(JOB, shared).max == 8
    assert read(JOB, shared | {"status": {"succeeded": 1}}) is None


def with_note(obj: Object, name: str, text: str) -> Object:
    obj["metadata"]["annotations"][f"volcano-elastic.io/{name}"] = text
    return obj


def several(obj: Object, replicas: int = 3) -> Object:
    obj["spec"]["replicatedJobs"][1]["replicas"] = replicas
    return obj


def without(obj: Object, name: str) -> Object:
    del obj["metadata"]["annotations"][f"volcano-elastic.io/{name}"]
    return obj


def by_kueue(obj: Object) -> Object:
    obj["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    return obj


@pytest.mark.parametrize(
    ("adapter", "obj", "said"),
    [
        (JOB, job(least=4, most=2), "min-pods: expected at most"),
        (JOB, with_note(job(), "max-pods", "many"), "from 1 to 100000, found 'many'"),
        (JOB, with_note(job(), "max-pods", "0"), "found '0'"),
        (JOB, without(job(), "max-pods"), "max-pods: expected beside"),
        (JOB, with_note(job(), "completions", "Both"), "expected Follow or Fixed"),
        (JOB, with_note(job(size=2), "completions", "Follow"), "found NonIndexed, None and 2"),
        (JOB, job(template={"spec": {"schedulerName": "mine"}}), "found mine"),
        (JOB, by_kueue(job()), "Kueue"),
        (JOBSET, without(jobset(), "replicated-job"), "the name of one of driver, workers"),
        (JOBSET, with_note(jobset(), "replicated-job", "ps"), "found 'ps'"),
        (JOBSET, several(jobset()), "replicas of workers: expected 1"),
        (TRAINJOB, trainjob() | {"spec": {}}, "spec.trainer.numNodes: expected a number"),
    ],
)
def test_what_cannot_be_sized_is_refused_in_words(adapter: Adapter, obj: Object, said: str) -> None:
    with pytest.raises(InvalidOtherJob, match=said):
        read(adapter, obj)


def test_a_fourth_kind_is_one_entry() -> None:
    mpi = Adapter(
        group="kubeflow.org",
        version="v2beta1",
        plural="mpijobs",
        kind="MPIJob",
        size=("spec", "groups", PART, "replicas"),
        template=("spec", "groups", PART, "template"),
        name_label="training.kubeflow.org/job-name",
        part_label="training.kubeflow.org/job-role",
    )
    obj = job() | {"kind": "MPIJob", "spec": {"groups": [{"name": "worker", "replicas": 2}]}}
    assert (seen(mpi, obj).part, seen(mpi, obj).size) == ("worker", 2)
    assert resized(mpi, obj, 3)["spec"] == {"groups": [{"name": "worker", "replicas": 3}]}
