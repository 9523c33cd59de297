"""Scenarios for a scheduler, as data: their steps, what API objects they stand for, and what a real
Volcano made of them.

`volcano_observed.yaml` holds them. Nodes are name: GPUs. A gang is a PodGroup with `min` members
and `pods` pods (default: min) of `gpu` GPUs each (1), named NAME-worker-I; those from index min on
are preemptable, unless `preemptable` says all, none or unset. minResources is what min pods
request, unless it is `none`.

A snapshot names each gang's phase and where each of its pods is: a node, `-` for pending, `leaving`
or `gone`; who has been evicted so far, and by which action; and each queue's allocated GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from volcano_elastic.api import quantity

FILE = Path(__file__).with_name("volcano_observed.yaml")
GPU = "nvidia.com/gpu"

Snapshot = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    configuration: str
    """The text of a volcano-scheduler.conf."""
    nodes: Mapping[str, int]
    queues: Mapping[str, Mapping[str, Any]]
    """Spec by name."""
    priorities: Mapping[str, int]
    """Value by the name of a PriorityClass."""
    steps: tuple[Mapping[str, Any], ...]
    observed: tuple[tuple[Snapshot, ...], ...]
    """Each distinct outcome: a snapshot for each snapshot step."""

    def possible_after(self, seen: Sequence[Snapshot]) -> list[tuple[Snapshot, ...]]:
        """The observed outcomes that began like that."""
        mine = self._alike(seen)
        return [o for o in self.observed if self._alike(o[: len(seen)]) == mine]

    def check(self, seen: Sequence[Snapshot]) -> None:
        """Raises AssertionError unless Volcano was seen to end like that."""
        known = "\n".join(_lines(outcome) for outcome in self.observed)
        assert self.possible_after(seen), f"found\n{_lines(seen)}\nVolcano was seen to do\n{known}"

    def _alike(self, outcome: Sequence[Snapshot]) -> list[Snapshot]:
        """Nodes named in the order in which they were first used: Volcano chooses at random among
        equally good ones."""
        if len(set(self.nodes.values())) > 1:
            return list(outcome)
        names: dict[str, str] = {}
        renamed = []
        for one in outcome:
            gangs = {}
            for gang, places in one["gangs"].items():
                for place in places.split():
                    if place in self.nodes:
                        names.setdefault(place, f"node {len(names)}")
                gangs[gang] = [names.get(place, place) for place in places.split()]
            renamed.append(one | {"gangs": gangs})
        return renamed


def _lines(outcome: Sequence[Snapshot]) -> str:
    return "\n".join(f"  {snapshot}" for snapshot in outcome)


def load(path: Path = FILE) -> list[Scenario]:
    document = yaml.load(path.read_text(), yaml.CSafeLoader)  # ten times as quick: a second
    return [
        Scenario(
            one["name"],
            document["configurations"][one["configuration"]],
            one["nodes"],
            one.get("queues", {}),
            one.get("priorities", {}),
            tuple(one["steps"]),
            tuple(tuple(outcome["snapshots"]) for outcome in one.get("observed", ())),
        )
        for one in document["scenarios"]
    ]


def podgroup(namespace: str, gang: Mapping[str, Any]) -> dict[str, Any]:
    spec = {
        "minMember": gang["min"],
        "queue": gang.get("queue", "default"),
        "priorityClassName": gang.get("priority", ""),
        **gang.get("spec", {}),
    }
    if gang.get("minResources") != "none":
        amounts = {GPU: gang.get("gpu", 1), "cpu": gang.get("cpu", 1)}
        spec["minResources"] = {k: str(v * gang["min"]) for k, v in amounts.items() if v}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": gang["name"], "namespace": namespace},
        "spec": spec,
    }


def pods(
    namespace: str, gang: Mapping[str, Any], indexes: Iterable[int] | None = None
) -> list[dict[str, Any]]:
    chosen = range(gang.get("pods", gang["min"])) if indexes is None else indexes
    return [_pod(namespace, gang, index) for index in chosen]


def _pod(namespace: str, gang: Mapping[str, Any], index: int) -> dict[str, Any]:
    annotations = {
        "scheduling.k8s.io/group-name": gang["name"],
        "volcano.sh/task-spec": gang.get("role", "worker"),
    }
    preemptable = gang.get("preemptable", "elastic")
    if preemptable != "unset":
        may_go = preemptable == "all" or (preemptable == "elastic" and index >= gang["min"])
        annotations["volcano.sh/preemptable"] = str(may_go).lower()
    annotations |= gang.get("annotations", {})
    if gang.get("taskPriority"):
        annotations["volcano.sh/task-priority"] = str(1000 - index)
    labels = {"volcano.sh/cooldown-time": gang["cooldown"]} if "cooldown" in gang else {}
    asked = {
        "cpu": gang.get("cpu", 1),
        "memory": gang.get("memory", "1Gi"),
        GPU: gang.get("gpu", 1),
    }
    amounts = {name: str(amount) for name, amount in asked.items() if amount}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{gang['name']}-worker-{index}",
            "namespace": namespace,
            "annotations": annotations,
            "labels": labels,
        },
        "spec": {
            "schedulerName": "volcano",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"requests": amounts, "limits": dict(amounts)},
                }
            ],
            **gang.get("podSpec", {}),
        },
    }


def duration(step: Mapping[str, Any]) -> timedelta:
    return timedelta(seconds=step["sleep"])


def snapshot(
    at: str,
    *,
    made: Iterable[str],
    pods: Iterable[Mapping[str, Any]],
    podgroups: Iterable[Mapping[str, Any]],
    queues: Iterable[Mapping[str, Any]],
    evicted: Iterable[str],
) -> Snapshot:
    """Return what the API server's objects look like; `made` names all pods that have ever been
    there."""
    places = dict.fromkeys(made, "gone")
    for pod in pods:
        leaving = pod["metadata"].get("deletionTimestamp")
        place = "leaving" if leaving else pod["spec"].get("nodeName", "-")
        places[pod["metadata"]["name"]] = place
    gangs = {}
    for group in podgroups:
        name = group["metadata"]["name"]
        members = [pod for pod in places if pod.startswith(f"{name}-worker-")]
        members.sort(key=lambda pod: int(pod.rsplit("-", 1)[1]))
        phase = (group.get("status") or {}).get("phase") or "Pending"
        gangs[name] = " ".join([phase, *(places[pod] for pod in members)])
    allocated = {
        queue["metadata"]["name"]: (queue.get("status") or {}).get("allocated", {}).get(GPU, 0)
        for queue in queues
    }
    return {
        "at": at,
        "gangs": dict(sorted(gangs.items())),
        "evicted": sorted(evicted),
        "gpus": {name: quantity.milli(held) // 1000 for name, held in sorted(allocated.items())},
    }
