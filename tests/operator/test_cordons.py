"""Nodes are cordoned for failures of their hardware only where a queue's policy says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.pytorchjob.world import job_object
from volcano_elastic.api.moment import micro_timestamp
from volcano_elastic.kube.resource import NODES
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.cordons import Cordons
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob.cordon import ANNOTATION, decide
from volcano_elastic.pytorchjob.exclusion import Exclusion

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Object = dict[str, Any]


def node(number: int) -> Object:
    return {"metadata": {"name": f"n{number}"}, "spec": {}}


def failed(number: int, minutes: int = 30) -> tuple[str, Exclusion]:
    return "team/a", Exclusion(f"n{number}", "ECC", NOW + timedelta(minutes=minutes))


def cordoned(nodes: list[Object], excluded: list[tuple[str, Exclusion]]) -> list[str]:
    """Carry out what is decided; return the names."""
    found, _ = decide(nodes, excluded)
    by_name = {one["metadata"]["name"]: one for one in nodes}
    for one in found:
        by_name[one.node]["spec"] |= one.patch()["spec"]
        by_name[one.node]["metadata"] |= one.patch()["metadata"]
    return [one.node for one in found]


def test_a_node_is_cordoned_once_for_a_failure_and_says_for_which() -> None:
    nodes = [node(number) for number in range(40)]
    assert cordoned(nodes, [failed(3)]) == ["n3"]
    mark = nodes[3]["metadata"]["annotations"][ANNOTATION]
    assert mark == f"{micro_timestamp(NOW + timedelta(minutes=30))} team/a: ECC"
    assert cordoned(nodes, [failed(3)]) == []
    nodes[3]["spec"]["unschedulable"] = False
    assert cordoned(nodes, [failed(3)]) == [], "somebody has looked at it"
    assert cordoned(nodes, [failed(3, minutes=31)]) == ["n3"], "it has failed again since"


def test_nodes_that_somebody_else_has_cordoned_stay_as_they_are() -> None:
    nodes = [node(0) | {"spec": {"unschedulable": True}}]
    assert decide(nodes, [failed(0)]) == ([], [])


@given(count=st.integers(1, 200), bad=st.sets(st.integers(0, 199)), looks=st.integers(1, 4))
def test_never_more_than_a_twentieth_of_all_nodes_and_at_least_one(
    count: int, bad: set[int], looks: int
) -> None:
    nodes = [node(number) for number in range(count)]
    excluded = [failed(number) for number in sorted(bad)]
    for _ in range(looks):
        _, beyond = decide(nodes, excluded)
        cordoned(nodes, excluded)
    closed = sum(bool(one["spec"].get("unschedulable")) for one in nodes)
    there = sum(number < count for number in bad)
    assert closed == min(there, max(1, count // 20))
    assert len(beyond) == there - closed or looks == 1


@pytest.mark.process
@pytest.mark.parametrize(("policy", "expected"), [("Never", False), ("Excluded", True)])
async def test_the_operator_cordons_where_the_policy_says_so(
    policy: str, expected: bool, tmp_path: Path
) -> None:
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client:
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", **node(0)})
            cluster, builder = Cluster(client), SnapshotBuilder()
            for informer in (cluster.jobs, cluster.policies):
                informer.on_change(lambda old, new: builder.change(old, new) and None)
            job = job_object(elastic={"min": 1, "max": 2})
            job |= {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
            _, exclusion = failed(0)
            told = {"node": "n0", "reason": "ECC", "until": micro_timestamp(exclusion.until)}
            job["status"] = {"elastic": {"excludedNodes": [told]}}
            cluster.jobs.note_write(job)
            cluster.policies.note_write(
                {
                    "apiVersion": "policy.volcano-elastic.io/v1alpha1",
                    "kind": "QueuePolicy",
                    "metadata": {"name": "p", "uid": "p", "resourceVersion": "1"},
                    "spec": {"queue": "default", "nodes": {"cordon": policy}},
                }
            )
            cluster.nodes.note_write(await client.get(NODES, "n0", None))
            await Cordons(cluster, builder).look()
            found = await client.get(NODES, "n0", None)
            assert found["spec"].get("unschedulable", False) is expected
            assert (ANNOTATION in (found["metadata"].get("annotations") or {})) is expected
