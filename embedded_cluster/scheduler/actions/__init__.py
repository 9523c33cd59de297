"""Actions: each changes the session through statements, in the order the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from embedded_cluster.scheduler.actions.allocate import allocate
from embedded_cluster.scheduler.actions.backfill import backfill
from embedded_cluster.scheduler.actions.enqueue import enqueue
from embedded_cluster.scheduler.actions.preempt import preempt
from embedded_cluster.scheduler.actions.reclaim import reclaim
from embedded_cluster.scheduler.session import Action

ACTIONS: Mapping[str, Action] = {
    "enqueue": enqueue,
    "allocate": allocate,
    "backfill": backfill,
    "preempt": preempt,
    "reclaim": reclaim,
}
