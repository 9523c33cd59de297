"""Words for amounts, counts and lists of objects."""

from __future__ import annotations

from collections.abc import Iterable

from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.snapshot.snapshot import Resources


def amount(requests: Iterable[tuple[Resources, int]]) -> str:
    """`2 GPUs`, for pods and how many of them; CPUs or pods where none asks for GPUs."""
    listed = list(requests)
    for name, word in ((GPU, "GPU"), ("cpu", "CPU")):
        total = sum(resources.get(name, 0) * count for resources, count in listed) / 1000
        if total:
            return plural(total, word)
    return plural(sum(count for _, count in listed), "pod")


def plural(number: float, word: str) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`."""
    return f"{number:.10g} {word}" if number == 1 else f"{number:.10g} {word}s"


def names(keys: Iterable[str], full: bool = False, most: int = 3) -> str:
    """`b`, `b and c`, `b, c, d and 4 others`; with their namespaces if `full`."""
    listed = [key if full else key.rpartition("/")[2] for key in keys]
    if len(listed) < 2:
        return "".join(listed)
    shown, rest = listed[:most], len(listed) - most
    if rest > 0:
        return f"{', '.join(shown)} and {plural(rest, 'other')}"
    return " and ".join([*([", ".join(shown[:-1])] if shown[:-1] else []), *shown[-1:]])
