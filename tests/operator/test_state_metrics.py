"""A queue's goodput as Prometheus gets it: what time was used for, and how much was wanted."""

from __future__ import annotations

from typing import cast

from tests.pytorchjob.world import job_object
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.state_metrics import StateMetrics
from volcano_elastic.pytorchjob.goodput import with_places


def test_a_queues_time_is_told_by_its_use_and_as_granted_and_wanted() -> None:
    cluster = Cluster(cast(Client, None))
    for index in range(2):
        job = job_object(elastic={"min": 1, "max": 4})
        job["metadata"] |= {"name": f"job-{index}", "uid": f"u{index}"}
        known = {"milliseconds": {"productive_training": 6000, "hang": 1500}}
        job["status"] = {"elastic": {"goodput": with_places(known, 1000, granted=3, wanted=4)}}
        cluster.jobs.note_write(job)
    found = {}
    for family in StateMetrics((), cluster.jobs, lambda: 0).collect():
        for sample in family.samples:
            kind = sample.labels.get("use") or sample.labels.get("figure")
            if kind and sample.value:
                found[sample.name, sample.labels["queue"], kind] = sample.value
    assert found == {
        ("volcano_elastic_gpu_seconds", "default", "productive_training"): 12.0,
        ("volcano_elastic_gpu_seconds", "default", "hang"): 3.0,
        ("volcano_elastic_worker_seconds", "default", "granted"): 6.0,
        ("volcano_elastic_worker_seconds", "default", "wanted"): 8.0,
    }
