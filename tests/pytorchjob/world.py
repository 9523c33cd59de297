"""A tiny pure world for one job: applies a reconcile's actions, plays scheduler and kubelet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from volcano_elastic.api import moment
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.brain_mode import BrainMode
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.api.role import elastic
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.api.server_count import ServerCount
from volcano_elastic.podgroup.pod_annotation import is_protected
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob import at_start, servers
from volcano_elastic.pytorchjob.failure_rule import FailureRule
from volcano_elastic.pytorchjob.observed import NodeFailure, Observed, Resize
from volcano_elastic.pytorchjob.out_of_memory import shortages
from volcano_elastic.pytorchjob.pod import PodTemplate, Resources
from volcano_elastic.pytorchjob.reconcile import reconcile
from volcano_elastic.pytorchjob.service import ServiceTemplate
from volcano_elastic.pytorchjob.settings import DEFAULTS

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
METRICS = [
    {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1500m"}},
    }
]


def copied(obj: Any) -> Any:
    """Return a copy of what JSON can say, at a twentieth of deepcopy's cost."""
    return orjson.loads(orjson.dumps(obj))


def job_object(
    *,
    elastic: Object | None = None,
    master: bool = False,
    replicas: int = 2,
    restartPolicy: str = "OnFailure",  # noqa: N803
    **spec: Any,
) -> Object:
    replica = {
        "restartPolicy": restartPolicy,
        "template": {
            "metadata": {"labels": {"team": "vision"}},
            "spec": {
                "futureField": {"kept": True},
                "containers": [
                    {
                        "name": "pytorch",
                        "image": "train:1",
                        "env": [{"name": "USER_SET", "value": "1"}],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    }
                ],
            },
        },
    }
    kinds = {"Worker": replica | {"replicas": replicas}}
    if master:
        kinds["Master"] = replica | {"replicas": 1}
    obj: Object = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": "u1",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T12:00:00Z",
        },
        "spec": {"pytorchReplicaSpecs": kinds, **spec},
    }
    if elastic is not None:
        obj["spec"]["elasticPolicy"] = elastic
    return copied(obj)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


def active(actions: Sequence[a.Action]) -> list[a.Action]:
    """Those that do something: the others are there again in each reconcile."""

    def stands(action: a.Action) -> bool:
        return isinstance(action, a.Requeue) or (
            isinstance(action, a.EmitEvent) and action.deduplicated
        )

    return [action for action in actions if not stands(action)]


class World:
    def __init__(self, job: Object, now: datetime) -> None:
        self.job, self.now = job, now
        self.pods: dict[str, Object] = {}
        self.secrets: dict[str, Object] = {}
        self.services: dict[str, Object] = {}
        self.podgroup: Object | None = None
        self.autoscaler: Object | None = None
        self.protect: timedelta | None = None
        self.grace: timedelta | None = None
        self.resources: dict[str, Resources] = {}
        self.settings = DEFAULTS
        self.resize: Resize | None = None
        self.admission_wait = timedelta(0)
        self.lost: dict[str, str] = {}
        self.most_memory: Bytes | None = None
        self.killed: set[str] = set()
        """Uids of pods in which the kernel killed a rank for memory."""
        """By uid, why."""
        self.nodes: list[Object] = []
        self.brain_mode: BrainMode | None = None
        self.plan: ScalePlan | None = None
        self.servers_by_load: ServerCount | None = None
        self.servers_to_move: frozenset[str] = frozenset()
        self.failed_nodes: dict[str, NodeFailure] = {}
        self.to_leave: dict[str, str] = {}
        self.exclude_for = timedelta(minutes=30)
        self.rebalances = False
        self.failure_rules: tuple[FailureRule, ...] = ()
        self.needs_first = True
        self._uids = 0

    # The operator

    def observed(self) -> Observed:
        return Observed(
            pods=tuple(copied([*self.pods.values()])),
            services=tuple(self.services.values()),
            podgroup=self.podgroup,
            autoscaler=self.autoscaler,
            resources=self.resources,
            resize=self.resize,
            admission_wait=self.admission_wait,
            protect=self.protect,
            grace=self.grace,
            lost=self.lost,
            shortages=shortages(
                *(parse(copied(self.job)), self.pods.values(), self.nodes, self.now, self.killed),
                self.most_memory,
            ),
            at_start=at_start.decide(
                parse(copied(self.job)),
                self.brain_mode,
                self.nodes,
                self.now,
                pods=bool(self.pods),
                plan=self.plan,
            ),
            servers=servers.decide(
                parse(copied(self.job)),
                self.plan,
                self.servers_by_load,
                pods=bool(self.pods),
                move=self.servers_to_move,
            ),
            failed_nodes=self.failed_nodes,
            to_leave=self.to_leave,
            exclude_for=self.exclude_for,
            rebalances=self.rebalances,
            failure_rules=self.failure_rules,
            needs_first=self.needs_first,
        )

    def reconcile(self) -> list[a.Action]:
        job = parse(copied(self.job))
        return reconcile(job, self.observed(), self.now, self.settings)

    def step(self) -> list[a.Action]:
        actions = self.reconcile()
        self.apply(actions)
        return actions

    def settle(self) -> list[a.Action]:
        """Until there is nothing more to do but wait; all that was done."""
        done: list[a.Action] = []
        for _ in range(20):
            actions = active(self.step())
            if not actions:
                return done
            done += actions
        raise AssertionError(f"it does not come to rest: {self.reconcile()}")

    def apply(self, actions: Sequence[a.Action], until: a.Stage = a.Stage.TELL) -> None:
        """Apply actions as the executor does, killed after the stage `until`."""
        for action in sorted(actions, key=lambda x: x.stage):
            if action.stage <= until:
                self._apply(action)
        if until is a.Stage.TELL:
            self.resize = None

    def _apply(self, action: a.Action) -> None:
        match action:
            case a.PatchStatus(status):
                self.job["status"] = merged(self.status, status)
            case a.CreatePodGroup(body):
                assert self.podgroup is None
                self.podgroup = self._made(body)
            case a.PatchPodGroup(_, body):
                self.podgroup = merged(self.podgroup, body)
            case a.DeletePodGroup():
                self.podgroup = None
            case a.CreateAutoscaler(body):
                assert self.autoscaler is None
                self.autoscaler = self._made(body)
            case a.PatchAutoscaler(_, body):
                self.autoscaler = merged(self.autoscaler, body)
            case a.DeleteAutoscaler():
                self.autoscaler = None
            case a.CreatePod(body):
                name = body["metadata"]["name"]
                assert name not in self.pods, f"{name} exists"
                self.pods[name] = self._made(body) | {"status": {"phase": "Pending"}}
            case a.PatchPod(name, body):
                self.pods[name] = merged(self.pods[name], body)
            case a.ResizePod(name, uid, body):
                assert self.pods[name]["metadata"]["uid"] == uid
                self.pods[name] = merged(self.pods[name], body)
            case a.DeletePod(name, uid, grace):
                assert self.pods[name]["metadata"]["uid"] == uid
                bound = self.pods[name]["spec"].get("nodeName")
                if not bound or (grace is not None and not grace):
                    del self.pods[name]
                else:
                    self.leaving(name)
            case a.CreateService(body):
                name = body["metadata"]["name"]
                assert name not in self.services
                self.services[name] = self._made(body)
            case a.CreateSecret(body):
                self.secrets[body["metadata"]["name"]] = body
            case a.DeleteService(name):
                del self.services[name]

    def _made(self, body: Object) -> Object:
        made = copied(body)
        self._uids += 1
        made["metadata"]["uid"] = f"uid-{self._uids}"
        made["metadata"]["creationTimestamp"] = moment.timestamp(self.now)
        return made

    # Scheduler, kubelet and users

    def seed(self, index: int, state: str, *, protected: bool = False) -> None:
        """A pod in any state, as an earlier life may have left it."""
        template = PodTemplate(parse(copied(self.job)), elastic(), self.settings)
        body = template.pod(index, protected=protected)
        name = body["metadata"]["name"]
        self.pods[name] = self._made(body) | {"status": {"phase": "Pending"}}
        if state != "pending":
            self.run(name)
        if state in ("leaving", "evicting"):
            self.leaving(name, evicted=state == "evicting")
        if state in ("failed", "evicted"):
            self.fail(name, evicted=state == "evicted")
        if state == "succeeded":
            self.finish(name)

    def seed_service(self, index: int) -> None:
        template = ServiceTemplate(parse(copied(self.job)), elastic())
        body = self._made(template.service(index))
        self.services[body["metadata"]["name"]] = body

    def seed_podgroup(self, spec: Object) -> None:
        self.podgroup = self._made({"metadata": {"name": "a"}, "spec": spec})

    def seed_autoscaler(self) -> None:
        self.autoscaler = self._made({"metadata": {"name": "a"}, "spec": {"maxReplicas": 1}})

    @staticmethod
    def resize_to(old: int, new: int) -> Resize:
        return Resize(old, new, "GrewIntoIdle", "room")

    def grow(self, size: int) -> None:
        self.resize = self.resize_to(self.status["elastic"]["desired"], size)
        self.settle()

    def run(self, name: str) -> None:
        pod = self.pods[name]
        pod["spec"]["nodeName"] = "node-0"
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": "pytorch", "restartCount": 0, "state": {"running": {}}}],
        }

    def run_all(self) -> None:
        for name in self.pods:
            self.run(name)
        self.settle()

    def finish(self, name: str) -> None:
        self._end(name, "Succeeded", 0)

    def fail(self, name: str, code: int = 1, *, evicted: bool = False) -> None:
        self._end(name, "Failed", code)
        if evicted:
            self._disrupt(name)

    def _end(self, name: str, phase: str, code: int) -> None:
        ended = {"exitCode": code, "finishedAt": moment.timestamp(self.now)}
        self.pods[name]["status"] |= {
            "phase": phase,
            "containerStatuses": [
                {"name": "pytorch", "restartCount": 0, "state": {"terminated": ended}}
            ],
        }

    def run_out_of_memory(self, name: str, *, in_place: bool = False) -> None:
        """Run a pod out of memory, as a kubelet tells it; `in_place` where it has started the
        container again."""
        ended = {
            "exitCode": 137,
            "reason": "OOMKilled",
            "finishedAt": moment.timestamp(self.now),
        }
        if not in_place:
            self.fail(name, 137)
            self.pods[name]["status"]["containerStatuses"][0]["state"]["terminated"] = ended
            return
        again = {"running": {"startedAt": moment.timestamp(self.now)}}
        found = self.pods[name]["status"]["containerStatuses"][0]
        found |= {"restartCount": found["restartCount"] + 1, "state": again}
        found["lastState"] = {"terminated": ended}

    def lose_a_rank_for_memory(self, name: str) -> None:
        """Have the kernel kill one rank, as agent and coordinator tell; the container goes on."""
        self.killed.add(self.pods[name]["metadata"]["uid"])

    def leaving(self, name: str, *, evicted: bool = False) -> None:
        self.pods[name]["metadata"]["deletionTimestamp"] = moment.timestamp(self.now)
        if evicted:
            self._disrupt(name)

    def _disrupt(self, name: str) -> None:
        self.pods[name]["status"]["conditions"] = [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "lastTransitionTime": moment.timestamp(self.now),
            }
        ]

    def remove(self, name: str) -> None:
        del self.pods[name]

    def lose(self, name: str) -> None:
        """Its node dies, which no kubelet tells."""
        self.lost[self.pods[name]["metadata"]["uid"]] = "node n is not Ready"

    def collect(self) -> bool:
        """Pods on their way out are gone; whether there were any."""
        gone = [n for n, pod in self.pods.items() if pod["metadata"].get("deletionTimestamp")]
        for name in gone:
            del self.pods[name]
        return bool(gone)

    # What can be seen

    @property
    def status(self) -> Object:
        found: Object = self.job.get("status") or {}
        return found

    @property
    def ended(self) -> bool:
        conditions = self.status.get("conditions") or ()
        return any(c["type"] in ("Succeeded", "Failed") for c in conditions)

    @property
    def state(self) -> str:
        return str(self.status["conditions"][-1]["type"])

    def events(self, actions: Sequence[a.Action]) -> dict[str, str]:
        """Messages by reason."""
        return {x.reason: x.message for x in actions if isinstance(x, a.EmitEvent)}

    def live(self) -> list[str]:
        return [
            name
            for name, pod in self.pods.items()
            if not pod["metadata"].get("deletionTimestamp")
            and pod["status"]["phase"] in ("Pending", "Running")
        ]

    def protected(self, name: str) -> bool:
        return is_protected(self.pods[name])

    def env(self, name: str) -> list[Object]:
        env: list[Object] = self.pods[name]["spec"]["containers"][0]["env"]
        return env

    @staticmethod
    def created(actions: Sequence[a.Action]) -> list[str]:
        return [x.body["metadata"]["name"] for x in actions if isinstance(x, a.CreatePod)]


def begin(low: int | None = None, high: int = 4, **spec: Any) -> World:
    """A job at rest with all its first pods; elastic from `low` to `high` if given."""
    policy = spec.pop("policy", {})
    elastic = None if low is None else {"min": low, "max": high, **policy}
    world = World(job_object(elastic=elastic, **spec), NOW)
    world.settle()
    return world


def running(low: int | None = None, high: int = 4, **spec: Any) -> World:
    world = begin(low, high, **spec)
    world.run_all()
    assert world.state == "Running"
    return world


def resize(old: int, new: int, *remove: str) -> Resize:
    reason = "GrewIntoIdle" if new > old else "ShrunkForMinimum"
    return Resize(old, new, reason, f"from {old} to {new}", frozenset(remove))


def values(world: World, pod: str) -> dict[str, str]:
    return {v["name"]: v["value"] for v in world.env(pod) if "value" in v}


def conditions(world: World) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in world.status["conditions"]]
