"""The services that give a job's pods their names."""

from __future__ import annotations

from typing import Any

from tests.pytorchjob.world import NOW, World, begin, job_object


def test_a_service_is_headless_and_found_before_readiness_only_where_elastic() -> None:
    def spec(world: World) -> Any:
        return world.services["a-worker-1"]["spec"]

    fixed, elastic = begin(master=True), begin(2)
    assert spec(fixed)["clusterIP"] == spec(elastic)["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in spec(fixed)
    assert spec(elastic)["publishNotReadyAddresses"] is True
    assert spec(fixed)["ports"] == [{"name": "pytorchjob-port", "port": 23456, "protocol": "TCP"}]
    assert set(spec(fixed)["selector"]) == {
        f"training.kubeflow.org/{name}"
        for name in ("operator-name", "job-name", "replica-type", "replica-index")
    }


def test_a_service_names_each_port_once() -> None:
    # A container may have a port twice; the API server refuses a service that does.
    job = job_object()
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["ports"] = [
        {"containerPort": 23456},
        {"containerPort": 23456, "protocol": "UDP", "name": None},
        {"containerPort": 80, "protocol": None},
    ]
    world = World(job, NOW)
    world.settle()
    ports = world.services["a-worker-0"]["spec"]["ports"]
    assert [(p["name"], p["port"], p["protocol"]) for p in ports] == [
        ("pytorchjob-port", 23456, "TCP"),
        ("port-1", 23456, "UDP"),
        ("port-2", 80, "TCP"),
    ]


def test_a_made_up_port_name_is_nobody_elses() -> None:
    job = job_object()
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["ports"] = [
        {"containerPort": 80, "name": "port-1"},
        {"containerPort": 81},
        {"containerPort": 82},
        {"containerPort": 83, "name": "port-2"},
    ]
    world = World(job, NOW)
    world.settle()
    names = [p["name"] for p in world.services["a-worker-0"]["spec"]["ports"]]
    assert names == ["port-1", "port-3", "port-4", "port-2", "pytorchjob-port"]
