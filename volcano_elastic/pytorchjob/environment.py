"""The environment that tells torchrun and the trainer who they are; frozen at a pod's creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from volcano_elastic.api.pytorchjob import BACKEND, TORCHRUN, PyTorchJob, ReplicaSpec
from volcano_elastic.api.role import Role
from volcano_elastic.pytorchjob import failure_rule, injection, rendezvous
from volcano_elastic.pytorchjob.failure_rule import FailureRule
from volcano_elastic.pytorchjob.label import replica_name, token_secret_name

# Our backend's rounds go on through any number of membership changes.
_OUR_MAX_RESTARTS = 100

# With torchrun's own, 0, the survivors of a lost peer end their containers, worker 0's and with it
# the store at which all meet. The count begins anew with each container.
_TORCHRUN_MAX_RESTARTS = 10
_MAX_RESTARTS = {BACKEND: _OUR_MAX_RESTARTS, TORCHRUN: _TORCHRUN_MAX_RESTARTS}

_NO_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Has each round's rank 0 serve a store of its own: the one that torchrun shares between rounds
goes with the agent that was rank 0 first, and the others are not told of another."""

_DEFAULT_GRACE = 30
"""Seconds; Kubernetes' default of terminationGracePeriodSeconds."""

TOKEN_KEY = "token"
"""In the Secret's data."""

_STRAGGLERS = "VOLCANO_ELASTIC_STRAGGLERS"
_EXCLUDE = "VOLCANO_ELASTIC_EXCLUDE_SECONDS"
_EXCLUDE_FOR = timedelta(seconds=1800)
"""The trainer's default."""
_SERVERS = "VOLCANO_ELASTIC_PARAMETER_SERVERS"
_INDEX = "VOLCANO_ELASTIC_POD_INDEX"

Variable = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Settings of a queue's policy and of the operator for the trainer. Whatever is as by default
    is left to the job's own environment."""

    rebalances: bool = False
    """Slow ranks take fewer samples."""
    exclude_for: timedelta = _EXCLUDE_FOR
    """How long nodes whose hardware failed are left out of rounds."""
    failure_rules: tuple[FailureRule, ...] = ()

    def variables(self) -> list[Variable]:
        found: dict[str, str] = {}
        if self.rebalances:
            found[_STRAGGLERS] = "Rebalance"
        if self.exclude_for != _EXCLUDE_FOR:
            found[_EXCLUDE] = f"{self.exclude_for.total_seconds():.0f}"
        if self.failure_rules:
            found[failure_rule.VARIABLE] = "\n".join(map(str, self.failure_rules))
        return _variables(found)


DEFAULTS = TrainerSettings()


def shared(
    job: PyTorchJob,
    *,
    trainer: TrainerSettings = DEFAULTS,
    running: Mapping[int, str] | None = None,
) -> list[Variable]:
    """Return the variables that pods of the job which are made at one time have alike.

    Args:
        trainer: what a trainer of ours is told.
        running: as in `rendezvous.peers`.
    """
    values = {rendezvous.FIRST: "1", "PET_NPROC_PER_NODE": job.nproc_per_node}
    if job.leader is not None:
        values |= _address(job, job.leader)
    if job.servers is not None:
        values[_SERVERS] = _servers(job, job.servers)
    ours: list[Variable] = [token(job)] if has_token(job) else []
    if job.elastic is None:
        values["PET_NNODES"] = str(_nodes(job))
        more = [_pod_address(), *ours] if job.servers is not None else []
        return [*_variables(values), *more]
    values |= _elastic(job)
    if (peers := rendezvous.peers(job, running or {})) is not None:
        values["VOLCANO_ELASTIC_PEERS"] = peers
    if job.elastic.rdzv_backend == BACKEND:
        # Counting GPUs, torchrun must not initialise CUDA: its workers are forked.
        values["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        ours += trainer.variables()
    values["VOLCANO_ELASTIC_JOB"] = job.key
    commits = (job.status.get("elastic") or {}).get("commits") or {}
    if commits:  # else a folder that isn't mounted, and all nodes lost: a job that begins anew
        told = (f"{place}={step}" for place, step in sorted(commits.items()))
        values["VOLCANO_ELASTIC_COMMITS"] = " ".join(told)
    values["VOLCANO_ELASTIC_NODE_UNIT"] = str(job.elastic.node_unit)
    return [
        *_variables(values),
        *pod_identity(),
        *ours,
    ]


def pod_identity() -> list[Variable]:
    """Return the variables that the kubelet fills in with the pod's uid, address and node."""
    return [
        _downward("VOLCANO_ELASTIC_POD_UID", "metadata.uid"),
        _pod_address(),
        _downward("VOLCANO_ELASTIC_NODE_NAME", "spec.nodeName"),
    ]


def _pod_address() -> Variable:
    return _downward("VOLCANO_ELASTIC_POD_IP", "status.podIP")


def _servers(job: PyTorchJob, servers: ReplicaSpec) -> str:
    """Return where the job's parameter servers are, in the order of their indexes."""
    names = (replica_name(job.name, servers.role, index) for index in range(servers.replicas))
    return ",".join(f"{name}:{servers.port}" for name in names)


def has_token(job: PyTorchJob) -> bool:
    """Return whether its pods serve others at a port: a coordinator, or parameter servers."""
    ours = job.elastic is not None and job.elastic.rdzv_backend == BACKEND
    return ours or job.servers is not None


def token(job: PyTorchJob) -> Variable:
    """Return the variable with the token by which the job's pods know one another."""
    key = {"name": token_secret_name(job.name, job.uid), "key": TOKEN_KEY}
    return {"name": "VOLCANO_ELASTIC_TOKEN", "valueFrom": {"secretKeyRef": key}}


def own(job: PyTorchJob, role: Role, index: int) -> list[Variable]:
    """Return what tells a pod which of the job's pods it is; in place of what all have alike, where
    that has the same name."""
    values: dict[str, str] = {}
    if job.leader is not None and role.trains:
        rank = str(_first_rank(job, role) + index)
        values |= {"RANK": rank, "PET_NODE_RANK": rank}
    if job.elastic is not None:
        values |= rendezvous.own_environment(job, role, index)
        values[_INDEX] = str(index)
        if job.elastic.injected:
            values[injection.INSTEAD] = _instead(job, role, index)
        values["VOLCANO_ELASTIC_GRACE_SECONDS"] = str(_grace(job, role))
    elif role.serves:
        values[_INDEX] = str(index)
    return _variables(values)


def _instead(job: PyTorchJob, role: Role, index: int) -> str:
    """Return what a pod goes by whose image does not suit the trainer."""
    plain = injection.without(job)
    return injection.difference(
        _elastic(job) | rendezvous.own_environment(job, role, index),
        _elastic(plain) | rendezvous.own_environment(plain, role, index),
    )


def _grace(job: PyTorchJob, role: Role) -> int:
    """Return the seconds from SIGTERM to SIGKILL of the role's pods, at least 1."""
    spec = job.replicas[role.name].template.get("spec") or {}
    given = spec.get("terminationGracePeriodSeconds")
    default = _DEFAULT_GRACE if role.grace is None else role.grace
    return default if given is None else max(1, int(given))


def _nodes(job: PyTorchJob) -> int:
    return sum(spec.replicas for spec in job.replicas.values() if spec.role.trains)


def _first_rank(job: PyTorchJob, role: Role) -> int:
    """Return the rank of the role's pod 0: the leader has 0, the elastic role the last ones, which
    come and go."""
    if role.leads:
        return 0
    before = [s for s in job.replicas.values() if s.role.trains and not s.role.elastic]
    if not role.elastic:
        before = [s for s in before if s.role.leads or s.role.priority > role.priority]
    return sum(spec.replicas for spec in before)


def _address(job: PyTorchJob, leader: ReplicaSpec) -> dict[str, str]:
    address = replica_name(job.name, leader.role, 0)
    port = str(leader.port)
    nodes = _nodes(job)
    processes = int(job.nproc_per_node) if job.nproc_per_node.isdigit() else 1
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "WORLD_SIZE": str(nodes * processes),
    }


def _elastic(job: PyTorchJob) -> dict[str, str]:
    policy = job.elastic
    assert policy is not None
    low, high = rendezvous.nodes(job)
    values = {"PET_NNODES": f"{low}:{high}"} | rendezvous.of(job).environment()
    max_restarts = policy.max_restarts
    if max_restarts is None:
        max_restarts = _MAX_RESTARTS.get(policy.rdzv_backend)
    if max_restarts is not None:
        values["PET_MAX_RESTARTS"] = str(max_restarts)
    if policy.rdzv_backend == TORCHRUN:
        values[_NO_SHARED_STORE] = "1"
    return values


def _variables(values: dict[str, str]) -> list[Variable]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _downward(name: str, path: str) -> Variable:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
