"""What a plugin may register with a session; None where it has no say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from volcano_elastic.local.scheduler.snapshot import Job, Node, Queue, Task

Victims = Callable[[Task, Sequence[Task]], list[Task]]
"""Which of the candidates, given in victim order, may go for the claimant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    predicate: Callable[[Task, Node], str | None] | None = None
    """Why the pod can't be on that node, or None."""
    node_order: Callable[[Task, Node], float] | None = None
    """Points; they are summed over plugins, and the most wins."""
    job_order: Callable[[Job], float] | None = None
    """Lower goes first, here and in the other orders; earlier plugins weigh more."""
    task_order: Callable[[Task], float] | None = None
    queue_order: Callable[[Queue], tuple[float, ...]] | None = None
    job_enqueueable: Callable[[Job], str | None] | None = None
    """Why the job must stay Pending, or None."""
    job_valid: Callable[[Job], tuple[str, str] | None] | None = None
    """Reason and message of why its pods can't form a gang, or None. Has no switch."""
    job_ready: Callable[[Job], bool] | None = None
    job_pipelined: Callable[[Job], bool] | None = None
    job_starving: Callable[[Job], bool] | None = None
    overused: Callable[[Queue], bool] | None = None
    allocatable: Callable[[Queue, Task], bool] | None = None
    preemptive: Callable[[Queue, Task], bool] | None = None
    preemptable: Victims | None = None
    reclaimable: Victims | None = None
