"""Actions: each changes the session through statements, in the order the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from volcano_elastic.local.scheduler.actions.allocate import allocate
from volcano_elastic.local.scheduler.actions.backfill import backfill
from volcano_elastic.local.scheduler.actions.enqueue import enqueue
from volcano_elastic.local.scheduler.actions.preempt import preempt
from volcano_elastic.local.scheduler.actions.reclaim import reclaim
from volcano_elastic.local.scheduler.session import Action

ACTIONS: Mapping[str, Action] = {
    "enqueue": enqueue,
    "allocate": allocate,
    "backfill": backfill,
    "preempt": preempt,
    "reclaim": reclaim,
}
