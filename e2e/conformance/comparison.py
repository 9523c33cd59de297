"""Plays all cases on two servers at a time."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from e2e.conformance.case import Case, cases
from e2e.conformance.difference import Difference, differences
from e2e.conformance.player import Player

_AT_ONCE = 6


async def compare(real: Path, ours: Path, nouns: tuple[str, ...] = ()) -> list[Difference]:
    """What differs in the answers of two servers, given by kubeconfig, to the same cases."""
    run, played = secrets.token_hex(2), list(cases(nouns))
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def of(number: int, case: Case) -> list[Difference]:
        namespace = f"c{run}-{number}"
        async with at_once:
            answers = await asyncio.gather(one.play(case, namespace), other.play(case, namespace))
        return differences(case, namespace, *answers)

    async with (
        Player(real) as one,
        Player(ours) as other,
    ):
        found = await asyncio.gather(*(of(number, case) for number, case in enumerate(played)))
    return [one for some in found for one in some]
