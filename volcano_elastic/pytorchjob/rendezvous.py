"""The address and backend by which the pods of an elastic job meet.

A pod keeps the environment it was made with, and one that is told to meet elsewhere than those that
run would train by itself. So what the running pods know stays in force until none of them is left:
after the job was suspended, at the latest. Admission refuses such edits; what comes past it is said
here, and not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from volcano_elastic.api.problem import Problem, forbidden, invalid, shown
from volcano_elastic.api.pytorchjob import (
    BACKEND,
    CONTAINER,
    INJECT_ANNOTATION,
    TORCHRUN,
    ElasticPolicy,
    PyTorchJob,
)
from volcano_elastic.api.role import Role, elastic
from volcano_elastic.pytorchjob.injection import INSTEAD
from volcano_elastic.pytorchjob.label import coordinator_name, replica_name

FIRST = "PYTHONUNBUFFERED"
"""The first variable of those that a pod is told, by Kubeflow's operator too. Those before it are
the template's own, which may well name a rendezvous."""
_POLICY = "spec.elasticPolicy"
_PATHS = {
    "backend": f"{_POLICY}.rdzvBackend",
    "host": f"{_POLICY}.rdzvHost",
    "port": f"{_POLICY}.rdzvPort",
    "id": f"{_POLICY}.rdzvId",
    "conf": f"{_POLICY}.rdzvConf",
    "standalone": f"{_POLICY}.standalone",
    "coordinator": f"{_POLICY}.coordinator",
    "node_unit": f"{_POLICY}.nodeUnit",
    "nproc_per_node": "spec.nprocPerNode",
    "injected": f"metadata.annotations[{INJECT_ANNOTATION}]",
}
# What else changes with a field says nothing that its author did.
_FOLLOW = {
    "backend": {"host", "id", "conf", "coordinator", "node_unit", "nproc_per_node"},
    "coordinator": {"host"},
    "injected": {"backend", "host", "id", "conf", "coordinator", "node_unit", "nproc_per_node"},
}
_PEERS = 8
SUCCESSION = "VOLCANO_ELASTIC_SUCCESSION"
"""The variable of a template that turns elections off if it is 0."""
_CONF = "PET_RDZV_CONF"
TORCHRUN_CONF: Mapping[str, str] = {
    "keep_alive_interval": "2",
    "keep_alive_max_attempt": "4",
    "last_call_timeout": "5",
    "read_timeout": "30",
}
"""Settings of torchrun's own rendezvous (c10d) that a job doesn't name. By torchrun's, 5, 3, 30 and
60, it knows of a lost agent after 15 s, and begins a round without it 30 s later."""
_IS_HOST = "is_host"
"""Its setting that says who serves the store at which all meet. Else agents guess by the host's
name, which under `hostNetwork` is the node's."""
_UNTIL = "while the job is not suspended: its pods keep what they were made with"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    backend: str
    host: str
    port: int
    id: str
    """Empty: torchrun's own."""
    conf: str
    standalone: bool
    coordinator: str = "worker0"
    node_unit: int = 1
    nproc_per_node: str = ""
    """The last three are asked for by our own backend alone."""
    injected: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables that torchrun and the trainer read; `_read` reads them back."""
        found = {
            "PET_RDZV_BACKEND": self.backend,
            "PET_RDZV_ENDPOINT": f"{self.host}:{self.port}",
        }
        if self.id:
            found["PET_RDZV_ID"] = self.id
        if self.conf:
            found[_CONF] = self.conf
        if self.standalone:
            # Not "", as Kubeflow has it: torchrun reads it with int().
            found["PET_STANDALONE"] = "1"
        if self.backend == BACKEND:
            found["VOLCANO_ELASTIC_COORDINATOR"] = self.coordinator
        return found


def peers(job: PyTorchJob, running: Mapping[int, str]) -> str | None:
    """Return the names of the pods whose agents tell a newcomer where the coordinator is, once that
    has another host than the first: those that run, of as many nodes as can be, and leave last;
    then those that will. None where it has no other.

    Args:
        running: nodes of the elastic role's pods that run and stay, by index.
    """
    policy, sized = job.elastic, job.sized
    if policy is None or sized is None or not hosted(job) or policy.coordinator == "dedicated":
        return None
    known = [*_by_turns(running), *(one for one in range(policy.max) if one not in running)]
    return ",".join(replica_name(job.name, sized.role, one) for one in sorted(known[:_PEERS]))


def _by_turns(running: Mapping[int, str]) -> list[int]:
    """Return the indexes in an order in which each node has its turn before any has another."""
    turns: dict[str, int] = {}
    found = []
    for index, node in sorted(running.items()):
        turns[node] = turns.get(node, -1) + 1
        found.append((turns[node], index))
    return [index for _, index in sorted(found)]


def can_elect(job: PyTorchJob) -> bool:
    """Return whether its workers may go on without worker 0: they elect another host of the
    coordinator, or that has a pod of its own."""
    policy, sized = job.elastic, job.sized
    if policy is None or sized is None or not hosted(job):
        return False
    if policy.coordinator == "dedicated":
        return True
    told = {one.get("name"): one.get("value") for one in sized.container.get("env") or ()}
    return told.get(SUCCESSION) != "0"


def of(job: PyTorchJob) -> Rendezvous:
    """Return where the pods of an elastic job are to meet."""
    policy, sized = job.elastic, job.sized
    assert policy is not None and sized is not None
    found = Rendezvous(
        backend=policy.rdzv_backend,
        host=policy.rdzv_host or replica_name(job.name, sized.role, 0),
        port=policy.rdzv_port or sized.port,
        id=policy.rdzv_id or "",
        conf=_text(_conf(job, policy)),
        standalone=policy.standalone,
    )
    if policy.rdzv_backend != BACKEND:
        return found
    return replace(
        found,
        host=policy.rdzv_host or _own_host(job, policy.coordinator),
        id=found.id or job.uid,
        coordinator=policy.coordinator,
        node_unit=policy.node_unit,
        nproc_per_node=job.nproc_per_node,
        injected=policy.injected,
    )


def own_environment(job: PyTorchJob, role: Role, index: int) -> dict[str, str]:
    """Return the variables of one pod: pod 0 of the elastic role serves torchrun's own store, as it
    leaves last."""
    policy, host = job.elastic, store_host(job)
    if policy is None or host is None:
        return {}
    serves = replica_name(job.name, role, index) == host
    return {_CONF: _text(_conf(job, policy) | {_IS_HOST: str(int(serves))})}


def store_host(job: PyTorchJob) -> str | None:
    """Return the name of the pod that serves torchrun's own store; None where none of the job's
    does."""
    policy = job.elastic
    if policy is None or policy.rdzv_backend != TORCHRUN or not _meets_in_own_pod(job, policy):
        return None
    return _own_host(job, "worker0")


def _conf(job: PyTorchJob, policy: ElasticPolicy) -> dict[str, str]:
    own = dict(policy.rdzv_conf)
    if policy.rdzv_backend != TORCHRUN:
        return own
    if _meets_in_own_pod(job, policy):
        own.pop(_IS_HOST, None)
    if policy.rdzv_conf_is_whole:
        return own
    return own | {key: value for key, value in TORCHRUN_CONF.items() if key not in own}


def _asked_conf(job: PyTorchJob, policy: ElasticPolicy) -> dict[str, str]:
    """Return the settings that the job itself names."""
    return _conf(job, replace(policy, rdzv_conf_is_whole=True))


def _meets_in_own_pod(job: PyTorchJob, policy: ElasticPolicy) -> bool:
    return policy.rdzv_host in (None, _own_host(job, "worker0"))


def _text(conf: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in conf.items())


def hosted(job: PyTorchJob) -> bool:
    """Return whether its pods meet at a coordinator of ours in one of its own pods, which the
    operator asks, and tells the range."""
    policy = job.elastic
    if policy is None or policy.rdzv_backend != BACKEND:
        return False
    return policy.rdzv_host in (None, _own_host(job, policy.coordinator))


def nodes(job: PyTorchJob) -> tuple[int, int]:
    """Return the fewest and most agents of a round: those of fixed roles that train count too."""
    policy = job.elastic
    assert policy is not None
    return policy.min + job.fixed_nodes, policy.max + job.fixed_nodes


def workers(job: PyTorchJob, nodes: int) -> int:
    """Return how many of a round's agents are in pods that the job's size counts."""
    return nodes - job.fixed_nodes


@dataclass(frozen=True, slots=True)
class InForce:
    job: PyTorchJob
    """The job as its running pods know it."""
    differs: tuple[str, ...] = ()
    """Fields of the job's spec that are not carried out for it, one sentence each."""
    torn: bool = False
    """Its pods were made when it was of a fixed size and it is elastic now, or the other way
    around: there is no going on with both."""


def in_force(job: PyTorchJob, pod: Mapping[str, Any] | None) -> InForce:
    """`pod` is the one of the running pods that the others go by; None if none is there to stay."""
    variables = _variables_of(pod)
    if "PET_NNODES" not in variables:
        return InForce(job)
    policy = job.elastic
    if (policy is not None) != ("PET_RDZV_BACKEND" in variables):
        return InForce(job, (f"{_POLICY}: must not be added or removed {_UNTIL}",), torn=True)
    if policy is None:
        return InForce(job)
    asked, found = of(job), _read(variables)
    if found.backend == TORCHRUN and found.host == _own_host(job, "worker0"):
        told = ((key, value) for key, value in _pairs(found.conf) if key != _IS_HOST)
        found = replace(found, conf=_text(dict(told)))
    differs = [
        f"{_PATHS[name]}: {shown(getattr(asked, name))} is asked for, and "
        f"{shown(getattr(found, name))} is in force"
        for name in _changed(asked, found)
        # Made by an operator that set less of it: agents of a job go by the same.
        if name != "conf" or dict(_pairs(found.conf)) != _asked_conf(job, policy)
    ]
    if asked != found:
        own = _own_host(job, found.coordinator)
        policy = replace(
            policy,
            rdzv_backend=found.backend,
            injected=found.injected,
            rdzv_host=None if found.host == own else found.host,
            rdzv_port=found.port,
            rdzv_id=found.id or None,
            rdzv_conf=_pairs(found.conf),
            rdzv_conf_is_whole=True,
            standalone=found.standalone,
            coordinator=found.coordinator,
        )
        job = replace(job, elastic=policy)
        if found.backend == BACKEND:
            policy = replace(policy, node_unit=found.node_unit)
            job = replace(job, elastic=policy, nproc_per_node=found.nproc_per_node)
    low, high = _range(variables["PET_NNODES"], job)
    if not hosted(job) and (policy.min < low or policy.max > high):
        # The size follows the job's range all the same: it must not depend on when it was edited.
        differs.append(
            f"{_POLICY}: {policy.min} to {policy.max} {elastic().name}s are asked for, "
            f"and rounds of the running pods have {low} to {high}"
        )
    return InForce(job, tuple(differs))


def problems(old: PyTorchJob, new: PyTorchJob) -> list[Problem]:
    """Return the changes of an edit that would have the job's later pods meet elsewhere."""
    if _free(old, new):
        return []
    if old.elastic is None or new.elastic is None:
        if old.elastic is new.elastic:
            return []
        return [forbidden(_POLICY, f"must not be added or removed {_UNTIL}")]
    before, after = of(old), of(new)
    return [
        invalid(_PATHS[name], getattr(after, name), f"field is immutable {_UNTIL}")
        for name in _changed(before, after)
    ]


def warnings(old: PyTorchJob, new: PyTorchJob) -> list[str]:
    """Return the changes of an edit that running pods won't learn of."""
    if _free(old, new) or old.elastic is None or new.elastic is None or hosted(new):
        return []
    if new.elastic.min >= old.elastic.min and new.elastic.max <= old.elastic.max:
        return []
    return [
        f"{_POLICY}: running pods were told {old.elastic.min} to {old.elastic.max}, and their "
        "rounds stay within that; suspend the job and resume it, and all of them know better"
    ]


def _free(old: PyTorchJob, new: PyTorchJob) -> bool:
    """Return whether no pod that knows the old address stays."""
    return old.run_policy.suspend or new.run_policy.suspend or old.finished


def _changed(one: Rendezvous, other: Rendezvous) -> list[str]:
    names = [field.name for field in fields(Rendezvous)]
    found = [name for name in names if getattr(one, name) != getattr(other, name)]
    following = set().union(*(_FOLLOW.get(name, set()) for name in found))
    return [name for name in found if name not in following]


def _own_host(job: PyTorchJob, coordinator: str) -> str:
    if coordinator == "dedicated":
        return coordinator_name(job)
    assert job.sized is not None
    return replica_name(job.name, job.sized.role, 0)


def _variables_of(pod: Mapping[str, Any] | None) -> dict[str, str]:
    containers = ((pod or {}).get("spec") or {}).get("containers") or ()
    trains: Mapping[str, Any] = next((c for c in containers if c.get("name") == CONTAINER), {})
    env = trains.get("env") or ()
    first = max((i for i, v in enumerate(env) if v["name"] == FIRST), default=len(env))
    return {v["name"]: v.get("value") or "" for v in env[first:]}


def _read(variables: Mapping[str, str]) -> Rendezvous:
    host, _, port = variables.get("PET_RDZV_ENDPOINT", "").rpartition(":")
    found = Rendezvous(
        backend=variables["PET_RDZV_BACKEND"],
        host=host,
        port=int(port) if port.isdecimal() else 0,
        id=variables.get("PET_RDZV_ID", ""),
        conf=variables.get(_CONF, ""),
        standalone="PET_STANDALONE" in variables,
    )
    if found.backend != BACKEND:
        return found
    unit = variables.get("VOLCANO_ELASTIC_NODE_UNIT", "")
    return replace(
        found,
        coordinator=variables.get("VOLCANO_ELASTIC_COORDINATOR", "worker0"),
        node_unit=int(unit) if unit.isdecimal() else 1,
        nproc_per_node=variables.get("PET_NPROC_PER_NODE", "auto"),
        injected=INSTEAD in variables,
    )


def _range(text: str, job: PyTorchJob) -> tuple[int, int]:
    """Workers that PET_NNODES, `min:max` or one number, leaves room for."""
    low, _, high = text.partition(":")
    ends = [workers(job, int(end)) if end.isdecimal() else 1 for end in (low, high or low)]
    return ends[0], ends[1]


def _pairs(conf: str) -> tuple[tuple[str, str], ...]:
    pairs = (pair.partition("=") for pair in conf.split(",") if pair)
    return tuple((key, value) for key, _, value in pairs)
