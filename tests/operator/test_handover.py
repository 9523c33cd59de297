"""operator/handover.py: what the planner and the reconciles hand each other."""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pytorchjob.world import NOW, job_object
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.operator.handover import ADMISSION_LIMIT, Handover
from volcano_elastic.pytorchjob.observed import Resize

UP, DOWN = Resize(1, 3, "GrewIntoIdle", "m"), Resize(4, 2, "ShrunkForMinimum", "m")
ZERO = timedelta(0)


async def undone(handover: Handover, ends: list[tuple[str, ...]], limit: float = 0.05) -> set[str]:
    """Hands out two resizes, ends them as `ends` says, and returns which were not carried out."""
    waiting = asyncio.create_task(handover.carry_out({"t/a": UP, "t/b": DOWN}, limit))
    await asyncio.sleep(0)
    for name, key in ends:
        if name in ("done", "stale"):
            resize = handover.resize_of(key)
            assert resize is not None
            getattr(handover, name)(key, resize)
        else:
            getattr(handover, name)(key)
    return set(await waiting)


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ([("done", "t/a"), ("done", "t/b")], set()),
        ([("done", "t/a"), ("stale", "t/b")], {"t/b"}),
        ([("done", "t/a"), ("gone", "t/b")], set()),
        ([("done", "t/a")], {"t/b"}),
        ([], {"t/a", "t/b"}),
    ],
    ids=["done", "stale", "gone", "withdrawn", "nobody answers"],
)
async def test_the_planner_learns_how_each_resize_ended(
    ends: list[tuple[str, ...]], left: set[str]
) -> None:
    handover = Handover()
    assert await undone(handover, ends) == left
    assert handover.resize_of("t/a") is handover.resize_of("t/b") is None, "nothing stays behind"


async def test_the_planner_does_not_wait_for_reconciles_that_have_stopped() -> None:
    handover = Handover()
    waiting = asyncio.create_task(handover.carry_out({"t/a": UP}, 3600))
    await asyncio.sleep(0)
    handover.abandon()
    assert await waiting == {"t/a"}


async def test_a_resize_of_an_earlier_plan_answers_for_no_later_one() -> None:
    handover = Handover()
    assert await handover.carry_out({"t/a": UP}, 0.01) == {"t/a"}
    later = copy.copy(UP)
    waiting = asyncio.create_task(handover.carry_out({"t/a": later}, 0.05))
    await asyncio.sleep(0)
    handover.done("t/a", UP)
    assert handover.resize_of("t/a") is later
    assert await waiting == {"t/a"}


async def test_who_has_something_to_fetch_is_told_so() -> None:
    handover, told = Handover(), list[str]()
    handover.on_news(told.append)
    await undone(handover, [])
    assert told == ["t/a", "t/b"]
    handover.admit({"t/c": "u1"})
    handover.admit({"t/c": "u1"})
    assert told == ["t/a", "t/b", "t/c"], "once"


def job(**spec: Any) -> PyTorchJob:
    return parse(job_object(**spec))


def test_a_newcomers_pods_wait_for_a_plan_that_saw_it() -> None:
    handover, policy = Handover(), QueuePolicy("q")
    assert handover.wait(job(), policy, NOW) == ADMISSION_LIMIT
    handover.admit({"team/a": "u1"})
    assert handover.wait(job(), policy, NOW) == ZERO


def test_an_admission_is_of_one_job_and_not_of_its_name() -> None:
    handover, policy = Handover(), QueuePolicy("q")
    handover.admit({"team/a": "an earlier one"})
    assert handover.wait(job(), policy, NOW) > ZERO
    handover.admit({"team/a": "u1"})
    handover.gone("team/a")
    assert handover.wait(job(), policy, NOW) > ZERO


@given(st.integers(-3600, 7200))
def test_nobody_waits_for_longer_than_the_limit(seconds: int) -> None:
    wait = Handover().wait(job(), QueuePolicy("q"), NOW + timedelta(seconds=seconds))
    assert wait == max(ZERO, ADMISSION_LIMIT - timedelta(seconds=seconds))


def test_nobody_waits_for_a_plan_that_is_not_made() -> None:
    handover = Handover()
    assert handover.wait(job(), QueuePolicy("q", mode=Mode.OFF), NOW) == ZERO
    obj = job_object()
    worker = obj["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["schedulerName"] = "default-scheduler"
    assert handover.wait(parse(obj), QueuePolicy("q"), NOW) == ZERO
