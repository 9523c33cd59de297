"""Builds the planner's snapshot of the cluster, kept current object by object.

One change costs what that object costs, not what the cluster costs: values that did not change stay
the very same objects, and so do the tuples of kinds in which nothing changed, so that a planner can
tell by identity what it has to think about again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from volcano_elastic.adapters import quota_tree
from volcano_elastic.adapters.adapter import Adapter
from volcano_elastic.api import node_signal
from volcano_elastic.api.node_signal import NodeSignal
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.queue_policy import InvalidPolicy, QueuePolicy, effective
from volcano_elastic.api.queue_policy import parse as parse_policy
from volcano_elastic.api.role import elastic, named
from volcano_elastic.api.scale_plan import InvalidPlan, ScalePlan, counting
from volcano_elastic.api.scale_plan import parse as parse_plan
from volcano_elastic.kube import resource
from volcano_elastic.kube.resource import Object, Resource, key_of
from volcano_elastic.operator import convert, kueue_quotas
from volcano_elastic.operator.kueue_quotas import KueueQuotas
from volcano_elastic.operator.other_jobs import OtherJobs
from volcano_elastic.snapshot.snapshot import (
    Gang,
    Job,
    Memory,
    Node,
    Pod,
    Queue,
    Quota,
    Snapshot,
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
# No schema of ours keeps other people's objects in shape; one of them must not stop the rest.
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)

KINDS: tuple[Resource, ...] = (
    resource.PYTORCHJOBS,
    resource.PODS,
    resource.PODGROUPS,
    resource.NODES,
    resource.QUEUES,
    resource.QUEUEPOLICIES,
    resource.SCALEPLANS,
    resource.PRIORITYCLASSES,
    resource.RESOURCEQUOTAS,
)
"""Kinds that a snapshot is made of."""


class _Values(Generic[_T]):
    """Values by key; equal ones stay the same object, and so does the tuple of unchanged ones."""

    def __init__(self) -> None:
        self._held: dict[str, _T] = {}
        self._tuple: tuple[_T, ...] | None = ()

    def get(self, key: str) -> _T | None:
        return self._held.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def set(self, key: str, value: _T | None) -> bool:
        """Set the value, or take it away if it is None; return whether that changed anything."""
        old = self._held.get(key)
        if old == value:
            return False
        if value is None:
            del self._held[key]
        else:
            self._held[key] = value
        self._tuple = None
        return True

    def all(self) -> tuple[_T, ...]:
        if self._tuple is None:
            self._tuple = tuple(self._held.values())
        return self._tuple


class SnapshotBuilder:
    """Takes each change of each object of `KINDS`; gives a snapshot at any time.

    Args:
        serves: False for PyTorchJobs that another operator carries out; their pods and gangs count
            like anybody's.
        signals: what of a node tells elastic jobs to leave it.
        adapters: other kinds of jobs that are sized, beside `KINDS`.
        kueue: jobs that Kueue admits are sized within its quotas; its kinds are told, too.
    """

    def __init__(
        self,
        serves: Callable[[Object], bool] = lambda job: True,
        signals: Sequence[NodeSignal] = node_signal.DEFAULTS,
        adapters: Sequence[Adapter] = (),
        *,
        kueue: bool = False,
    ) -> None:
        self.kueue = KueueQuotas() if kueue else None
        """Its quotas; None: nobody told of them."""
        self._kueue_changed = False
        self.others = OtherJobs(adapters, self.kueue)
        """Jobs of those kinds."""
        self.proportion = False
        """True if Volcano divides by the proportion plugin; no object says so."""
        self.memory = Memory()
        """The last plan's."""
        self.invalid: dict[str, InvalidPolicy] = {}
        """QueuePolicies that cannot be applied, by name."""
        self._serves = serves
        self._parsed: dict[str, PyTorchJob] = {}
        self._need_first: set[str] = set()
        """Keys of the jobs whose workers were found to wait for worker 0."""
        self._plans: dict[str, dict[str, ScalePlan]] = {}
        """By job's key, then by the plan's."""
        self._job_of_plan: dict[str, str] = {}
        self._podgroups: dict[str, Object] = {}
        self._priorities: dict[str, tuple[int, bool]] = {}
        """(value, whether it is the default for who names none) by PriorityClass."""
        self._ended: dict[str, str] = {}
        """Pod that finished well to whose it was: key of its job, else of its gang."""
        self._succeeded: dict[str, int] = {}
        self._placed: dict[str, set[str]] = {}
        """By job, its pods on nodes that neither count in its size nor lead."""
        self._effective: tuple[tuple[QueuePolicy, ...], dict[str, QueuePolicy]] = ((), {})
        self._to_leave: tuple[tuple[Node, ...], dict[str, str]] = ((), {})
        self._jobs: _Values[Job] = _Values()
        self._gangs: _Values[Gang] = _Values()
        self._pods: _Values[Pod] = _Values()
        self._nodes: _Values[Node] = _Values()
        self._queues: _Values[Queue] = _Values()
        self._policies: _Values[QueuePolicy] = _Values()
        self._quotas: _Values[Quota] = _Values()
        self._change: dict[str, Callable[[str, Object | None], bool]] = {
            resource.PYTORCHJOBS.kind: self._job,
            resource.PODS.kind: self._pod,
            resource.PODGROUPS.kind: self._podgroup,
            resource.NODES.kind: lambda key, obj: self._set(
                self._nodes, key, obj, lambda node: convert.convert_node(node, signals)
            ),
            resource.QUEUES.kind: lambda key, obj: self._set(
                self._queues, key, obj, convert.convert_queue
            ),
            resource.QUEUEPOLICIES.kind: self._policy,
            resource.SCALEPLANS.kind: self._plan,
            resource.RESOURCEQUOTAS.kind: lambda key, obj: self._set(
                self._quotas, key, obj, convert.convert_quota
            ),
            resource.PRIORITYCLASSES.kind: self._priority,
        }
        for adapter in adapters:
            self._change[adapter.kind] = partial(self._other, adapter)
        for kind in kueue_quotas.KINDS if kueue else ():
            self._change[kind.kind] = partial(self._of_kueue, kind.kind)

    def change(self, old: Object | None, new: Object | None) -> bool:
        """Take what an informer's handler is told; return whether the snapshot is another one
        now."""
        obj = new if new is not None else old
        assert obj is not None
        change, key = self._change[obj["kind"]], key_of(obj)
        try:
            return change(key, new)
        except _UNREADABLE as error:
            _log.warning("%s %s is left out: it cannot be read: %r", obj["kind"], key, error)
            return change(key, None)

    def snapshot(self) -> Snapshot:
        if self._kueue_changed:
            self._renew_kueue()
        return Snapshot(
            nodes=self._nodes.all(),
            pods=self._pods.all(),
            jobs=self._jobs.all(),
            gangs=self._gangs.all(),
            policies=self._policies.all(),
            proportion=self.proportion,
            queues=self._queues.all(),
            memory=self.memory,
            quotas=self._quotas.all(),
        )

    def parsed(self) -> list[PyTorchJob]:
        """Return the jobs of the snapshot, as they were last seen."""
        return list(self._parsed.values())

    def parsed_job(self, key: str) -> PyTorchJob | None:
        return self._parsed.get(key)

    def needs_first(self, key: str) -> bool:
        """Return whether the job's workers were found to wait for worker 0."""
        return key in self._need_first

    def need_first(self, key: str, *, needed: bool) -> None:
        """Take whether the job's workers wait for worker 0, which none of its objects says."""
        if needed != self.needs_first(key):
            (self._need_first.add if needed else self._need_first.discard)(key)
            self._renew(key)

    def job(self, key: str) -> Job | None:
        return self._jobs.get(key)

    def nodes_to_leave(self) -> Mapping[str, str]:
        """Return the nodes that elastic jobs leave, with the reason."""
        nodes = self._nodes.all()
        if self._to_leave[0] is not nodes:
            self._to_leave = (nodes, {n.name: n.leave for n in nodes if n.leave})
        return self._to_leave[1]

    def pod(self, key: str) -> Pod | None:
        """Return the pod, if it has not finished."""
        return self._pods.get(key)

    def queue_of(self, key: str) -> str | None:
        """Return the queue of a job or gang in the snapshot."""
        found = self._jobs.get(key) or self._gangs.get(key)
        return None if found is None else found.queue

    def queue(self, name: str) -> Queue | None:
        return self._queues.get(name)

    def policy_of(self, queue: str) -> QueuePolicy:
        """Return the policy in force; the defaults where there is none."""
        policies = self._policies.all()
        if self._effective[0] is not policies:
            self._effective = (policies, effective(policies))
        return self._effective[1].get(queue) or QueuePolicy(queue)

    def scale_plan(self, key: str) -> ScalePlan | None:
        """Return the plan that counts for a job; None if none does."""
        parsed = self._parsed.get(key)
        return counting(self._plans.get(key, {}).values(), parsed.uid) if parsed else None

    def plans_with_pods(self) -> dict[str, ScalePlan]:
        """Return by job's key the plans that count and name pods."""
        found = {key: self.scale_plan(key) for key in self._plans}
        return {key: p for key, p in found.items() if p is not None and (p.remove or p.migrate)}

    def _set(
        self, values: _Values[_T], key: str, obj: Object | None, view: Callable[[Object], _T]
    ) -> bool:
        return values.set(key, None if obj is None else view(obj))

    def _job(self, key: str, obj: Object | None) -> bool:
        parsed = None if obj is None or not self._serves(obj) else convert.read_job(obj)
        if parsed is None:
            self._parsed.pop(key, None)
        else:
            self._parsed[key] = parsed
        return self._renew(key)

    def _other(self, adapter: Adapter, key: str, obj: Object | None) -> bool:
        served = obj if obj is not None and self._serves(obj) else None
        sized = self.others.of_kueue()
        name, pods = self.others.change(adapter, key, served)
        changed = self._renew_other(name)
        if self.others.of_kueue() != sized:
            # What they hold counts as others' no longer, or again.
            self._kueue_changed = changed = True
        for pod in pods:
            changed = self._pods.set(pod.key, self.others.owned(pod)) or changed
        return changed

    def _of_kueue(self, kind: str, key: str, obj: Object | None) -> bool:
        assert self.kueue is not None
        changed = self.kueue.change(kind, key, obj)
        self._kueue_changed = self._kueue_changed or changed
        return changed

    def _renew_kueue(self) -> None:
        """Make all that follows from Kueue's objects anew; what is as before stays the same."""
        assert self.kueue is not None
        self._kueue_changed = False
        view, sized = self.kueue.view(), self.others.of_kueue()
        queues = {queue.name: queue for queue in quota_tree.queues(view, sized)}
        if queues and all(quota_tree.is_kueue(queue.name) for queue in self._queues.all()):
            # Without Volcano all other jobs' queues are open; now they have to be named.
            queues |= {name: Queue(name) for name in self._queues_named()}
        gangs = {gang.key: gang for gang in quota_tree.claims(view, sized)}
        for name in {queue.name for queue in self._queues.all()} | queues.keys():
            if quota_tree.is_kueue(name) or name in queues:
                self._queues.set(name, queues.get(name))
        for name in {gang.key for gang in self._gangs.all()} | gangs.keys():
            if quota_tree.is_kueue(name):
                self._gangs.set(name, gangs.get(name))
        for name in sized:
            self._renew_other(name)

    def _queues_named(self) -> set[str]:
        jobs = {job.queue for job in self._jobs.all()} | {g.queue for g in self._gangs.all()}
        return {name for name in jobs if not quota_tree.is_kueue(name)}

    def hold_size(self, key: str, *, held: bool, shrinks: bool = False) -> bool:
        """Plan no other size for this job of another kind, or a smaller one only where it
        `shrinks`, or plan again; return whether that changed anything."""
        self.others.hold(key, held=held, shrinks=shrinks)
        return self._renew_other(key)

    def _renew_other(self, key: str) -> bool:
        return self._jobs.set(key, self.others.converted(key, self._value))

    def _podgroup(self, key: str, obj: Object | None) -> bool:
        if obj is None:
            self._podgroups.pop(key, None)
        else:
            self._podgroups[key] = obj
        return self._renew(key)

    def _pod(self, key: str, obj: Object | None) -> bool:
        view, ended = (None, "") if obj is None else convert.convert_pod(obj)
        live = None if ended else view
        labels = {} if obj is None else obj["metadata"].get("labels") or {}
        asks = self.others.change_pod(key, labels, live)
        before_it = self._pods.get(key)
        changed = self._pods.set(key, None if live is None else self.others.owned(live))
        changed = self._keep_placed(before_it, self._pods.get(key)) or changed
        for other in asks:
            changed = self._renew_other(other) or changed
        owner = None
        if view is not None and ended == "Succeeded" and not view.terminating:
            # A job's PodGroup bears the job's name: its pods must not count twice.
            owner = (
                view.gang if view.job is None else view.job if view.role == elastic().name else None
            )
        before = self._ended.get(key)
        if owner == before:
            return changed
        if before is not None:
            del self._ended[key]
            self._succeeded[before] -= 1
            self._renew(before)
        if owner is not None:
            self._ended[key] = owner
            self._succeeded[owner] = self._succeeded.get(owner, 0) + 1
            self._renew(owner)
        return True

    def _keep_placed(self, old: Pod | None, new: Pod | None) -> bool:
        """Keep `_placed`; return whether a job is another one now."""
        was, now = _placed_for(old), _placed_for(new)
        if was == now:
            return False
        if was is not None and old is not None:
            self._placed[was].discard(old.key)
            if not self._placed[was]:
                del self._placed[was]
        if now is not None and new is not None:
            self._placed.setdefault(now, set()).add(new.key)
        renewed = [self._renew(job) for job in (was, now) if job is not None]
        return any(renewed)

    def _policy(self, key: str, obj: Object | None) -> bool:
        self.invalid.pop(key, None)
        try:
            return self._policies.set(key, None if obj is None else parse_policy(obj))
        except InvalidPolicy as error:
            self.invalid[key] = error
            self._policies.set(key, None)
            # For its status.
            return True

    def _plan(self, key: str, obj: Object | None) -> bool:
        before = self._job_of_plan.pop(key, None)
        if before is not None:
            del self._plans[before][key]
            if not self._plans[before]:
                del self._plans[before]
        try:
            plan = None if obj is None else parse_plan(obj)
        except InvalidPlan:
            # Its status says why.
            plan = None
        if plan is not None:
            self._job_of_plan[key] = plan.job_key
            self._plans.setdefault(plan.job_key, {})[key] = plan
        named = {before, plan.job_key if plan is not None else None} - {None}
        renewed = [self._renew(job) for job in named if job is not None]
        return any(renewed)

    def _priority(self, key: str, obj: Object | None) -> bool:
        before = self._priorities.pop(key, None)
        if obj is not None:
            found = (int(obj.get("value") or 0), bool(obj.get("globalDefault")))
            self._priorities[key] = found
            if found == before:
                return False
        renewed = [self._renew(key) for key in self._parsed.keys() | self._podgroups.keys()]
        renewed += [self._renew_other(key) for key in self.others.jobs]
        return any(renewed)

    def _renew(self, key: str) -> bool:
        """Make the job and the gang of this key anew; they are made of more than one object."""
        parsed, podgroup = self._parsed.get(key), self._podgroups.get(key)
        succeeded = self._succeeded.get(key, 0)
        if not succeeded:
            self._succeeded.pop(key, None)
        job = gang = None
        if parsed is not None:
            name = parsed.run_policy.scheduling.priority_class
            job = convert.convert_job(
                parsed,
                succeeded=succeeded,
                priority=self._value(name),
                podgroup=podgroup,
                placed=len(self._placed.get(key, ())),
                needs_first=key in self._need_first,
                plan=self.scale_plan(key),
            )
        # A job of ours speaks for its own PodGroup.
        elif podgroup is not None:
            name = (podgroup.get("spec") or {}).get("priorityClassName")
            gang = convert.convert_gang(podgroup, succeeded=succeeded, priority=self._value(name))
        changed = self._jobs.set(key, job)
        return self._gangs.set(key, gang) or changed

    def _value(self, name: str | None) -> int:
        if name:
            return self._priorities.get(name, (0, False))[0]
        return next((value for value, default in self._priorities.values() if default), 0)


def _placed_for(pod: Pod | None) -> str | None:
    """Return the job that has this pod on a node, if it neither counts in its size nor leads."""
    if pod is None or pod.job is None or pod.node is None or pod.terminating:
        return None
    role = named(pod.role)
    return None if role is None or role.elastic or role.leads else pod.job


def snapshot_of(objects: Iterable[Object], *, proportion: bool = False) -> Snapshot:
    """Return the snapshot of all these objects, in any order; each has its `kind`."""
    builder = SnapshotBuilder()
    builder.proportion = proportion
    for obj in objects:
        builder.change(None, obj)
    return builder.snapshot()
