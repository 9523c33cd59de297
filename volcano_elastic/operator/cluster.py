"""The informers of one operator, and which pods and services belong to which job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from volcano_elastic.adapters.adapter import Adapter
from volcano_elastic.api import moment
from volcano_elastic.api.pod import evicted_at
from volcano_elastic.kube import resource
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object, Resource, key_of
from volcano_elastic.operator import kueue_quotas
from volcano_elastic.pytorchjob.label import JOB_NAME


class Cluster:
    """Watches all kinds that the operator sees, and groups pods and services by job; writes
    nothing.

    Args:
        namespace: the one whose jobs this operator carries out; None: all.
        adapters: other kinds of jobs that are watched.
        kueue: so are Kueue's queues and workloads.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str | None = None,
        adapters: Sequence[Adapter] = (),
        kueue: bool = False,
    ) -> None:
        self.client = client
        self._namespace = namespace
        self.jobs = Informer(client, resource.PYTORCHJOBS)
        self.pods = Informer(client, resource.PODS)
        self.services = Informer(client, resource.SERVICES)
        self.podgroups = Informer(client, resource.PODGROUPS)
        self.autoscalers = Informer(client, resource.AUTOSCALERS)
        self.nodes = Informer(client, resource.NODES)
        self.queues = Informer(client, resource.QUEUES)
        self.policies = Informer(client, resource.QUEUEPOLICIES)
        self.scale_plans = Informer(client, resource.SCALEPLANS)
        self.priorities = Informer(client, resource.PRIORITYCLASSES)
        self.quotas = Informer(client, resource.RESOURCEQUOTAS)
        self.others = {
            adapter.kind: Informer(client, resource_of(adapter), namespace=namespace)
            for adapter in adapters
        }
        """By kind."""
        self.kueue = tuple(Informer(client, kind) for kind in kueue_quotas.KINDS if kueue)
        self._owned: dict[Resource, dict[str, dict[str, Object]]] = {
            resource.PODS: {},
            resource.SERVICES: {},
        }
        self.pods.on_change(self._keep(resource.PODS))
        self.services.on_change(self._keep(resource.SERVICES))
        self._watching_evictions = False
        self._evicted: dict[str, dict[str, Object]] = {}
        """By job's key and uid, while somebody asks for them."""
        self.pods.on_change(self._pod_changed)
        self.jobs.on_change(self._job_changed)

    def __iter__(self) -> Iterator[Informer]:
        yield from (
            self.jobs,
            self.pods,
            self.services,
            self.podgroups,
            self.autoscalers,
            self.nodes,
            self.queues,
            self.policies,
            self.scale_plans,
            self.priorities,
            self.quotas,
            *self.others.values(),
            *self.kueue,
        )

    async def synced(self) -> None:
        for informer in self:
            await informer.synced.wait()

    async def run(self) -> None:
        """Keeps all informers current until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self:
                group.create_task(informer.run())

    def serves(self, job: Object) -> bool:
        """Return whether this operator carries the job out."""
        return self._namespace in (None, job["metadata"].get("namespace"))

    def pods_of(self, job: Object) -> tuple[Object, ...]:
        return self._of(resource.PODS, job)

    def services_of(self, job: Object) -> tuple[Object, ...]:
        return self._of(resource.SERVICES, job)

    def podgroup_of(self, job: Object) -> Object | None:
        return _if_controlled(self.podgroups.get(key_of(job)), job)

    def autoscaler_of(self, job: Object) -> Object | None:
        return _if_controlled(self.autoscalers.get(key_of(job)), job)

    def watch_evictions(self, *, on: bool) -> None:
        """Remember evicted pods of jobs that this operator serves from now on, or none; earlier
        ones are forgotten."""
        self._watching_evictions = on
        self._evicted.clear()

    def evicted_of(self, job: Object) -> tuple[Object, ...]:
        """Return pods that were evicted and are gone already, as if they were still on their way
        out, until `forget`: their job's size follows them before others are made in their place."""
        gone = self._evicted.get(key_of(job), {}).values()
        return tuple(pod for pod in gone if controlled_by(pod, job))

    def forget(self, job: Object, evicted: Iterable[Object]) -> None:
        """Forget these of `evicted_of`: the job has been reconciled with them."""
        held = self._evicted.get(key_of(job), {})
        for pod in evicted:
            held.pop(pod["metadata"]["uid"], None)

    def _of(self, kind: Resource, job: Object) -> tuple[Object, ...]:
        named = self._owned[kind].get(key_of(job), {}).values()
        # An earlier job of the same name may have left some that are not gone yet.
        return tuple(obj for obj in named if controlled_by(obj, job))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if not self._watching_evictions or old is None or new is not None:
            return
        evicted, job = evicted_at(old), self.jobs.get(job_key(old))
        if evicted is not None and job is not None and self.serves(job):
            meta = {"deletionTimestamp": moment.timestamp(evicted)} | old["metadata"]
            self._evicted.setdefault(key_of(job), {})[meta["uid"]] = {**old, "metadata": meta}

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None:
            return
        if new is None or new["metadata"]["uid"] != old["metadata"]["uid"]:
            self._evicted.pop(key_of(old), None)

    def _keep(self, kind: Resource) -> Callable[[Object | None, Object | None], None]:
        owned = self._owned[kind]

        def changed(old: Object | None, new: Object | None) -> None:
            if old is not None and (job := job_key(old)) in owned:
                owned[job].pop(key_of(old), None)
                if not owned[job]:
                    del owned[job]
            if new is not None and (job := job_key(new)):
                owned.setdefault(job, {})[key_of(new)] = new

        return changed


def resource_of(adapter: Adapter) -> Resource:
    return Resource(adapter.group, adapter.version, adapter.plural, adapter.kind)


def job_key(obj: Object) -> str:
    """Key of the job that a pod or service is labelled with; empty if it is nobody's."""
    meta = obj["metadata"]
    name = (meta.get("labels") or {}).get(JOB_NAME)
    return f"{meta.get('namespace', 'default')}/{name}" if name else ""


def _if_controlled(obj: Object | None, job: Object) -> Object | None:
    return obj if obj is not None and controlled_by(obj, job) else None


def controlled_by(obj: Object, job: Object) -> bool:
    """By this very job, not one that had its name before."""
    return any(
        reference.get("controller") and reference.get("uid") == job["metadata"].get("uid")
        for reference in obj["metadata"].get("ownerReferences") or ()
    )
