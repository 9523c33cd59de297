"""A cluster of API objects on which the pure session's effects are carried out at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from embedded_cluster.scheduler.configuration import DEFAULT, load, parse
from embedded_cluster.scheduler.cycle import effects_of, session_of
from embedded_cluster.scheduler.effect import (
    Bind,
    Create,
    Effect,
    Evict,
    SetStatus,
)
from embedded_cluster.scheduler.observe import Observed, snapshot_of
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Snapshot
from tests.embedded_cluster.scheduler import volcano_scenario
from volcano_elastic.kube.resource import PODGROUPS, PODS, QUEUES
from volcano_elastic.scheduler_conf.configuration import Configuration

GPU = "nvidia.com/gpu"
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = frozenset({"volcano", "default-scheduler"})


def configuration(text: str | None = None) -> Configuration:
    if text is None:
        return load(DEFAULT)
    return parse(yaml.safe_load(text))


PROPORTION = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - {name: gang, enableReclaimable: false}
  - {name: priority, enablePreemptable: false}
  - {name: conformance}
  - {name: proportion}
  - {name: cdp}
- plugins: [{name: drf, enablePreemptable: false}, {name: predicates}, {name: nodeorder}]
"""
OVERCOMMIT = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins:
  - {name: overcommit}
  - {name: drf, enablePreemptable: false}
  - {name: predicates}
  - {name: proportion}
  - {name: nodeorder}
  - {name: binpack}
"""


@dataclass
class Cluster:
    """API objects, and what an API server and a kubelet would make of the scheduler's effects."""

    conf: Configuration = field(default_factory=configuration)
    now: datetime = START
    nodes: dict[str, Any] = field(default_factory=dict)
    gangs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, Any] = field(default_factory=dict)
    podgroups: dict[str, Any] = field(default_factory=dict)
    queues: dict[str, Any] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)

    def node(self, name: str, gpu: int, **spec: Any) -> None:
        allocatable = {"cpu": "32", "memory": "128Gi", "pods": "200", GPU: str(gpu)}
        self.nodes[name] = {
            "metadata": {"name": name, "labels": spec.pop("labels", {})},
            "spec": spec,
            "status": {"allocatable": allocatable},
        }

    def queue(self, name: str, **spec: Any) -> None:
        self.queues[name] = {"metadata": {"name": name}, "spec": spec}

    def gang(self, name: str, minimum: int, pods: int | None = None, **how: Any) -> None:
        """Return a gang as in volcano_observed.yaml."""
        gang = self.gangs[name] = {"name": name, "min": minimum, **how}
        if pods is not None:
            gang["pods"] = pods
        self.add_podgroup(volcano_scenario.podgroup("default", gang))
        self.add_pods(volcano_scenario.pods("default", gang))

    def members(self, gang: str, indexes: Sequence[int]) -> None:
        self.add_pods(volcano_scenario.pods("default", self.gangs[gang], indexes))

    def pod(self, name: str, gpu: int = 0, **spec: Any) -> None:
        """Return a pod of no gang."""
        requests = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpu)} if gpu else {})
        containers = [{"resources": {"requests": requests}}]
        self.add_pods(
            [
                {
                    "metadata": {"namespace": "default", "name": name},
                    "spec": {"schedulerName": "volcano", "containers": containers, **spec},
                }
            ]
        )

    def add_podgroup(self, group: dict[str, Any]) -> None:
        group["metadata"]["creationTimestamp"] = self._stamp()
        self.podgroups[f"default/{group['metadata']['name']}"] = group

    def add_pods(self, pods: Sequence[dict[str, Any]]) -> list[str]:
        """Their names."""
        names = []
        for pod in pods:
            name = pod["metadata"]["name"]
            pod["metadata"] |= {
                "uid": f"{name}-{self._stamp()}",
                "creationTimestamp": self._stamp(),
            }
            pod["status"] = {"phase": "Pending"}
            self.pods[f"default/{name}"] = pod
            names.append(name)
        return names

    def _stamp(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def snapshot(self) -> Snapshot:
        observed = Observed(
            self.nodes.values(),
            self.pods.values(),
            self.podgroups.values(),
            self.queues.values(),
            [{"metadata": {"name": n}, "value": value} for n, value in self.classes.items()],
        )
        return snapshot_of(observed, NAMES)

    def session(self) -> Session:
        return session_of(self.snapshot(), self.conf, self.now)

    def step(self) -> list[Effect]:
        return self.carry_out(self.session())

    def carry_out(self, session: Session) -> list[Effect]:
        effects = effects_of(session)
        for effect in effects:
            self._apply(effect)
        return effects

    def settle(self) -> None:
        """Sessions until one has nothing to say."""
        for _ in range(40):
            if not self.step():
                self.now += timedelta(seconds=1)
                return
        pytest.fail(f"the scheduler never comes to rest: {effects_of(self.session())}")

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Bind(pod, node):
                bound = self.pods[pod.key]
                assert "nodeName" not in bound["spec"], f"{pod.key} is bound twice"
                bound["spec"]["nodeName"] = node
                condition = {"type": "PodScheduled", "status": "True"}
                scheduled = condition | {"lastTransitionTime": self._stamp()}
                told = bound["metadata"].get("annotations", {})
                code = told.get("local.volcano-elastic.io/exit-code")
                phase = {None: "Running", "0": "Succeeded"}.get(code, "Failed")
                bound["status"] = {"phase": phase, "conditions": [scheduled]}
            case Evict(pod, action):
                assert pod.preemptable, f"{pod.key} is protected"
                self.evicted.append(f"{pod.name} by {action}")
                del self.pods[pod.key]
            case SetStatus(resource, key, status):
                stores = {PODS: self.pods, PODGROUPS: self.podgroups, QUEUES: self.queues}
                obj = stores[resource][key]
                obj["status"] = obj.get("status", {}) | status
            case Create(_, body):
                self.queue(body["metadata"]["name"], **copy.deepcopy(body["spec"]))

    def placed(self) -> dict[str, str]:
        pods = (p for p in self.pods.values() if "nodeName" in p["spec"])
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods}

    def members_of(self, gang: str) -> list[int]:
        names = [name for name in self.placed() if name.startswith(f"{gang}-worker-")]
        return sorted(int(name.rsplit("-", 1)[1]) for name in names)

    def phase(self, gang: str) -> str:
        return str(self.podgroups[f"default/{gang}"]["status"]["phase"])

    def condition(self, gang: str, kind: str) -> dict[str, str]:
        """The PodGroup's condition of that type; empty if it has none."""
        conditions = self.podgroups[f"default/{gang}"]["status"]["conditions"]
        return next((dict(one) for one in conditions if one["type"] == kind), {})

    def gpus(self, queue: str) -> str:
        return str(self.queues[queue]["status"]["allocated"].get(GPU, "0"))


def cluster(*gpus: int, conf: str | None = None) -> Cluster:
    made = Cluster(configuration(conf))
    for number, gpu in enumerate(gpus, start=1):
        made.node(f"n{number}", gpu)
    return made
