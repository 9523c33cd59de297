"""Observations of a cluster, before they are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Untold:
    """In place of a fact that could not be observed."""

    why: str
    unserved: bool = False
    """The API server has nothing like it, so no right would help."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A PyTorchJob that was created as a dry run, with a field left out that a webhook fills in."""

    answer: Object
    sent: datetime
    """By the clock of the machine that asked."""
    answered: datetime


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource; namespace and name are empty where any is meant."""

    verb: str
    group: str
    resource: str
    """`pods`, or `pods/status`."""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        named = f" {self.name}" if self.name else ""
        place = f" in {self.namespace}" if self.namespace else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{named}{place}"


@dataclass(frozen=True, slots=True)
class Facts:
    version: str
    """Version of the tool that judges: the one wanted of the operator and its CRDs."""
    crds: Mapping[str, Object] | Untold
    """All that are served, by name."""
    our_crds: Mapping[str, Object]
    """Those that this version brings, by name."""
    deployments: Sequence[Object] | Untold
    """Deployments of all namespaces."""
    scheduler_configmap: Object | Untold | None
    queues: Sequence[Object] | Untold
    webhooks: Sequence[Object] | Untold
    """The operator's mutating and validating configuration, as far as they are there."""
    trial: Trial | Untold
    lease: Object | Untold | None
    """The one that the leading operator holds."""
    node_leases: Sequence[Object] | Untold
    operator_lacks: Sequence[Right] | Untold
    """Rights that the operator's service account needs and lacks."""
    tools_lack: Sequence[Right] | Untold
    """Rights that the user of the tools needs and lacks."""
    jobs: Sequence[Object] | Untold
    """PyTorchJobs."""
    claims: Mapping[tuple[str, str], Object] | Untold
    """PersistentVolumeClaims by namespace and name."""
