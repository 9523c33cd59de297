"""Refuses snapshots that no cluster could be in: a slip in a file edited by hand is reported,
instead of planned with. What clusters do show passes: a size outside [min, max], a queue that isn't
there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta

from volcano_elastic.api.problem import Problem, shown
from volcano_elastic.api.pytorchjob_shape import SCALERS
from volcano_elastic.snapshot.codec import Observation
from volcano_elastic.snapshot.snapshot import SPEEDS

_LEAST: Mapping[str, float] = dict.fromkeys(
    ("max_step", "node_unit", "times", "weight", "young_weight"), 1
) | {"speeds": SPEEDS[0]}
"""Least value of a number, by its field, where it is not 0."""
_MOST: Mapping[str, float] = {"min_efficiency": 1, "percent": 100, "speeds": SPEEDS[1]}
_LARGEST = 2**63 - 1
_LONGEST = timedelta(seconds=3.2e9)
"""Longest duration that a policy may say."""
_YEARS = range(1900, 3000)
"""Such times and spans add up to no date that a calendar lacks."""
_ANY = frozenset({"priority", "tolerations"})
"""Fields whose numbers may be negative."""


def problems(observed: Observation) -> Iterator[Problem]:
    """With paths as the codec's errors have them; none if a plan can be made of it."""
    snapshot = observed.snapshot
    yield from _within(observed, "$", "")
    for kind in ("nodes", "pods", "jobs", "gangs", "queues", "policies", "quotas"):
        yield from _names(kind, getattr(snapshot, kind))
    for i, job in enumerate(snapshot.jobs):
        path = f"$.snapshot.jobs[{i}]"
        if job.max < job.min:
            yield Problem(f"{path}.max", f"must be at least min, {job.min}, found {job.max}")
        if job.scaler not in SCALERS:
            found = f"must be one of {', '.join(SCALERS)}, found {shown(job.scaler)}"
            yield Problem(f"{path}.scaler", found)
    for i, policy in enumerate(snapshot.policies):
        path = f"$.snapshot.policies[{i}]"
        if 0 < policy.rebalance.gap < 1:
            found = f"must be 0 (off) or at least 1, found {policy.rebalance.gap:g}"
            yield Problem(f"{path}.rebalance.gap", found)
        if policy.headroom.amount is not None and policy.headroom.percent is not None:
            yield Problem(f"{path}.headroom", "must have amount or percent, found both")


def _names(kind: str, values: Iterable[object]) -> Iterator[Problem]:
    """Return a problem for each name that two values bear."""
    field = "key" if kind in ("pods", "jobs", "gangs", "quotas") else "name"
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        name, path = getattr(value, field), f"$.snapshot.{kind}[{i}].{field}"
        at = first.setdefault(name, i)
        if at != i:
            yield Problem(path, f"must differ from {kind}[{at}]'s, found {shown(name)} again")
        elif not name and kind != "policies":
            yield Problem(path, "must not be empty")


def _within(value: object, path: str, field: str) -> Iterator[Problem]:
    """Numbers, spans and times out of bounds; `field` is the innermost one that has a name."""
    if value is None or isinstance(value, str | bool) or field in _ANY:
        return
    if isinstance(value, int | float):
        least, most = _LEAST.get(field, 0), _MOST.get(field, _LARGEST)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            yield Problem(path, f"must be {bound}, found {shown(value)}")
    elif isinstance(value, timedelta):
        if not timedelta(0) <= value <= _LONGEST:
            bound = f"from 0 to {_LONGEST.total_seconds():g} s"
            yield Problem(path, f"must be {bound}, found {value.total_seconds():g} s")
    elif isinstance(value, datetime):
        if value.year not in _YEARS:
            found = f"must be a year from {_YEARS[0]} to {_YEARS[-1]}, found {value.year}"
            yield Problem(path, found)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if field == "speeds" and not 0 < key <= _LARGEST:
                yield Problem(f"{path}[{key}]", "must be a size of at least 1")
            yield from _within(one, f"{path}[{key}]", field)
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from _within(one, f"{path}[{i}]", field)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _within(getattr(value, each.name), f"{path}.{each.name}", each.name)
