"""Finds the earlier runs that a job is like: by the first of these facts that enough runs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

_FEATURES: dict[str, Callable[[Identity], str]] = {
    "by this user": lambda one: one.user,
    "with this image": lambda one: one.image,
    "on this data set": lambda one: one.data_set,
    "in this queue": lambda one: one.queue,
}
_LIKENESSES: tuple[tuple[str, ...], ...] = (
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

    def explained(self, figure: str = "p95") -> str:
        """Return what an estimate is worth, e.g. "p95 of 41 runs by this user with this image"."""
        if not self.runs:
            return "no earlier run is like this one"
        noun = "run" if len(self.runs) == 1 else "runs"
        return f"{figure} of {len(self.runs)} {noun} {self.likeness}"


def similar(job: Identity, runs: Sequence[Run]) -> Similar[Run]:
    """Return the runs that are most like the job: of the narrowest likeness that enough of them
    have, else of the one that most of them have."""
    best: Similar[Run] = Similar((), "")
    for likeness in _LIKENESSES:
        features = [_FEATURES[name] for name in likeness]
        if not all(feature(job) for feature in features):
            continue
        alike = tuple(r for r in runs if all(f(r) == f(job) for f in features))
        if len(alike) > len(best.runs):
            best = Similar(alike, " ".join(likeness))
        if len(best.runs) >= ENOUGH:
            break
    return best
