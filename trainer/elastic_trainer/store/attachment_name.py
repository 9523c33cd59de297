"""Names of attachments, and what they tell of who needs whom. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from elastic_trainer.store.commit import STEP

Identity = tuple[int, int]
"""Run and step."""

_NAME = re.compile(r"(?!step-)([a-z]+)-(\d+)-(\d+)(?:-from-(\d+)-(\d+))?(?:-.*)?")


def name_of(kind: str, identity: Identity, base: Identity | None = None) -> str:
    """Return the name of the attachments of this run and step; in a remote storage it goes on.

    Args:
        base: of the attachments that they need; None: none.
    """
    name = f"{kind}-{identity[0]}-{identity[1]}"
    return name if base is None else f"{name}-from-{base[0]}-{base[1]}"


def superfluous(names: Sequence[str], kind: str, newest: int) -> list[str]:
    """Return the attachments of a kind that may go: older than the `newest` ones, of no step that a
    commit in the folder is of, and of the base of none of these."""
    steps = _committed(names)
    found = sorted(_of(names, kind))
    needed = {base for _, base, _ in found[-newest:]}
    needed |= {base for (_, step), base, _ in found if step in steps}
    return [name for _, base, name in found if base not in needed]


def stands_alone(names: Sequence[str], kind: str, base: Identity) -> bool:
    """Tell whether no commit in the folder has attachments of this kind with another base."""
    steps = _committed(names)
    return not any(step in steps and other != base for (_, step), other, _ in _of(names, kind))


def bases_by_commit(names: Sequence[str]) -> Mapping[Identity, frozenset[str]]:
    """Return by run and step the attachments, of any kind, that all of its attachments need."""
    found: dict[Identity, frozenset[str]] = {}
    for kind in sorted({match[1] for name in names if (match := _NAME.fullmatch(name))}):
        for identity, base, _ in _of(names, kind):
            found[identity] = found.get(identity, frozenset()) | {name_of(kind, base)}
    return found


def _committed(names: Sequence[str]) -> set[int]:
    return {int(match[1]) for name in names if (match := STEP.fullmatch(name))}


def _of(names: Sequence[str], kind: str) -> list[tuple[Identity, Identity, str]]:
    """Return each attachment's identity, that of its base, and its name."""
    found = []
    for name in names:
        if (match := _NAME.fullmatch(name)) and match[1] == kind:
            run, step = int(match[2]), int(match[3])
            base = (int(match[4]), int(match[5])) if match[4] else (run, step)
            found.append(((run, step), base, name))
    return found
