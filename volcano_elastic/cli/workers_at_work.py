"""Counts a job's workers that run, and says why others of phase Running don't."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from volcano_elastic.api.role import elastic
from volcano_elastic.snapshot.snapshot import Pod, Snapshot

NODE_NOT_READY = "NodeNotReady"


@dataclass(frozen=True, slots=True)
class Workers:
    """A job's pods of the elastic role that have been started."""

    running: int = 0
    halted: Mapping[str, int] = field(default_factory=dict)
    """How many don't run, by why: CrashLoopBackOff, say, or NodeNotReady."""

    @property
    def words(self) -> str:
        """Return who doesn't run, as `2 CrashLoopBackOff`; empty where all do."""
        return ", ".join(f"{count} {why}" for why, count in sorted(self.halted.items()))


def workers(snapshot: Snapshot) -> dict[str, Workers]:
    """Return each job's workers, by its key; a job that has none is not there.

    A pod on a node that Kubernetes hears no more keeps its phase until it is deleted.
    """
    not_ready = {node.name for node in snapshot.nodes if not node.ready}
    running, halted = Counter[str](), dict[str, Counter[str]]()
    for pod in snapshot.pods:
        if pod.job is None or pod.role != elastic().name or pod.terminating or not pod.running:
            continue
        why = _halted(pod, not_ready)
        if why:
            halted.setdefault(pod.job, Counter())[why] += 1
        else:
            running[pod.job] += 1
    return {
        job: Workers(running[job], dict(halted.get(job, {}))) for job in running.keys() | halted
    }


def _halted(pod: Pod, not_ready: set[str]) -> str:
    return NODE_NOT_READY if pod.node in not_ready else pod.halted
