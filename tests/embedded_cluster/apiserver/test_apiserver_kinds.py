"""Nodes, events and services."""

from __future__ import annotations

import pytest

from volcano_elastic.kube.client import Client, Conflict, Invalid
from volcano_elastic.kube.resource import AUTOSCALERS, EVENTS, LEASES, NODES, SERVICES, Object


async def test_nodes_keep_the_status_they_are_created_with(client: Client) -> None:
    node = {"metadata": {"name": "node-x"}, "status": {"capacity": {"cpu": "4"}}}
    made = await client.create(NODES, node)
    assert made["status"]["capacity"] == {"cpu": "4"}
    body = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(NODES, "node-x", None, body, subresource="status")
    found = await client.get(NODES, "node-x")
    assert found["status"]["capacity"] and found["status"]["conditions"]


async def test_events_are_found_by_what_they_are_about(client: Client, namespace: str) -> None:
    event = {
        "metadata": {"name": "e", "namespace": namespace},
        "involvedObject": {"kind": "Pod", "name": "one", "namespace": namespace},
        "reason": "Started",
        "message": "words",
    }
    await client.create(EVENTS, event)
    selected = await client.list(EVENTS, namespace, field_selector="involvedObject.name=one")
    assert [item["message"] for item in selected["items"]] == ["words"]


async def test_services_get_an_address_and_keep_it(client: Client, namespace: str) -> None:
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}}
    meta = {"name": "one", "namespace": namespace}
    made = await client.create(SERVICES, {"metadata": meta, "spec": spec})
    assert made["spec"]["clusterIP"].startswith("10.96.")
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    put = await client.replace(SERVICES, {"metadata": meta, "spec": {**spec, "selector": {}}})
    assert put["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    headless = {"metadata": {**meta, "name": "two"}, "spec": {"clusterIP": "None"}}
    assert (await client.create(SERVICES, headless))["spec"]["clusterIP"] == "None"


async def test_a_service_of_another_type_is_refused(client: Client, namespace: str) -> None:
    spec = {"type": "NodePort", "ports": [{"port": 80}]}
    with pytest.raises(Invalid, match=r'Unsupported value: "NodePort": .* "ClusterIP"'):
        await client.create(
            SERVICES, {"metadata": {"name": "s", "namespace": namespace}, "spec": spec}
        )


async def test_a_lease_that_has_gone_is_not_made_again_by_who_held_it(
    client: Client, namespace: str
) -> None:
    meta = {"name": "one", "namespace": namespace}
    held = await client.create(LEASES, {"metadata": meta, "spec": {"holderIdentity": "me"}})
    await client.delete(LEASES, "one", namespace)
    with pytest.raises(Conflict, match="UID in precondition"):
        await client.replace(LEASES, held)
    await client.replace(LEASES, {"metadata": meta, "spec": {"holderIdentity": "you"}})


@pytest.mark.parametrize(
    ("sort", "source", "missing"),
    [
        ("Resource", {"name": "cpu"}, "target"),
        ("Pods", {"metric": {"name": "m"}}, "target"),
        ("External", {"target": {"type": "Value", "value": "1"}}, "metric"),
    ],
)
async def test_a_metric_of_an_autoscaler_has_all_that_is_read_of_it(
    client: Client, namespace: str, sort: str, source: Object, missing: str
) -> None:
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j"}
    metrics = [{"type": sort, sort.lower(): source}]
    spec = {"scaleTargetRef": target, "maxReplicas": 3, "metrics": metrics}
    with pytest.raises(Invalid, match=f"{sort.lower()}.{missing}: Required value"):
        await client.create(
            AUTOSCALERS, {"metadata": {"name": "a", "namespace": namespace}, "spec": spec}
        )
