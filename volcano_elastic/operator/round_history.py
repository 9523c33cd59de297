"""A job's newest rounds, as its status keeps them, also past the job's end; pure.

Entries have `describe`'s words. What the status knows of a round stays: a coordinator that begins
anew has found the running one, and knows neither when it began nor what it cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.operator.round_report import ReportedRound

FIELD = "rounds"
MOST = 10
"""Rounds that are kept, the newest ones."""
_CLOCK = timedelta(seconds=5)
"""A round's time is told anew with each answer, and moves by less."""


def to_write(
    known: Sequence[Mapping[str, Any]], reported: Sequence[ReportedRound], *, last: bool = False
) -> list[dict[str, Any]] | None:
    """Return the status' field; None where it need not be written.

    Args:
        last: nothing more is heard of them, so that their newest steps are written, too.
    """
    kept, before = merged(known, reported), [dict(one) for one in known]
    if not last:  # each is a call to the API server
        return None if _without_steps(kept) == _without_steps(before) else kept
    return None if kept == before else kept


def merged(
    known: Sequence[Mapping[str, Any]], reported: Sequence[ReportedRound]
) -> list[dict[str, Any]]:
    """Return the newest rounds of a job.

    Args:
        known: what the status has.
        reported: by number.
    """
    rounds, clock_set = [dict(one) for one in known], _clock_set(known, reported)
    for one in reported:
        place = _place(rounds, one, clock_set)
        if place is not None:
            rounds[place] |= _news(rounds[place], one)
        # Numbers begin anew where all agents were gone at once.
        elif (
            not rounds
            or one.number > rounds[-1]["round"]
            or _later(rounds[-1], one) - clock_set > _CLOCK
        ):
            rounds.append(_entry(one))
    return rounds[-MOST:]


def _clock_set(known: Sequence[Mapping[str, Any]], reported: Sequence[ReportedRound]) -> timedelta:
    """Return by how much the coordinator's clock was set since the newest known round was told."""
    again = (one for one in reversed(reported) if known and _is_same(known[-1], one))
    return next((_later(known[-1], one) for one in again), timedelta(0))


def _is_same(known: Mapping[str, Any], one: ReportedRound) -> bool:
    return (known["round"], known.get("reason", "")) == (one.number, one.reason)


def _later(known: Mapping[str, Any], one: ReportedRound) -> timedelta:
    return one.made - moment.parse(known["time"])


def _place(
    rounds: Sequence[Mapping[str, Any]], one: ReportedRound, clock_set: timedelta
) -> int | None:
    """Return where a round stands; None if it is not there."""
    for place in reversed(range(len(rounds))):
        known = rounds[place]
        if known["round"] != one.number:
            continue
        found_again = place == len(rounds) - 1 and _is_same(known, one)
        if found_again or abs(_later(known, one) - clock_set) < _CLOCK:
            return place
    return None


def _entry(one: ReportedRound) -> dict[str, Any]:
    made = {"round": one.number, "nodes": one.nodes, "time": moment.micro_timestamp(one.made)}
    return made | {"reason": one.reason} | _news({}, one)


def _news(known: Mapping[str, Any], one: ReportedRound) -> dict[str, Any]:
    found = {
        "pauseSeconds": known.get("pauseSeconds", _rounded(one.pause)),
        "firstStep": known.get("firstStep", one.first),
        "lastStep": one.last if one.last is not None else known.get("lastStep"),
        "lost": max(one.lost, known.get("lost", 0)) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _without_steps(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return them without the newest one's newest step, which moves on all the time."""
    found = [dict(one) for one in rounds]
    if found:
        found[-1].pop("lastStep", None)
    return found
