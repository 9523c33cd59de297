"""A typed view of the ScalePlan custom resource: how many pods of a job there should be, and what
they ask for, by a person's word (manual) or a program's (auto).

Names are those of DLRover's ScalePlan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from volcano_elastic import assets
from volcano_elastic.api import moment
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.field_reader import FieldReader
from volcano_elastic.api.problem import Problem, listed
from volcano_elastic.api.role import elastic, known

TYPE_LABEL = "scale-type"
AUTO, MANUAL = "auto", "manual"
_LONG_AGO = datetime.fromtimestamp(0, UTC)


class Phase(StrEnum):
    PENDING = "Pending"
    """Its job is not there yet, or has another size or other resources still."""
    SCALING = "Scaling"
    """The job has the size, and pods of it come or go."""
    SUCCEEDED = "Succeeded"
    """The job is as the plan says, and stays so while the plan counts."""
    SUPERSEDED = "Superseded"
    """Another plan for the job counts in its place."""
    EXPIRED = "Expired"
    """It counts no more."""
    FAILED = "Failed"
    """It can't be carried out as it is."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """A plan's words on the pods of one role; None: it says nothing."""

    replicas: int | None = None
    cpu: Cpu | None = None
    memory: Bytes | None = None

    @property
    def has_resources(self) -> bool:
        return self.cpu is not None or self.memory is not None


@dataclass(frozen=True, slots=True)
class ScalePlan:
    name: str
    namespace: str
    owner_job: str
    manual: bool = True
    created: datetime = _LONG_AGO
    expires: datetime | None = None
    """When it stops to count; None: when it is deleted, or its job is."""
    roles: Mapping[str, RolePlan] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    """Names of pods that leave, the size with them."""
    migrate: tuple[str, ...] = ()
    """Names of pods that leave, and others are made for them."""
    pods: Mapping[str, str] = field(default_factory=dict)
    """Uids of these by name, as they were when the plan first counted; empty where there was no
    such pod. Who comes in their places later is not meant."""
    named_servers: int | None = None
    """How many of the job's parameter servers, from the first one on, its psHosts name."""
    made: Mapping[str, int] = field(default_factory=dict)
    """How many pods of a role there have to be for those that its createPods name, as pods are
    numbered; it takes none away."""
    not_carried_out: Mapping[str, str] = field(default_factory=dict)
    """Fields that the operator doesn't carry out, and why."""
    job_uid: str = ""
    """Uid of the job that it was first in force for; empty before."""
    over: bool = False
    """Its status says that it has expired."""

    @property
    def job_key(self) -> str:
        return f"{self.namespace}/{self.owner_job}"

    @property
    def pods_known(self) -> bool:
        """Return whether it is known which pods its names mean. Until then it sizes nothing: others
        than those would leave."""
        return all(name in self.pods for name in (*self.remove, *self.migrate))

    def replicas(self, role: str, has: int = 0) -> int | None:
        """Return how many pods of a role the job is to have; None: it doesn't say.

        Args:
            has: how many there are to be so far.
        """
        said = (self.roles.get(role) or RolePlan()).replicas
        if said is None and role == _SERVING.name:
            said = self.named_servers
        if said is None and role in self.made:
            said = max(has, self.made[role])
        return said

    @property
    def kind(self) -> str:
        return MANUAL if self.manual else AUTO


class InvalidPlan(ValueError):
    """A plan that cannot be carried out; says which fields, and what would be right."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(listed(problems))
        self.problems = problems


_SERVING = next(role for role in known() if role.serves)
_CREATED = (elastic(), _SERVING)
"""Roles whose pods may be made by name."""
_LEAST_MEMORY = Bytes(2**20)
"""Less is somebody's 512 that was meant in Mi."""
_NUMBER = re.compile("0|[1-9][0-9]{0,5}")


def counting(plans: Iterable[ScalePlan], job_uid: str) -> ScalePlan | None:
    """Return which of a job's plans counts: a manual one before an auto one, then the newest; None
    if none does."""
    alive = [p for p in plans if not p.over and p.job_uid in ("", job_uid)]
    return max(alive, key=lambda p: (p.manual, p.created, p.name), default=None)


def parse(obj: Mapping[str, Any]) -> ScalePlan:
    """Return the plan in `obj`.

    Raises:
        InvalidPlan: some field makes no sense.
    """
    meta, status = obj.get("metadata") or {}, obj.get("status") or {}
    reader = FieldReader(obj.get("spec"), assets.schema(assets.SCALEPLANS, "spec"))
    created = moment.parse_optional(meta.get("creationTimestamp")) or _LONG_AGO
    expire = reader.optional_seconds("expireSeconds")
    owner = reader.text("ownerJob", "name a PyTorchJob of its namespace")
    scale_type = _scale_type(meta)
    problems = reader.problems
    roles = _roles(reader.part("replicaResourceSpecs"))
    remove, migrate = _names(reader, "removePods"), _names(reader, "migratePods")
    hosts = _hosts(reader)
    named = servers_named(owner, hosts)
    create = _names(reader, "createPods")
    made = _created(owner, create)
    if create and remove:
        found = "can't stand beside removePods: say migratePods, or how many replicas"
        problems.append(Problem("spec.createPods", found))
    unserved = {}
    if create and not made:
        unserved["createPods"] = f"they aren't all pods of the job: {_names_of(owner)}"
    if any(isinstance(one, Mapping) and one.get("resource") for one in _listed(reader)):
        why = "pods of a role ask for the same: say it in replicaResourceSpecs"
        unserved["createPods.resource"] = why
    if hosts and not named:
        first = f"JOB-{_SERVING.label}-0:PORT and on"
        unserved["psHosts"] = f"its hosts aren't the job's first servers: {first}"
    if scale_type not in (AUTO, MANUAL):
        found = f"must be {AUTO} or {MANUAL}, found {scale_type!r}"
        problems.append(Problem(f"metadata.labels[{TYPE_LABEL}]", found))
    if not (roles or remove or migrate or named or made or unserved or problems):
        problems.append(Problem("spec.replicaResourceSpecs", "must say something of a role"))
    if problems:
        raise InvalidPlan(problems)
    return ScalePlan(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "default")),
        owner_job=owner,
        manual=scale_type == MANUAL,
        created=created,
        expires=None if expire is None else created + expire,
        roles=roles,
        remove=remove,
        migrate=tuple(name for name in migrate if name not in remove),
        pods={str(name): str(uid) for name, uid in (status.get("pods") or {}).items()},
        named_servers=named,
        made=made,
        not_carried_out=unserved,
        job_uid=str(status.get("jobUID") or ""),
        over=status.get("phase") == Phase.EXPIRED,
    )


def _scale_type(meta: Mapping[str, Any]) -> object:
    """Return what the label says; a plan without one is a person's."""
    return (meta.get("labels") or {}).get(TYPE_LABEL, MANUAL)


def servers_named(job: str, hosts: Iterable[str]) -> int | None:
    """Return how many parameter servers of a job the hosts name, each as HOST or HOST:PORT; None
    where they aren't its first ones: a server's place is its number."""
    names = {host.partition(":")[0].partition(".")[0] for host in hosts}
    first = {f"{job}-{_SERVING.label}-{index}" for index in range(len(names))}
    return len(names) if names and names == first else None


def _created(job: str, names: Iterable[str]) -> dict[str, int]:
    """Return by role how many pods there have to be for those of these names, as they are numbered
    from 0; nothing where one of them is no pod of the job."""
    found: dict[str, int] = {}
    for name in names:
        for role in _CREATED:
            start = f"{job}-{role.label}-"
            number = name.removeprefix(start)
            if name.startswith(start) and _NUMBER.fullmatch(number):
                found[role.name] = max(found.get(role.name, 0), int(number) + 1)
                break
        else:
            return {}
    return found


def _names_of(job: str) -> str:
    return " or ".join(f"{job}-{role.label}-NUMBER" for role in _CREATED)


def _listed(reader: FieldReader) -> list[Any]:
    found = reader.get("createPods")
    return found if isinstance(found, list) else []


def _hosts(reader: FieldReader) -> tuple[str, ...]:
    found = reader.get("psHosts")
    listed = found if isinstance(found, list) else []
    good = tuple(host for host in listed if isinstance(host, str) and host)
    if found is not None and (not isinstance(found, list) or len(good) < len(listed)):
        shown = f"must be a list of HOST:PORT, found {found!r}"
        reader.problems.append(Problem(f"{reader.path}.psHosts", shown))
    return good


def _names(reader: FieldReader, field_name: str) -> tuple[str, ...]:
    """Return the names of pods in a list of objects that have one each."""
    found = reader.get(field_name)
    listed = found if isinstance(found, list) else []
    names = [one.get("name") if isinstance(one, Mapping) else None for one in listed]
    good = [name for name in names if isinstance(name, str) and name]
    if found is not None and (not isinstance(found, list) or len(good) < len(names)):
        shown = f"must be a list of objects with a pod's name each, found {found!r}"
        reader.problems.append(Problem(f"{reader.path}.{field_name}", shown))
    return tuple(dict.fromkeys(good))


def _roles(reader: FieldReader) -> dict[str, RolePlan]:
    names = {role.name for role in known()}
    found = {}
    for name in reader.raw:
        if name not in names:
            there_are = ", ".join(sorted(names))
            problem = Problem(f"{reader.path}.{name}", f"is no role; there are {there_are}")
            reader.problems.append(problem)
            continue
        part = reader.part(name)
        resource = part.part("resource")
        cpu, memory = resource.amount("cpu"), resource.amount("memory")
        if cpu == 0:
            problem = Problem(f"{resource.path}.cpu", "must be more than 0, found 0")
            reader.problems.append(problem)
        if memory is not None and memory < _LEAST_MEMORY.count * 1000:
            found_ = f"must be at least 1Mi, found {resource.get('memory')!r}: is its unit missing?"
            reader.problems.append(Problem(f"{resource.path}.memory", found_))
        plan = RolePlan(
            part.integer("replicas"),
            None if cpu is None else Cpu(cpu),
            None if memory is None else Bytes(-(-memory // 1000)),
        )
        if plan != RolePlan():
            found[name] = plan
    return found
