"""How a step's samples are divided among the ranks: evenly, or less for some. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FULL = 1000
"""The share of a rank that takes as much as most do."""


@dataclass(frozen=True, slots=True)
class Division:
    """Divides evenly where nothing else is said.

    Every rank must have the same one in the same step, or samples would be lost or repeated.
    """

    reduced: tuple[tuple[int, int], ...] = ()
    """Ranks that take less, ascending, each with its share of `FULL`."""

    def bounds(self, rank: int, taken: int, world: int) -> tuple[int, int]:
        """Return the first of `taken` samples that `rank` takes, and the first that it doesn't.

        Ranks follow one another without a gap. Each takes its part by share, rounded either way.
        """
        if not self.reduced:
            each, extra = divmod(taken, world)
            start = rank * each + min(rank, extra)
            return start, start + each + (rank < extra)
        whole = self._before(world)
        return taken * self._before(rank) // whole, taken * self._before(rank + 1) // whole

    def largest(self, taken: int, world: int) -> int:
        """Return how many samples no rank takes more than."""
        return -(-taken * FULL // self._before(world))

    def _before(self, rank: int) -> int:
        """Return the shares of all ranks before this one."""
        return FULL * rank - sum(FULL - share for one, share in self.reduced if one < rank)

    def encode(self) -> str:
        """Return it as a text, empty where it is even."""
        return " ".join(f"{rank}={share}" for rank, share in self.reduced)

    @classmethod
    def decode(cls, text: str) -> Division:
        """Return what `encode` made a text of. Raises ValueError."""
        pairs = (word.partition("=") for word in text.split())
        return cls(tuple((int(rank), int(share)) for rank, _, share in pairs))


EVEN = Division()
