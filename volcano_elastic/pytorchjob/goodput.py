"""A job's GPU time by its uses, as trainers and pods tell and `status.elastic.goodput` keeps it.

Names are the trainer's, which are ml-goodput-measurement's where they mean the same. Each process'
every millisecond is in exactly one use, so the sum is all that was held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

USES: Mapping[str, str] = {
    "productive_training": "training that counts",
    "wasted_progress_from_disruption": "steps that were lost, and done again",
    "pod_startup": "pods on their nodes, before their containers ran",
    "program_startup": "starting, up to the first step",
    "elastic_reinitialization": "rendezvous and changes of size",
    "unproductive_checkpoint_save": "kept from training by commits",
    "data_loading_sync": "waiting for data",
    "hang": "hanging",
    "node_check": "checking nodes",
    "elastic_wait": "waiting for enough nodes, or for a place",
}
"""Each use, in words."""
PRODUCTIVE = "productive_training"
POD_STARTUP = "pod_startup"
"""The operator's to know; all others are the trainer's."""
TOLD = tuple(use for use in USES if use != POD_STARTUP)
"""Uses that a coordinator tells."""
_MOST = 1 << 62
_MOST_PROCESSES = 1 << 10


@dataclass(frozen=True, slots=True)
class Goodput:
    """One ledger, as a coordinator tells it."""

    ledger: str
    milliseconds: Mapping[str, int]
    """By use, times processes."""
    processes: int = 0
    """Processes of an agent; 0: not known."""


def read(told: object) -> Goodput | None:
    """Return what a coordinator's /status tells; None where it makes no sense."""
    if not isinstance(told, Mapping):
        return None
    name, spent = told.get("id"), told.get("milliseconds")
    if not isinstance(name, str) or not name or not isinstance(spent, Mapping):
        return None
    if spent.keys() != set(TOLD) or not all(_sensible(value) for value in spent.values()):
        return None
    processes: Any = told.get("processes")
    known = _sensible(processes) and processes <= _MOST_PROCESSES
    return Goodput(name, {use: int(spent[use]) for use in TOLD}, processes if known else 0)


def kept(known: object, told: Goodput | None) -> dict[str, Any]:
    """Return what `status.elastic.goodput` is to have: all ledgers' sums.

    A ledger that nobody remembers, as all of a job's pods were gone at once, is followed by
    another: what was known of it stays.

    Args:
        known: what it has.
    """
    before = known if isinstance(known, Mapping) else {}
    ledger, total = before.get("ledger"), _uses(before.get("milliseconds"))
    if told is None:
        return dict(before)
    if ledger not in (None, told.ledger) and not any(told.milliseconds.values()):
        # A coordinator that has just begun has a ledger of its own until an agent tells it which
        # one goes on; taken for another, that one would count twice when it is back.
        return dict(before)
    followed = before.get("followed")
    if ledger == told.ledger:
        earlier = _uses(before.get("earlier"))
    elif isinstance(followed, Mapping) and followed.get("ledger") == told.ledger:
        # Told again: a coordinator that heard newcomers first went on from it once a survivor came,
        # and with it goes what was counted meanwhile.
        earlier = _uses(followed.get("earlier"))
    else:
        earlier = dict(total)
    earlier[POD_STARTUP] = 0
    summed = {use: min(earlier[use] + told.milliseconds.get(use, 0), _MOST) for use in USES}
    summed[POD_STARTUP] = total[POD_STARTUP]
    if sum(summed.values()) < sum(total.values()):
        return dict(before)  # told by one that has not caught up
    found = {**before, "ledger": told.ledger, "milliseconds": summed, "earlier": earlier}
    if ledger is not None and ledger != told.ledger:
        found["followed"] = {"ledger": ledger, "earlier": _uses(before.get("earlier"))}
    return found


def with_pods(known: Mapping[str, Any], milliseconds: int, until: int) -> dict[str, Any]:
    """Return `status.elastic.goodput` after more pods' startups, of which `until` was the last."""
    spent = _uses(known.get("milliseconds"))
    spent[POD_STARTUP] += milliseconds
    return {**known, "milliseconds": spent, "podsUntil": until}


def with_places(
    known: Mapping[str, Any], milliseconds: int, granted: int, wanted: int
) -> dict[str, Any]:
    """Return `status.elastic.goodput` after so much more time in which a job had `granted` workers,
    and could have used `wanted`."""
    more = {"granted": granted * max(0, milliseconds), "wanted": wanted * max(0, milliseconds)}
    return {**known, **{name: _place(known, name) + added for name, added in more.items()}}


def _place(known: Mapping[str, Any], name: str) -> int:
    value: Any = known.get(name)
    return int(value) if _sensible(value) else 0


def places(known: Iterable[object]) -> tuple[int, int]:
    """Return the time that jobs' workers were granted, and what was wanted, in milliseconds times
    workers."""
    found = [one for one in known if isinstance(one, Mapping)]
    return sum(_place(one, "granted") for one in found), sum(_place(one, "wanted") for one in found)


def summed(known: Iterable[object]) -> dict[str, int]:
    """Return the sum over jobs' `status.elastic.goodput`, by use."""
    found = dict.fromkeys(USES, 0)
    for one in known:
        spent = _uses(one.get("milliseconds") if isinstance(one, Mapping) else None)
        for use in USES:
            found[use] += spent[use]
    return found


def share(milliseconds: Mapping[str, int]) -> float | None:
    """Return goodput: the part of all time that was training that counts; None of no time."""
    total = sum(milliseconds.values())
    return milliseconds.get(PRODUCTIVE, 0) / total if total else None


def _uses(found: object) -> dict[str, int]:
    spent = found if isinstance(found, Mapping) else {}
    return {use: int(spent[use]) if _sensible(spent.get(use)) else 0 for use in USES}


def _sensible(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
