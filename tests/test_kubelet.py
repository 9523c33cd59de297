"""The kubelet's decisions: addresses, environment, phases, restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volcano_elastic.local.kubelet.address import (
    AddressBook,
    resolve_value,
    split_service_name,
)
from volcano_elastic.local.kubelet.environment import ConfigError, environment, expand
from volcano_elastic.local.kubelet.pod_status import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    phase_of,
    pod_status,
    restart_delay,
)

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


# Pure


def test_a_pod_keeps_its_address_and_no_two_share_one() -> None:
    one, other = AddressBook(), AddressBook()
    names = [f"job-worker-{index}" for index in range(2000)]
    addresses = [one.of("default", name) for name in names]
    assert len(set(addresses)) == len(names)
    assert all(address.startswith("127.") for address in addresses)
    assert other.of("default", "job-worker-7") == one.of("default", "job-worker-7")
    assert one.of("default", "a") != one.of("other", "a")


def test_an_adopted_address_is_not_given_to_another() -> None:
    natural = AddressBook().of("default", "late")
    book = AddressBook()
    book.adopt("default", "early", natural)
    assert book.of("default", "early") == natural
    assert book.of("default", "late") != natural


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("job-worker-0", "127.16.0.9"),
        ("job-worker-0:23456", "127.16.0.9:23456"),
        ("job-worker-0:port", "job-worker-0:port"),
        ("default/job-worker-0", "default/job-worker-0"),
        ("other", "other"),
        ("", ""),
        (":80", ":80"),
    ],
)
def test_service_names_in_values_become_addresses(value: str, expected: str) -> None:
    assert resolve_value(value, {"job-worker-0": "127.16.0.9"}.get) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("web", ("ns", "web")),
        ("web.other", ("other", "web")),
        ("web.other.svc", ("other", "web")),
        ("web.other.svc.cluster.local", ("other", "web")),
        ("web.other.com", None),
        ("a b", None),
    ],
)
def test_service_names_carry_their_namespace(host: str, expected: tuple[str, str] | None) -> None:
    assert split_service_name(host, "ns") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--x=$(A)", "--x=1"),
        ("$(A)$(B)", "1$(B)"),
        ("$$(A)", "$(A)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
    ],
)
def test_references_expand_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def _bare_pod(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u-1",
            "labels": {"role": "worker"},
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **spec},
        "status": {"podIP": "127.16.0.1", "hostIP": "127.0.0.1"},
    }


def test_environment_takes_values_fields_config_maps_and_secrets() -> None:
    def field(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    container = {
        "name": "main",
        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "conf"}}],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(C_x)"},
            {"name": "NAME", "valueFrom": field("metadata.name")},
            {"name": "UID", "valueFrom": field("metadata.uid")},
            {"name": "IP", "valueFrom": field("status.podIP")},
            {"name": "NODE", "valueFrom": field("spec.nodeName")},
            {"name": "ROLE", "valueFrom": field("metadata.labels['role']")},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {
                "name": "NONE",
                "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}},
            },
        ],
    }
    sources = {
        ("ConfigMap", "conf"): {"data": {"x": "2"}},
        ("Secret", "s"): {"data": {"k": "c2VjcmV0"}},
    }
    # "p" is a service too, but the pod's own name has to stay a name.
    found = environment(container, _bare_pod(), sources, {"p": "127.9.9.9"}.get)
    assert found == {
        "C_x": "2",
        "A": "1",
        "B": "1-2",
        "NAME": "p",
        "UID": "u-1",
        "IP": "127.16.0.1",
        "NODE": "node-1",
        "ROLE": "worker",
        "KEY": "secret",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, "ConfigMap 'gone' not found"),
        ({"fieldRef": {"fieldPath": "spec.hostname"}}, "found 'spec.hostname'"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "found resourceFieldRef"),
    ],
)
def test_what_the_environment_lacks_is_named(entry: dict[str, Any], message: str) -> None:
    container = {"name": "main", "env": [{"name": "X", "valueFrom": entry}]}
    with pytest.raises(ConfigError, match=message):
        environment(container, _bare_pod(), {}, lambda host: None)


def _ended(code: int) -> ContainerRecord:
    return ContainerRecord("c", state=Terminated(code, "", _NOW, _NOW))


_RUNNING = ContainerRecord("c", state=Running(_NOW))
_WAITING = ContainerRecord("c", state=Waiting())
_CRASHED = ContainerRecord(
    "c", state=Waiting("CrashLoopBackOff"), last=Terminated(1, "Error", _NOW, _NOW)
)


@pytest.mark.parametrize(
    ("records", "policy", "expected"),
    [
        ([_WAITING], "Always", "Pending"),
        ([_WAITING, _RUNNING], "Always", "Pending"),
        ([_RUNNING], "Never", "Running"),
        ([_RUNNING, _ended(1)], "Never", "Running"),
        ([_CRASHED], "OnFailure", "Running"),
        ([_ended(0)], "Always", "Running"),
        ([_ended(0), _ended(0)], "OnFailure", "Succeeded"),
        ([_ended(0), _ended(3)], "Never", "Failed"),
        ([_ended(0), _ended(3)], "OnFailure", "Running"),
    ],
)
def test_a_pods_phase_follows_from_its_containers(
    records: list[ContainerRecord], policy: str, expected: str
) -> None:
    assert phase_of([], records, policy) == expected


def test_a_stopped_pod_is_over_whatever_its_policy() -> None:
    assert phase_of([], [_ended(0)], "Always", stopped=True) == "Succeeded"
    assert phase_of([], [_ended(143)], "Always", stopped=True) == "Failed"
    assert phase_of([], [_CRASHED], "OnFailure", stopped=True) == "Failed"
    assert phase_of([_ended(1)], [_WAITING], "Never") == "Failed"
    assert phase_of([_RUNNING], [_WAITING], "Never") == "Pending"


def test_back_off_doubles_to_its_cap_and_respects_the_policy() -> None:
    assert [restart_delay("Always", 0, n) for n in (1, 2, 3, 6, 99)] == [1, 2, 4, 30, 30]
    assert restart_delay("Never", 1, 1) is None
    assert restart_delay("OnFailure", 0, 1) is None
    assert restart_delay("OnFailure", 1, 1) == 1


def test_conditions_keep_their_time_and_those_of_others() -> None:
    pod = _bare_pod()
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    later = _NOW + timedelta(seconds=5)

    def status(pod: dict[str, Any], now: datetime) -> dict[str, Any]:
        return pod_status(pod, [], [_RUNNING], address="127.16.0.1", started=_NOW, now=now)

    first = status(pod, _NOW)
    assert status(pod | {"status": first}, later) == first
    by_type = {condition["type"]: condition["status"] for condition in first["conditions"]}
    assert by_type == dict.fromkeys(
        ("PodScheduled", "Initialized", "ContainersReady", "Ready", "DisruptionTarget"), "True"
    )
