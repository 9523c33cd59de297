"""Earlier runs in memory, grouped by what jobs are alike in, so that advice asks no database and
costs the same however many there are. Pure but for its own growth."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from volcano_elastic.api.amount import Bytes
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.estimate.job_load import JobLoad
from volcano_elastic.brain.estimate.similarity import (
    LIKENESSES,
    Identity,
    Similar,
    key,
    narrowest,
)
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.job_load import SERVING, load_of

_NEWEST = 500
"""So many runs of a likeness count: older ones would say of others' ways."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that has ended, as far as it tells others what they need."""

    uid: str
    user: str
    queue: str
    image: str
    data_set: str
    busiest: Mapping[str, Amounts]
    """By role, as in `Run`."""
    load: JobLoad
    checkpoint: Bytes | None = None
    """Bytes that its servers' rows took at last; None: nobody told."""


class Past:
    """Runs that have ended, by role and likeness.

    Args:
        runs: oldest first. Those that go on, or were never measured, do not count.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._uids = set[str]()
        self._groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], deque[PastRun]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Takes a run that has ended; one that is known already counts once."""
        busiest = run.busiest
        if not run.outcome or not busiest or run.uid in self._uids:
            return
        self._uids.add(run.uid)
        found = PastRun(
            *(run.uid, run.user, run.queue, run.image, run.data_set, busiest, load_of(run)),
            run.checkpoint.get(SERVING),
        )
        for likeness in LIKENESSES:
            shared = key(found, likeness)
            if shared is None:
                continue
            for role in busiest:
                group = (role, likeness, shared)
                self._groups.setdefault(group, deque(maxlen=_NEWEST)).append(found)

    def similar(self, job: Identity, role: str) -> Similar[PastRun]:
        """Return the runs that are most like the job, of those that had pods of the role."""

        def alike(likeness: tuple[str, ...]) -> tuple[PastRun, ...]:
            shared = key(job, likeness)
            return () if shared is None else tuple(self._groups.get((role, likeness, shared), ()))

        return narrowest(alike)
