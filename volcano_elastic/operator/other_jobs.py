"""Keeps the jobs of other kinds that are sized, and which pods are theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from volcano_elastic.adapters import other_job, quota_tree
from volcano_elastic.adapters.adapter import Adapter
from volcano_elastic.adapters.other_job import InvalidOtherJob, OtherJob
from volcano_elastic.kube.resource import Object
from volcano_elastic.operator import convert
from volcano_elastic.operator.kueue_quotas import KueueQuotas
from volcano_elastic.snapshot.snapshot import Job, Pod

_INDEX = "batch.kubernetes.io/job-completion-index"


class OtherJobs:
    """Takes each change of such a job and of each pod; the snapshot's builder asks what follows.

    Args:
        kueue: what Kueue's objects say; None: its jobs stay as they are.
    """

    def __init__(self, adapters: Sequence[Adapter], kueue: KueueQuotas | None = None) -> None:
        self.kueue = kueue
        self.jobs: dict[str, OtherJob] = {}
        """By the planner's key."""
        self.problems: dict[str, tuple[Object, str]] = {}
        """Jobs that ask to be sized and can't be, with the reason."""
        self._adapters = adapters
        self._held: dict[str, bool] = {}
        """Jobs whose size can't be written, and whether a smaller one can."""
        self._pods: dict[str, dict[str, Pod]] = {}
        """Pods that may be a job's by their labels, by job and pod; whether it is sized or not."""
        self._claims: dict[str, tuple[tuple[str, str], ...]] = {}
        """(job, its part) that each of them may belong to, by pod; the first sized job wins."""

    def change(self, adapter: Adapter, key: str, obj: Object | None) -> tuple[str, Iterable[Pod]]:
        """Take the object, or that it is gone; return the job's key, and the pods that may belong
        to another one now."""
        namespace, _, name = key.partition("/")
        mine, job = other_job.key_of(adapter, namespace, name), None
        self.problems.pop(mine, None)
        if obj is not None:
            try:
                job = other_job.read(adapter, obj)
                if job is not None and job.local_queue is not None and self.kueue is None:
                    job = None  # stays so
                    raise InvalidOtherJob(
                        "a job of Kueue's: expected the operator to know Kueue's quotas, by "
                        "--kueue; it doesn't: the job stays as it is"
                    )
            except InvalidOtherJob as error:
                self.problems[mine] = (obj, str(error))
        before = self.jobs.pop(mine, None)
        if job is not None:
            self.jobs[mine] = job
        if job is None or before is None or before.uid != job.uid:
            self._held.pop(mine, None)
        same = before is not None and job is not None and before.part == job.part
        return mine, () if same else tuple(self._pods.get(mine, {}).values())

    def change_pod(self, key: str, labels: Mapping[str, str], pod: Pod | None) -> Sequence[str]:
        """Take the pod, or that it is gone; return the jobs that are as their pods are."""
        before: Pod | None = None
        for job, _ in self._claims.pop(key, ()):
            before = self._pods[job].pop(key)
            if not self._pods[job]:
                del self._pods[job]
        if pod is None or not self._adapters:
            return ()
        claims = tuple(self._claimants(pod, labels))
        if not claims:
            return ()
        self._claims[key] = claims
        index = labels.get(_INDEX, "")
        if index.isdecimal():
            number = int(index)
        elif before is not None:
            number = before.index
        else:
            # The planner takes the highest first, and never the lowest: each needs one of its own.
            taken = {other.index for other in self._pods.get(claims[0][0], {}).values()}
            number = next(n for n in count() if n not in taken)
        pod = dataclasses.replace(pod, index=number)
        for job, _ in claims:
            self._pods.setdefault(job, {})[key] = pod
        return [job for job, _ in claims if job in self.jobs and self.jobs[job].template is None]

    def owned(self, pod: Pod) -> Pod:
        """Return the pod with the job that it belongs to, if that is sized."""
        for key, part in self._claims.get(pod.key, ()):
            job = self.jobs.get(key)
            if job is not None and job.part == part:
                mine = self._pods[key][pod.key]
                return dataclasses.replace(mine, job=key, owner=None, unschedulable_since=None)
        return pod

    def hold(self, key: str, *, held: bool, shrinks: bool = False) -> None:
        """Let the job's size stay as it is, or no longer.

        Args:
            shrinks: while it is held, it may become smaller.
        """
        if held and key in self.jobs:
            self._held[key] = shrinks
        else:
            self._held.pop(key, None)

    def of_kueue(self) -> frozenset[str]:
        """Return the jobs that Kueue admits."""
        return frozenset(key for key, job in self.jobs.items() if job.local_queue is not None)

    def converted(self, key: str, priority: Callable[[str | None], int]) -> Job | None:
        """Return the job as the planner sees it; None if it sees none.

        Args:
            priority: of a PriorityClass by its name.
        """
        job = self.jobs.get(key)
        if job is None:
            return None
        name = ((job.template or {}).get("spec") or {}).get("priorityClassName")
        mine = (pod for pod in self._pods.get(key, {}).values() if self.owned(pod).job == key)
        like = min(mine, key=lambda pod: pod.key, default=None) if job.template is None else None
        queue = None
        if self.kueue is not None and job.local_queue is not None:
            queue = quota_tree.queue_of(self.kueue.view(), job.local_queue, key)
        return convert.convert_other_job(
            job,
            priority=priority(name),
            like=like,
            queue=queue or job.queue,
            most=job.size if key in self._held else job.max,
            least=job.min if self._held.get(key, True) else job.size,
        )

    def _claimants(self, pod: Pod, labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        namespace = pod.key.partition("/")[0]
        for adapter in self._adapters:
            name = labels.get(adapter.name_label)
            if name:
                part = labels.get(adapter.part_label, "") if adapter.part_label else ""
                yield other_job.key_of(adapter, namespace, name), part
