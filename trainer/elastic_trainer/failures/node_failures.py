"""The failures of one node's workers, as its agent keeps and tells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elastic_trainer.failures.failure import Exit, describe, keep_logs
from elastic_trainer.failures.failure_rule import FailureRule
from elastic_trainer.failures.record import bounded
from elastic_trainer.protocol.message import Failed

KEPT = 8
"""To tell a coordinator that was started anew."""


class NodeFailures:
    """Args:
    oom_kills: returns how many processes of this container the kernel has killed for memory.
    """

    def __init__(
        self,
        tell: Callable[[Failed], None],
        rules: Sequence[FailureRule] = (),
        oom_kills: Callable[[], int] = lambda: 0,
    ) -> None:
        self.kept: list[Failed] = []
        self._tell, self._rules, self._count = tell, rules, oom_kills
        self._oom_kills = oom_kills()

    def describe(self, exit_: Exit, note: str) -> Failed:
        """Before torchrun removes what the worker left; `note` says why the agent killed it."""
        before, self._oom_kills = self._oom_kills, self._count()
        oom_killed, log = self._oom_kills > before, keep_logs(exit_)
        return describe(exit_, oom_killed=oom_killed, note=note, log=log, rules=self._rules)

    def add(self, failed: Failed) -> None:
        if (failed.pid, failed.round) not in {(one.pid, one.round) for one in self.kept}:
            failed = bounded(failed)
            self.kept = [*self.kept, failed][-KEPT:]
            self._tell(failed)

    def secondary_failure(self, exit_: Exit) -> None:
        self.add(describe(exit_, oom_killed=False, note="gave way to another's failure"))
