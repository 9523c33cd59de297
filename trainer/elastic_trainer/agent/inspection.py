"""Looks at this node's workers: where they are while no step comes, or while one does not leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from elastic_trainer.agent.local_round import LocalRound, Worker
from elastic_trainer.link.message import AskWhereabouts
from elastic_trainer.link.stack import session_cpu_seconds, take_stack
from elastic_trainer.protocol.message import AgentMessage, Failed, Inspected, WorkerReport

LOOK_SECONDS = 1.0
"""For which workers' CPU time is measured, and in which their Python has to answer."""
ENDED_BY = -15
"""torchrun's SIGTERM ends workers that stay."""

log = logging.getLogger(__name__)


class Inspector:
    """Answers the coordinator's questions, one after another.

    Args:
        tell: takes the answers.
    """

    def __init__(self, tell: Callable[[AgentMessage], None]) -> None:
        self._tell = tell
        self._task: asyncio.Task[None] | None = None

    def begin(self, local: LocalRound) -> None:
        """Looks at the workers of a round, unless that is under way; on the agent's loop."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._inspect(local))

    async def _inspect(self, local: LocalRound) -> None:
        self._tell(await inspect(local))


async def inspect(local: LocalRound) -> Inspected:
    """Return what the workers of a round do, once they have been looked at for a while."""
    number = local.round
    workers = [worker for _, worker in sorted(local.workers.items())]
    for worker in workers:
        worker.whereabouts = None
        worker.tell(AskWhereabouts())
    before = [session_cpu_seconds(worker.pid) for worker in workers]
    began = time.monotonic()
    stacks = await _stacks(workers)
    await asyncio.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - began)))
    seconds = time.monotonic() - began
    reports = []
    for worker, stack, used in zip(workers, stacks, before, strict=True):
        noted, told = worker.progress.read(), worker.whereabouts
        reports.append(
            WorkerReport(
                rank=worker.rank,
                pid=worker.pid,
                step=noted.step,
                collectives=told.collectives if told is not None else -1,
                answers=told is not None,
                committing=bool(noted.commits),
                cpus=max(0.0, session_cpu_seconds(worker.pid) - used) / seconds,
                stack=stack,
                flight=told.flight if told is not None else "",
            )
        )
    return Inspected(number, tuple(reports))


async def record_late(local: LocalRound, seconds: float, add: Callable[[Failed], None]) -> None:
    """Tell where those workers sit that are to be ended, as they did not come out of their round.

    Args:
        seconds: that they had.
        add: takes a failure of each.
    """
    late = [worker for worker in local.workers.values() if not worker.idle]
    for worker, stack in zip(late, await _stacks(late), strict=True):
        which = f"out of round {local.round}, which was over"
        why = f"did not come {which}, within {seconds:.0f} s"
        if worker.stuck:
            why = f"can't come {which}: gloo waits to send to a peer that is gone"
        log.warning("rank %d %s: it is ended; it was here:\n%s", worker.rank, why, stack)
        add(
            Failed(
                round=local.round,
                rank=worker.rank,
                local_rank=worker.local_rank,
                pid=worker.pid,
                code=ENDED_BY,
                message=why,
                stack=stack,
                time=time.time(),
                step=worker.progress.read().step,
            )
        )


async def _stacks(workers: Sequence[Worker]) -> list[str]:
    return await asyncio.gather(*(take_stack(one.pid, one.error_file) for one in workers))
