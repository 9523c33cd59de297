"""Functions that a plugin may register with a session; None where it has no say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from embedded_cluster.scheduler.snapshot import Job, Node, Queue, Task
from volcano_elastic.scheduler_conf.configuration import PluginOption

Victims = Callable[[Task, Sequence[Task]], list[Task]]
"""Which of the candidates, given in victim order, may go for the claimant."""


Points = Callable[[Node], float]
"""How much a node is wanted."""


def number(option: PluginOption, argument: str, default: float) -> float:
    return float(option.arguments.get(argument, default))


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    predicate: Callable[[Task, Node], str | None] | None = None
    """Why the pod can't be on that node, however much room it has, or None. Must depend on the
    task's shape and the node alone."""
    node_order: Callable[[Task], Points] | None = None
    """They are summed over plugins, and the most wins. Must depend on the task's shape and on what
    the node holds alone; made once for all tasks of a shape."""
    job_order: Callable[[Job], float] | None = None
    """Lower goes first, here and in the other orders; earlier plugins weigh more."""
    task_order: Callable[[Task], float] | None = None
    queue_order: Callable[[Queue], tuple[object, ...]] | None = None
    victim_queue_order: Callable[[Queue, Queue], float] | None = None
    """Order of a victim's queue and the claimant's."""
    job_enqueueable: Callable[[Job], str | None] | None = None
    """Why the job must stay Pending, or None."""
    job_valid: Callable[[Job], str | None] | None = None
    """Why its pods can't form a gang, or None. Has no switch."""
    job_ready: Callable[[Job], bool] | None = None
    job_pipelined: Callable[[Job], bool] | None = None
    job_starving: Callable[[Job], bool] | None = None
    overused: Callable[[Queue], bool] | None = None
    allocatable: Callable[[Queue, Task], str | None] | None = None
    """Why the queue may not hold the task as well, or None."""
    preemptive: Callable[[Queue, Task], bool] | None = None
    preemptable: Victims | None = None
    reclaimable: Victims | None = None


SWITCHES: Mapping[str, str] = {
    "job_order": "enableJobOrder",
    "job_ready": "enableJobReady",
    "job_pipelined": "enableJobPipelined",
    "job_starving": "enableJobStarving",
    "job_enqueueable": "enableJobEnqueued",
    "task_order": "enableTaskOrder",
    "queue_order": "enableQueueOrder",
    "predicate": "enablePredicate",
    "node_order": "enableNodeOrder",
    "preemptable": "enablePreemptable",
    "reclaimable": "enableReclaimable",
    "preemptive": "enablePreemptive",
    "overused": "enabledOverused",
    "allocatable": "enabledAllocatable",
}
"""Volcano's switch for each function that has one, in Volcano's mixed spelling."""
