"""The operator's memory beside what its informers hold."""

from __future__ import annotations

import copy
from typing import Any, cast

from tests.pytorchjob.world import job_object
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.pytorchjob.label import JOB_NAME

Object = dict[str, Any]


def pod(*, uid: str = "p1", evicted: bool = True, owner: str = "u1") -> Object:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastTransitionTime": "2026-01-01T12:00:05Z",
    }
    return {
        "metadata": {
            "name": "a-worker-1",
            "namespace": "team",
            "uid": uid,
            "resourceVersion": "2",
            "labels": {JOB_NAME: "a"},
            "ownerReferences": [{"controller": True, "uid": owner}],
        },
        "status": {"conditions": [condition] if evicted else []},
    }


def cluster(*, watch: bool = True, namespace: str | None = None) -> tuple[Cluster, Object]:
    made, job = Cluster(cast(Client, None), namespace=namespace), job_object()
    made.jobs.note_write(job)
    made.watch_evictions(on=watch)
    return made, job


def come_and_go(seen: Cluster, found: Object) -> None:
    seen.pods.note_write(found)
    seen.pods.drop(found)


def test_a_pod_that_was_evicted_and_gone_at_once_is_remembered_until_its_job_was_looked_at() -> (
    None
):
    seen, job = cluster()
    come_and_go(seen, pod())
    (evicted,) = seen.evicted_of(job)
    assert evicted["metadata"]["deletionTimestamp"] == "2026-01-01T12:00:05Z", "as if it left"
    come_and_go(seen, pod(uid="p2"))
    seen.forget(job, [evicted])
    assert [p["metadata"]["uid"] for p in seen.evicted_of(job)] == ["p2"], "it came meanwhile"
    seen.forget(job, seen.evicted_of(job))
    assert seen.evicted_of(job) == ()


def test_others_are_not_remembered() -> None:
    seen, job = cluster()
    come_and_go(seen, pod(evicted=False))
    come_and_go(seen, pod(uid="p2", owner="somebody"))
    assert seen.evicted_of(job) == ()


def test_a_job_of_the_same_name_has_nothing_to_do_with_it() -> None:
    seen, job = cluster()
    come_and_go(seen, pod())
    again = copy.deepcopy(job)
    again["metadata"] |= {"uid": "u2", "resourceVersion": "9"}
    seen.jobs.note_write(again)
    assert seen.evicted_of(again) == () and seen.evicted_of(job) == ()


def test_a_standby_remembers_nothing() -> None:
    seen, job = cluster(watch=False)
    come_and_go(seen, pod())
    seen.watch_evictions(on=True)
    assert seen.evicted_of(job) == (), "the one that led reckoned with it"


def test_of_jobs_that_nobody_looks_at_nothing_is_remembered() -> None:
    seen, job = cluster(namespace="other")
    come_and_go(seen, pod())
    assert seen.evicted_of(job) == (), "it would never be forgotten"
