"""A typed view of the PyTorchJob custom resource, with its defaults.

Pod templates stay plain dicts, so that fields newer than us survive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from volcano_elastic.api import (
    condition,
    moment,
    pytorchjob_validation,
    role,
    role_resources,
    server_count,
)
from volcano_elastic.api.problem import Problem, listed
from volcano_elastic.api.pytorchjob_defaults import bounds, defaulted, scaler
from volcano_elastic.api.pytorchjob_shape import CLEAN_POD_POLICIES
from volcano_elastic.api.pytorchjob_shape import CONTROLLER as CONTROLLER
from volcano_elastic.api.pytorchjob_shape import INJECT_ANNOTATION as INJECT_ANNOTATION
from volcano_elastic.api.pytorchjob_shape import (
    MOST_MEMORY_ANNOTATION as MOST_MEMORY_ANNOTATION,
)
from volcano_elastic.api.pytorchjob_shape import (
    SHARED_MEMORY_ANNOTATION as SHARED_MEMORY_ANNOTATION,
)
from volcano_elastic.api.pytorchjob_validation import BACKEND as BACKEND
from volcano_elastic.api.pytorchjob_validation import CONTAINER as CONTAINER
from volcano_elastic.api.pytorchjob_validation import QUEUE_ANNOTATION as QUEUE_ANNOTATION
from volcano_elastic.api.pytorchjob_validation import TORCHRUN as TORCHRUN
from volcano_elastic.api.pytorchjob_validation import injected, validate
from volcano_elastic.api.role import Role

PORT_NAME, PORT = "pytorchjob-port", 23456
SCHEDULER = "volcano"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_LONG_AGO = datetime.fromtimestamp(0, UTC)
# Nobody waits longer, and datetime can't count much further.
_CENTURY = timedelta(days=36525)


class InvalidJob(ValueError):
    """A job that cannot be carried out; says which fields, and what would be right."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(listed(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class ElasticPolicy:
    min: int
    max: int
    """Sizes in pods of the elastic role; those of other roles come on top."""
    node_unit: int = 1
    cooldown: timedelta | None = None
    """None: as its queue's policy says."""
    scaler: str = "volcano"
    coordinator: str = "worker0"
    rdzv_backend: str = TORCHRUN
    injected: bool = False
    """Its pods get the trainer beside their image, and meet by torchrun's own where that does not
    suit."""
    rdzv_host: str | None = None
    rdzv_port: int | None = None
    rdzv_id: str | None = None
    rdzv_conf: tuple[tuple[str, str], ...] = ()
    rdzv_conf_is_whole: bool = False
    """It is what running pods know, to which no settings of ours are added."""
    max_restarts: int | None = None
    standalone: bool = False
    metrics: tuple[Mapping[str, Any], ...] = ()
    """autoscaling/v2 MetricSpecs, as they are."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    role: Role
    replicas: int
    """Number that there should be; of parameter servers, by the status where that says so."""
    restart_policy: str
    template: Mapping[str, Any]
    asked: int = 0
    """Number that the spec says."""

    @property
    def pod_spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.template["spec"]
        return spec

    @property
    def container(self) -> Mapping[str, Any]:
        """The one that trains."""
        containers: list[Mapping[str, Any]] = self.pod_spec["containers"]
        return next(c for c in containers if c["name"] == CONTAINER)

    @property
    def ports(self) -> list[dict[str, Any]]:
        """Those of the training container, the default one added if it is missing."""
        ports = [dict(port) for port in self.container.get("ports") or ()]
        if not any(port.get("name") == PORT_NAME for port in ports):
            ports.append({"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"})
        return ports

    @property
    def port(self) -> int:
        """The port at which rank 0 or the coordinator listens."""
        return next(int(p["containerPort"]) for p in self.ports if p.get("name") == PORT_NAME)


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    min_available: int | None = None
    queue: str = "default"
    """By the job's annotation where the policy names none."""
    min_resources: Mapping[str, Any] | None = None
    priority_class: str | None = None


@dataclass(frozen=True, slots=True)
class RunPolicy:
    clean_pod_policy: str = "None"
    ttl: timedelta | None = None
    active_deadline: timedelta | None = None
    backoff_limit: int | None = None
    suspend: bool = False
    managed_by: str = CONTROLLER
    scheduling: SchedulingPolicy = SchedulingPolicy()


@dataclass(frozen=True, slots=True)
class PyTorchJob:
    name: str
    namespace: str
    uid: str
    created: datetime
    deleting: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    managed_fields: Sequence[Mapping[str, Any]]
    """metadata.managedFields: who wrote what, when."""
    replicas: Mapping[str, ReplicaSpec]
    """By name of the role, in the order in which roles are placed."""
    elastic: ElasticPolicy | None
    nproc_per_node: str
    run_policy: RunPolicy
    status: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def leader(self) -> ReplicaSpec | None:
        """The role that leads; None if the job has none, so that pod 0 of the elastic role does."""
        return next((spec for spec in self.replicas.values() if spec.role.leads), None)

    @property
    def sized(self) -> ReplicaSpec | None:
        """The role that elasticPolicy sizes, which every elastic job has."""
        return next((spec for spec in self.replicas.values() if spec.role.elastic), None)

    @property
    def servers(self) -> ReplicaSpec | None:
        """The role of its parameter servers; None if it has none."""
        return next((spec for spec in self.replicas.values() if spec.role.serves), None)

    @property
    def fixed_pods(self) -> int:
        """Pods beside those that its size counts."""
        return sum(spec.replicas for spec in self.replicas.values() if not spec.role.elastic)

    @property
    def fixed_nodes(self) -> int:
        """Those of `fixed_pods` that torchrun counts as nodes."""
        fixed = (spec for spec in self.replicas.values() if not spec.role.elastic)
        return sum(spec.replicas for spec in fixed if spec.role.trains)

    @property
    def min_members(self) -> int:
        """Pods without which it cannot run: the minimum of the elastic role, and all others."""
        if self.elastic is None:
            return sum(spec.replicas for spec in self.replicas.values())
        return self.elastic.min + self.fixed_pods

    @property
    def least_size(self) -> int:
        """Below which an elastic job is never sized: its min, or what an explicit minAvailable
        asks for, since Volcano places nobody of a gang that lacks members."""
        policy, explicit = self.elastic, self.run_policy.scheduling.min_available
        assert policy is not None
        needed = (explicit or 0) - self.fixed_pods
        whole_units = -(-needed // policy.node_unit) * policy.node_unit
        return min(max(policy.min, whole_units), policy.max)

    @property
    def queue(self) -> str:
        return self.run_policy.scheduling.queue

    @property
    def uses_volcano(self) -> bool:
        """A template that names another scheduler gets no PodGroup."""
        return all(
            spec.pod_spec.get("schedulerName") in (None, "", SCHEDULER)
            for spec in self.replicas.values()
        )

    @property
    def kueue(self) -> bool:
        """True if Kueue admitted it at its replicas, and suspends it if it ever has another
        size."""
        return KUEUE_LABEL in self.labels

    @property
    def ours(self) -> bool:
        return self.run_policy.managed_by == CONTROLLER

    @property
    def conditions(self) -> list[condition.Condition]:
        return list(self.status.get("conditions") or ())

    @property
    def finished(self) -> bool:
        return condition.finished(self.conditions)

    @property
    def started(self) -> datetime | None:
        return moment.parse_optional(self.status.get("startTime"))

    @property
    def completed(self) -> datetime | None:
        """The time at which the job finished; None if it has not, or no field says when. Kubeflow's
        operator gives no completionTime to a job that an exit code ended, only the condition."""
        ends = [c.get("lastTransitionTime") for c in self.conditions if condition.finished([c])]
        times = map(moment.parse_optional, [self.status.get("completionTime"), *ends])
        return next((time for time in times if time is not None), None)

    @property
    def desired(self) -> int | None:
        """Durable size; None before it was first written, or after it was lost."""
        found = (self.status.get("elastic") or {}).get("desired")
        return None if found is None else int(found)

    @property
    def last_scale(self) -> datetime | None:
        return moment.parse_optional((self.status.get("elastic") or {}).get("lastScaleTime"))

    @property
    def counted_evictions(self) -> frozenset[str]:
        """Uids of evicted pods that `desired` counts no more; some may be gone since."""
        return frozenset((self.status.get("elastic") or {}).get("evicted") or ())


def outline(obj: Mapping[str, Any]) -> PyTorchJob:
    """Return as much as can be said of a job that may be wrong in any field of its spec: no
    replicas, and the defaults of all the rest. `obj` has metadata as the API server keeps it."""
    meta = obj["metadata"]
    return PyTorchJob(
        name=meta["name"],
        namespace=meta.get("namespace", "default"),
        uid=meta.get("uid", ""),
        created=moment.parse_optional(meta.get("creationTimestamp")) or _LONG_AGO,
        deleting=bool(meta.get("deletionTimestamp")),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        managed_fields=meta.get("managedFields") or (),
        replicas={},
        elastic=None,
        nproc_per_node="auto",
        run_policy=RunPolicy(),
        status=obj.get("status") or {},
    )


def _replicas(known: Role, asked: int, status: Mapping[str, Any]) -> int:
    counts = server_count.in_force(status, asked) if known.serves else None
    return asked if counts is None else counts.replicas


def parse(obj: Mapping[str, Any]) -> PyTorchJob:
    """The job in `obj` with every default filled in, and in its templates the resources that its
    status has in force.

    Raises:
        InvalidJob: some field makes no sense.
    """
    obj = defaulted(obj)
    problems = validate(obj)
    if problems:
        raise InvalidJob(problems)
    spec = obj["spec"]
    elastic = spec.get("elasticPolicy")
    in_force = role_resources.in_force(obj.get("status") or {})
    replicas = {
        known.name: ReplicaSpec(
            role=known,
            replicas=_replicas(known, replica["replicas"], obj.get("status") or {}),
            asked=replica["replicas"],
            restart_policy=replica["restartPolicy"],
            template=role_resources.with_resources(replica["template"], in_force[known.name])
            if known.name in in_force
            else replica["template"],
        )
        for known in role.known()
        if (replica := spec["pytorchReplicaSpecs"].get(known.name)) is not None
    }
    policy = None
    if elastic is not None:
        policy = _elastic_policy(elastic, replicas[role.elastic().name].replicas)
        if injected(obj["metadata"], elastic):
            policy = replace(policy, rdzv_backend=BACKEND, injected=True)
    # "auto" is not stored: it would clash with an elasticPolicy.nProcPerNode that comes later.
    nproc = spec.get("nprocPerNode") or (elastic or {}).get("nProcPerNode") or "auto"
    return replace(
        outline(obj),
        replicas=replicas,
        elastic=policy,
        nproc_per_node=str(nproc),
        run_policy=_run_policy(spec["runPolicy"], pytorchjob_validation.queue(obj)),
    )


def time_to_live(obj: Mapping[str, Any]) -> timedelta | None:
    """After it finished, of a job that may be wrong in any field."""
    found = pytorchjob_validation.run_policy(obj).get("ttlSecondsAfterFinished")
    return _seconds(found) if isinstance(found, int) and found >= 0 else None


def _elastic_policy(raw: Mapping[str, Any], replicas: int) -> ElasticPolicy:
    low, high = bounds(raw, replicas)
    cooldown = raw.get("cooldownSeconds")
    conf = raw.get("rdzvConf") or ()
    return ElasticPolicy(
        min=low,
        max=high,
        node_unit=raw["nodeUnit"],
        cooldown=None if cooldown is None else timedelta(seconds=cooldown),
        scaler=scaler(raw),
        coordinator=raw["coordinator"],
        rdzv_backend=raw.get("rdzvBackend") or TORCHRUN,
        rdzv_host=raw.get("rdzvHost") or None,
        rdzv_port=raw.get("rdzvPort"),
        rdzv_id=raw.get("rdzvId") or None,
        rdzv_conf=tuple((pair["key"], pair["value"]) for pair in conf),
        max_restarts=raw.get("maxRestarts"),
        standalone=bool(raw.get("standalone")),
        metrics=tuple(raw.get("metrics") or ()),
    )


def _run_policy(raw: Mapping[str, Any], queue: str) -> RunPolicy:
    scheduling, clean = raw.get("schedulingPolicy") or {}, raw["cleanPodPolicy"]
    return RunPolicy(
        # Kubeflow deletes all where it doesn't know the word.
        clean_pod_policy=clean if clean in CLEAN_POD_POLICIES else "All",
        ttl=_seconds(raw.get("ttlSecondsAfterFinished")),
        active_deadline=_seconds(raw.get("activeDeadlineSeconds")),
        backoff_limit=raw.get("backoffLimit"),
        suspend=bool(raw.get("suspend")),
        managed_by=raw.get("managedBy") or CONTROLLER,
        scheduling=SchedulingPolicy(
            min_available=scheduling.get("minAvailable"),
            queue=queue,
            min_resources=scheduling.get("minResources") or None,
            priority_class=scheduling.get("priorityClass") or None,
        ),
    )


def _seconds(raw: Any) -> timedelta | None:
    return None if raw is None else min(_CENTURY, timedelta(seconds=min(raw, 10**10)))
