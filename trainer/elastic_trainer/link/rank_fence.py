"""Holds a fence as one rank sees it: where it waits, where it is to stop, what it has said; pure.

Why a rank never runs past a fence: asked for its step, a rank answers the one in progress and from
then on holds at the end of the step after it, until it is told where to stop; the stop step is the
greatest answer plus one, hence no smaller than any rank's hold. Asked to stop at once, as where
steps are long, it holds at the end of the step in progress, and the greatest answer is the stop.
"""

from __future__ import annotations

from elastic_trainer.link.message import AskStep, Fenced, StepInProgress, StopAt


class RankFence:
    """The fence that a rank was asked for last, if any. Its caller sees to it that one thread at a
    time is in it."""

    def __init__(self) -> None:
        self._hold: int | None = None
        self._stop: int | None = None
        self._stands = False
        """It has said that it stands at the stop that was told last."""
        self._parked_at: int | None = None

    @property
    def asked(self) -> bool:
        """Return whether there is one, which has not been cancelled."""
        return self._hold is not None or self._stop is not None

    @property
    def stop_known(self) -> bool:
        """Return whether the rank was told where to stop."""
        return self._stop is not None

    def ask(self, asked: AskStep, step: int) -> StepInProgress:
        """Return the answer of a rank whose last step was `step` (-1: none), and hold it."""
        begun = step + 1 if step >= 0 else -1
        self._hold = begun if asked.at_once and begun >= 0 else begun + 1
        self._stop = None
        return StepInProgress(asked.fence, begun)

    def stop_at(self, stop: StopAt) -> Fenced | None:
        """Take a stop; return what a rank says that waits there already."""
        self._stop, self._stands = stop.step, False
        return None if self._parked_at is None else Fenced(stop.fence, self._parked_at)

    def cancel(self) -> None:
        """Holds no more: nobody leaves, or the round that it was meant for is over."""
        self._hold = self._stop = None

    def may_decide(self, step: int) -> bool:
        """Return whether it is known if the rank goes on after `step`."""
        return self._hold is None or self._stop is not None or step < self._hold

    def passes(self, step: int) -> bool:
        """Return whether the rank goes on after `step`."""
        return self._stop is None or step < self._stop

    def stand(self) -> bool:
        """Return whether the rank has to say that it stands at the stop: it may go on beyond, to
        hand over, and says so once."""
        said, self._stands = self._stands, True
        return not said

    def park(self, step: int) -> None:
        """Waits there from now on, to be restarted or to exit, which is said at each further
        stop."""
        self._parked_at = step
