"""Finds the earlier runs that a job is like: by the first of these facts that enough runs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

ENOUGH = 3
"""Fewer runs than this say too little, where a wider likeness has more."""


class Identity(Protocol):
    """The facts that jobs are compared by; empty: not known, which is like nothing."""

    @property
    def user(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def image(self) -> str: ...
    @property
    def data_set(self) -> str: ...


Run = TypeVar("Run", bound=Identity)

_IMAGE = "with this image"
_FEATURES: dict[str, Callable[[Identity], str]] = {
    "by this user": lambda one: one.user,
    _IMAGE: lambda one: one.image,
    "on this data set": lambda one: one.data_set,
    "in this queue": lambda one: one.queue,
}
Likeness = tuple[str, ...]
LIKENESSES: tuple[Likeness, ...] = (
    ("by this user", "with this image", "on this data set"),
    ("by this user", "with this image"),
    ("by this user", "on this data set"),
    ("with this image", "on this data set"),
    ("with this image", "in this queue"),
    ("with this image",),
    ("by this user",),
)


@dataclass(frozen=True, slots=True)
class Similar(Generic[Run]):
    runs: tuple[Run, ...]
    likeness: str
    """In words: "by this user with this image"; empty if there are none."""
    facts: int = 0
    """How many facts they share with the job."""
    same_image: bool = False

    @property
    def is_close(self) -> bool:
        """Return whether they say enough to ask for less memory than somebody wrote: what one user
        does differs too much, and so do two runs."""
        return self.facts > 1 and len(self.runs) >= ENOUGH

    def explained(self, figure: str = "p95") -> str:
        """Return what an estimate is worth, e.g. "p95 of 41 runs by this user with this image"."""
        if not self.runs:
            return "no earlier run is like this one"
        noun = "run" if len(self.runs) == 1 else "runs"
        return f"{figure} of {len(self.runs)} {noun} {self.likeness}"


def key(one: Identity, likeness: Likeness) -> tuple[str, ...] | None:
    """Return the facts that runs of one likeness share; None: one of them isn't known."""
    found = tuple(_FEATURES[name](one) for name in likeness)
    return found if all(found) else None


def narrowest(alike: Callable[[Likeness], tuple[Run, ...]]) -> Similar[Run]:
    """Return the runs of the narrowest likeness that enough of them have, else of the one that most
    of them have.

    Args:
        alike: the runs that have a likeness with the job.
    """
    best: Similar[Run] = Similar((), "")
    for likeness in LIKENESSES:
        runs = alike(likeness)
        if len(runs) > len(best.runs):
            best = Similar(runs, " ".join(likeness), len(likeness), _IMAGE in likeness)
        if len(best.runs) >= ENOUGH:
            break
    return best
