"""How many examples a property takes."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return how many examples the profile in use gives a property that takes `count` where others
    take hypothesis' usual 100: half in `make test`, a quarter in `make check`, thousands with
    `long`."""
    return max(5, count * settings.default.max_examples // 100)
