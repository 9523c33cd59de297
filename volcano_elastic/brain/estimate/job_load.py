"""The load of a job by part: parameter servers, worker 0 and the other workers; used or asked
for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import NOTHING, Amounts


@dataclass(frozen=True, slots=True)
class JobLoad:
    """The busiest moment of each pod of a job."""

    parameter_servers: tuple[Amounts, ...] = ()
    workers: tuple[Amounts, ...] = ()
    """Worker 0 first, which the articles call chief."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A number of pods of each kind, and what each of them asks for. No parameter servers: an
    all-reduce job."""

    parameter_servers: int
    parameter_server: Amounts
    workers: int
    worker: Amounts


def total(loads: Sequence[Amounts]) -> Amounts:
    """Return the sum; nothing for none."""
    return sum(loads, NOTHING)


def greatest(loads: Sequence[Amounts]) -> Amounts:
    """Return the greatest CPU and the greatest memory of any; nothing for none."""
    found = NOTHING
    for load in loads:
        found = found.most_of(load)
    return found


def servers_for(cpu: Cpu, each: Cpu) -> int:
    """Return how many parameter servers of `each` CPU have `cpu` together, one at least."""
    return max(1, -(-cpu.count // each.count))


def memory_of_each(memory: Bytes, servers: int) -> Bytes:
    return memory.shared(servers)
