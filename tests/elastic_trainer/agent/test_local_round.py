"""The reports of a node's workers from round to round."""

from __future__ import annotations

from typing import Any, cast

from elastic_trainer.agent.local_round import LocalRound, Worker
from elastic_trainer.link.progress import ProgressPage


def with_workers(number: int, count: int = 2) -> LocalRound:
    local = LocalRound(number, local_world_size=count)
    for rank in range(count):
        page = ProgressPage.private()
        local.workers[rank] = Worker(cast(Any, None), rank, rank, 7 + rank, page, True, local)
    return local


def test_newcomers_have_a_state_once_all_have_come_to_it_and_until_they_fail() -> None:
    waiting = with_workers(0)
    first = waiting.next(4)
    first.joined = {0}
    assert not waiting.holds and not first.holds
    assert not first.next(5).holds, "the round ended before they came to its state"
    first.joined = {0, 1}
    assert first.holds
    second = first.next(5)
    assert second.holds, "they have what the round before had"
    second.failed = True
    assert not second.holds and not second.next(6).holds


def test_who_was_started_in_a_round_has_no_state_by_being_there() -> None:
    local = with_workers(4)
    assert local.linked and not local.holds
    local.joined = {0, 1}
    assert local.holds
