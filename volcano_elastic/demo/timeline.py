"""The history of pods and jobs, and the figures that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class PodSpan:
    """One pod's life; times in seconds since the demo began."""

    job: str
    index: int
    name: str
    gpus: int
    node: str | None = None
    created: float = 0.0
    running: float | None = None
    told_to_leave: float | None = None
    ended: float | None = None

    @property
    def live(self) -> bool:
        return self.running is not None and self.ended is None


@dataclass(frozen=True, slots=True)
class Change:
    """One scaling action."""

    at: float
    job: str
    old: int
    new: int
    reason: str
    message: str = ""


@dataclass(slots=True)
class Timeline:
    submitted: dict[str, float] = field(default_factory=dict)
    finished: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Job to (when, Succeeded or Failed)."""
    pods: dict[str, PodSpan] = field(default_factory=dict)
    """By pod uid."""
    changes: list[Change] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    """Things worth a line in the picture: a kill, an arrival."""

    def of(self, job: str) -> list[PodSpan]:
        return [pod for pod in self.pods.values() if pod.job == job]

    def running(self, job: str) -> int:
        """Pods that run now and have not been told to leave."""
        return sum(pod.live and pod.told_to_leave is None for pod in self.of(job))

    def wait_for_first_pod(self, job: str) -> float | None:
        """Seconds from submission until a pod ran; None if none did."""
        starts = [pod.running for pod in self.of(job) if pod.running is not None]
        return min(starts) - self.submitted[job] if starts else None

    def wait_for_minimum(self, job: str, minimum: int) -> float | None:
        """Seconds from submission until `minimum` pods ran at once; None if they never did."""
        for time, size in steps(self.of(job)):
            if size >= minimum:
                return time - self.submitted[job]
        return None

    def utilisation(self, gpus: int, start: float, end: float) -> float:
        """GPU-seconds held by running pods over those that there were, between two moments."""
        held = sum(
            pod.gpus * max(0.0, min(pod.ended or end, end) - max(pod.running, start))
            for pod in self.pods.values()
            if pod.running is not None
        )
        return held / (gpus * (end - start))


def steps(pods: Iterable[PodSpan]) -> list[tuple[float, int]]:
    """(time, running pods from then on), ascending; one entry a moment."""
    edges: list[tuple[float, int]] = []
    for pod in pods:
        if pod.running is not None:
            edges.append((pod.running, 1))
            if pod.ended is not None:
                edges.append((max(pod.ended, pod.running), -1))
    sizes: dict[float, int] = {}
    size = 0
    for time, delta in sorted(edges):
        size += delta
        sizes[time] = size
    return sorted(sizes.items())
