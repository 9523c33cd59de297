"""FailedNodes keeps what coordinators leave out, dated by when it was first heard of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

from tests.pytorchjob.world import job_object
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.failure_report import Exclusion
from volcano_elastic.pytorchjob.observed import NodeFailure

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BAD, WORSE = Exclusion("n1", (1,), "its devices failed"), Exclusion("n2", (), "so did its")


def test_each_further_node_is_told_once_and_keeps_its_date() -> None:
    now, told = NOW, list[str]()
    cluster = Cluster(cast(Client, None))
    failed = FailedNodes(cluster, lambda: now)
    failed.on_news(told.append)
    obj = job_object(elastic={"min": 1, "max": 2, "rdzvBackend": "volcano-elastic"})
    job = parse(obj)
    failed.hear(job, ())
    assert not told and not failed.of(job)
    failed.hear(job, (BAD,))
    now += timedelta(seconds=10)
    failed.hear(job, (BAD,))
    assert told == ["team/a"] and failed.of(job) == {"n1": NodeFailure(BAD.reason, NOW)}
    failed.hear(job, (BAD, WORSE))
    assert len(told) == 2 and failed.of(job)["n2"].at == now
    failed.hear(job, ())
    assert not failed.of(job), "a new attempt begins with all nodes"


def test_another_job_of_the_name_begins_without() -> None:
    cluster = Cluster(cast(Client, None))
    failed = FailedNodes(cluster, lambda: NOW)
    obj = job_object(elastic={"min": 1, "max": 2, "rdzvBackend": "volcano-elastic"})
    failed.hear(parse(obj), (BAD,))
    obj["metadata"]["uid"] = "u2"
    assert not failed.of(parse(obj))
    cluster.jobs.note_write(obj)
