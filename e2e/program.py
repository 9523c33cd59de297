"""Starts a cluster's programs as forks of a process that has imported what they are made of."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from embedded_cluster import component
from tests.elastic_trainer import nursery

_IMPORTED = (
    "e2e.prepared",
    "embedded_cluster.apiserver.server",
    "embedded_cluster.kubelet.kubelet",
    "embedded_cluster.scheduler.scheduler",
    "volcano_elastic.operator.controller",
    "volcano_elastic.operator.planning",
)


@functools.cache
def _nursery() -> nursery.Nursery:
    found = nursery.Nursery(_IMPORTED, within=nursery.shared())
    atexit.register(found.close)
    return found


def start(
    command: Sequence[str], variables: Mapping[str, str], output: IO[bytes]
) -> component.Child:
    """Start a command; one that isn't `python -m MODULE` begins cold. It dies with this process."""
    if list(command[:2]) != [sys.executable, "-m"]:
        return component.start(command, variables, output)
    return _nursery().start(["-u", *command[1:]], variables, output)
