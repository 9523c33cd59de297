"""Pods that a plan removes give up their room."""

from __future__ import annotations

from collections.abc import Iterable

from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing


def leave(standing: Standing, pods: Iterable[Pod], nodes: NodeRoom, queues: QueueRoom) -> None:
    """These pods of the job, already dropped, hold no room of its queue any more; that of their
    nodes is coming."""
    for pod in pods:
        if pod.node is None:
            continue
        queues.use(standing.job.queue, standing.shape.vector, -1)
        n = nodes.index(pod.node)
        if n is not None:
            nodes.leave(n, standing.shape.vector)
