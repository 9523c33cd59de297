"""Tells two plans of one snapshot apart: in what is decided, and in what is only said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from volcano_elastic.snapshot.snapshot import Snapshot

NAMES = {"stays": "unchanged"}
"""Fields of a plan that bore other names: the old one's, today's."""


Values = Mapping[str, Any]
"""A plan, or a part of one, as plain values."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A thing that two plans of one snapshot say otherwise, of one job, claim or queue."""

    decided: bool
    """False if it is only said, or remembered for the next plan."""
    what: str
    """Its class."""
    example: str


def differences(snapshot: Snapshot, old: Values, new: Values) -> Iterator[Difference]:
    """Return what two plans of a snapshot say otherwise, of all that both speak of."""
    old, new = _today(old), _today(new)
    who = _Who(snapshot)
    before, after = ({d["job"]: d for d in plan["decisions"]} for plan in (old, new))
    for key in _both(before, after):
        yield from _of_job(who(key), key, before.get(key), after.get(key))
    for key in _both(old["unchanged"], new["unchanged"]):
        a, b = old["unchanged"].get(key), new["unchanged"].get(key)
        if a and b and a != b:
            for side in a:
                if a[side] != b[side]:
                    what = f"{side.replace('_', ' ')}: {a[side]} → {b[side]}"
                    yield Difference(False, what, key)
    blocked = old["blocked"].keys() ^ new["blocked"].keys()
    for key in sorted((set(old["admitted"]) ^ set(new["admitted"])) - blocked):
        by = "old" if key in old["admitted"] else "new"
        yield Difference(True, f"{who(key)}: admitted by the {by} one alone", key)
    for part in ("blocked", "blocked_pods"):
        if part in old and part in new:
            yield from _of_blocked(who, old[part], new[part])
    for part in ("memory", "resting", "queues"):
        yield from _of_facts(part, old.get(part), new.get(part))


def _today(plan: Values) -> dict[str, Any]:
    return {NAMES.get(name, name): value for name, value in plan.items()}


def _both(one: Iterable[str], other: Iterable[str]) -> list[str]:
    return sorted({*one, *other})


class _Who:
    """Says what kind of claimant a key names."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._jobs = {job.key for job in snapshot.jobs}
        self._gangs = {gang.key for gang in snapshot.gangs}
        self._runs = {pod.job for pod in snapshot.pods if pod.node and not pod.terminating}

    def __call__(self, key: str) -> str:
        if key in self._jobs:
            return "a job with pods on nodes" if key in self._runs else "a job that waits"
        return "a gang" if key in self._gangs else "a pod"


def _of_job(who: str, key: str, old: Values | None, new: Values | None) -> Iterator[Difference]:
    a, b = _move(old), _move(new)
    example = f"{key}: {_text(old)} | {_text(new)}"
    if old is None or new is None or a != b:
        yield Difference(True, f"{who}: {a} → {b}", example)
        return
    if old["new"] != new["new"]:
        yield Difference(True, f"{who}: {a}, to another size", example)
    elif any(set(old.get(name, ())) != set(new.get(name, ())) for name in ("remove", "move")):
        yield Difference(True, f"{who}: {a}, by other pods", example)
    elif old["protect"] != new["protect"] or old["dry_run"] != new["dry_run"]:
        yield Difference(True, f"{who}: {a}, others protected or another mode", example)
    if old["reason"] != new["reason"]:
        yield Difference(False, f"{who}: reason {old['reason']} → {new['reason']}", example)
    elif old["message"] != new["message"] and old["new"] == new["new"]:
        yield Difference(False, f"{who}: {a} ({old['reason']}), in other words", example)


def _move(decision: Values | None) -> str:
    if decision is None:
        return "stays"
    by = decision["new"] - decision["old"]
    return "grows" if by > 0 else "shrinks" if by < 0 else "moves pods"


def _text(decision: Values | None) -> str:
    if decision is None:
        return "stays"
    pods = ", ".join([*decision["remove"], *decision.get("move", ())])
    sizes = f"{decision['old']} → {decision['new']} ({decision['reason']}"
    return f"{sizes}{', without ' + pods if pods else ''}): {decision['message']}"


def _of_blocked(who: _Who, old: Values, new: Values) -> Iterator[Difference]:
    for key in _both(old, new):
        a, b = old.get(key), new.get(key)
        if a is None or b is None:
            by = "new" if a is None else "old"
            yield Difference(
                True, f"{who(key)}: blocked for the {by} one alone", f"{key}: {a or b}"
            )
        elif a != b:
            yield Difference(False, f"{who(key)}: blocked, in other words", f"{key}: {a} | {b}")


def _of_facts(part: str, old: Any, new: Any) -> Iterator[Difference]:
    """Return the facts that differ, by the names of their fields, not by whose they are."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    if part == "memory":
        for name in sorted(old.keys() & new.keys()):
            if not _alike(old[name], new[name]):
                yield Difference(False, f"remembered {name}", f"{old[name]} | {new[name]}")
        return
    for key in _both(old, new):
        a, b = old.get(key), new.get(key)
        if a and b and isinstance(a, Mapping):
            for name in sorted(a.keys() & b.keys()):
                if a[name] != b[name]:
                    yield Difference(False, f"figure {name}", f"{key}: {a[name]} | {b[name]}")
        elif a != b:
            yield Difference(False, part, f"{key}: {a} | {b}")


def _alike(old: Any, new: Any) -> bool:
    """Compare the fields that both have of records by key."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or old.keys() != new.keys():
        return bool(old == new)
    for key, a in old.items():
        b = new[key]
        if isinstance(a, Mapping):
            if any(a[name] != b[name] for name in a.keys() & b.keys()):
                return False
        elif a != b:
            return False
    return True
