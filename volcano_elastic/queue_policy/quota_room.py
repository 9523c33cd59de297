"""Room in namespaces: what their ResourceQuotas let pods ask for besides those that are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.fit import UNLIMITED, Vector
from volcano_elastic.cluster_state.job_state import JobState
from volcano_elastic.queue_policy.journal import Journal
from volcano_elastic.queue_policy.node_room import NodeRoom, Room
from volcano_elastic.queue_policy.queue_room import Full
from volcano_elastic.snapshot.snapshot import Quota, Resources


class _Left(NamedTuple):
    """Amounts by dimension; the API server counts a pod until it is gone."""

    now: list[int]
    coming: list[int]
    """Once those that leave are gone."""


class QuotaRoom:
    """Counts the room that ResourceQuotas leave in each namespace while a plan is made."""

    def __init__(self, cluster: ClusterState, nodes: NodeRoom, journal: Journal) -> None:
        self._dimensions, self._nodes, self._journal = cluster.dimensions, nodes, journal
        self._quotas: defaultdict[str, list[Quota]] = defaultdict(list)
        for quota in cluster.snapshot.quotas:
            # Which pods a scope means is not foreseen.
            if not quota.scoped:
                self._quotas[quota.key.partition("/")[0]].append(quota)
        self._left: dict[str, _Left] = {}
        """By namespace, of those that were asked for."""
        self._leaving: dict[str, list[Resources]] | None = None

    def fits_often(self, namespace: str, vector: Sequence[int], room: Room) -> int:
        """Return how many times `vector` more may be asked for, now or when leavers are gone."""
        left = self._of(namespace)
        if left is None:
            return UNLIMITED
        amounts = left.now if room is Room.IDLE else left.coming
        often = (amounts[i] // amount for i, amount in enumerate(vector) if amount > 0)
        return max(0, min(often, default=UNLIMITED))

    def scope(self, key: str) -> str:
        """The namespace of a job, if it has a quota; else empty."""
        namespace = key.partition("/")[0]
        return namespace if namespace in self._quotas else ""

    def full(self, namespace: str, vector: Sequence[int]) -> Full | None:
        """The namespace, and where it lacks room for `vector` more, leavers not counted."""
        left = self._of(namespace)
        short = () if left is None else enumerate(zip(vector, left.coming, strict=True))
        lacking = tuple(i for i, (amount, there) in short if 0 < amount > there)
        return Full(namespace, lacking) if lacking else None

    def use(self, namespace: str, vector: Vector, times: int) -> None:
        """Count pods that will be made."""
        if times and namespace in self._quotas:
            self._add(namespace, vector, -times, -times)
            self._journal.note(self._add, namespace, vector, times, times)

    def leave(self, state: JobState) -> None:
        """A pod of the job is told to go."""
        if self._quotas and state.namespace in self._quotas:
            self._add(state.namespace, state.counted, 0, 1)
            self._journal.note(self._add, state.namespace, state.counted, 0, -1)

    def _add(self, namespace: str, vector: Vector, now: int, coming: int) -> None:
        left = self._of(namespace)
        assert left is not None
        for i, amount in enumerate(vector):
            left.now[i] += amount * now
            left.coming[i] += amount * coming

    def _of(self, namespace: str) -> _Left | None:
        found = self._left.get(namespace)
        if found is None and namespace in self._quotas:
            found = self._left[namespace] = self._count(namespace)
        return found

    def _count(self, namespace: str) -> _Left:
        now = []
        for name in self._dimensions.names:
            quotas = [quota for quota in self._quotas[namespace] if name in quota.hard]
            left = [quota.hard[name] - quota.used.get(name, 0) for quota in quotas]
            now.append(min(left, default=UNLIMITED))
        if self._leaving is None:
            self._leaving = defaultdict(list)
            for n in self._nodes.releasing:
                for pod in self._nodes.states[n].terminating:
                    self._leaving[pod.key.partition("/")[0]].append(pod.requests)
        coming = list(now)
        for requests in self._leaving.get(namespace, ()):
            for i, amount in enumerate(self._dimensions.request(requests)):
                coming[i] += amount
        return _Left(now, coming)
