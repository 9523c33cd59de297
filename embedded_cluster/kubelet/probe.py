"""Decides when a container is probed, and what the answers add up to: pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from volcano_elastic.kube.resource import Object

Kind = Literal["startupProbe", "livenessProbe", "readinessProbe"]


@dataclass(slots=True)
class Probe:
    """One probe of one run of a container."""

    kind: Kind
    spec: Object
    due: datetime
    holds: bool
    """What it says of the container now: passed, alive, ready."""
    failed: bool = False
    """It failed so often that the container has to end."""
    asked: bool = False
    """Its answer is awaited."""
    _successes: int = 0
    _failures: int = 0

    @property
    def seconds(self) -> float:
        """The time that an answer may take, in seconds."""
        return float(self.spec.get("timeoutSeconds") or 1)

    def answered(self, success: bool, now: datetime) -> None:
        self.asked = False
        self.due = now + timedelta(seconds=self.spec.get("periodSeconds") or 10)
        self._successes = self._successes + 1 if success else 0
        self._failures = 0 if success else self._failures + 1
        if self._successes >= (self.spec.get("successThreshold") or 1):
            self.holds = True
        if self._failures >= (self.spec.get("failureThreshold") or 3):
            self.holds = False
            self.failed = self.kind != "readinessProbe"


def probes_of(container: Object, started: datetime) -> list[Probe]:
    return [
        Probe(
            kind,
            container[kind],
            started + timedelta(seconds=container[kind].get("initialDelaySeconds") or 0),
            holds=kind == "livenessProbe",
        )
        for kind in get_args(Kind)
        if container.get(kind)
    ]


def due(probes: list[Probe]) -> list[Probe]:
    """Those that may be asked: a startup probe that hasn't passed holds up the others, and once
    it has passed it is over."""
    startup = [probe for probe in probes if probe.kind == "startupProbe" and not probe.holds]
    candidates = startup or [probe for probe in probes if probe.kind != "startupProbe"]
    return [probe for probe in candidates if not probe.asked and not probe.failed]
