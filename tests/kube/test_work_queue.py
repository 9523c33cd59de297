"""A key is worked on by one at a time, and never forgotten."""

import asyncio

import pytest

from volcano_elastic.kube.work_queue import WorkQueue


async def test_a_key_added_twice_is_taken_once() -> None:
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    assert await queue.take() == "a"
    assert len(queue) == 0


async def test_a_key_added_while_worked_on_comes_again_only_after_done() -> None:
    queue = WorkQueue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await asyncio.wait_for(queue.take(), 120) == "a"


async def test_a_key_that_rests_is_left_alone_while_others_go_on() -> None:
    queue = WorkQueue()
    queue.add("huge")
    await queue.take()
    queue.done("huge", rest=0.05)
    queue.add("huge")
    queue.add("small")
    assert await queue.take() == "small"
    assert len(queue) == 0
    assert await asyncio.wait_for(queue.take(), 120) == "huge"
    queue.close()


async def test_failures_back_off_and_success_resets() -> None:
    queue = WorkQueue(base=0.001, cap=0.01)
    delays = []
    queue.add("a")
    for _ in range(8):
        await asyncio.wait_for(queue.take(), 120)
        delays.append(queue.failed("a"))
    assert max(delays) <= 0.01
    assert delays[5] > delays[0]
    await asyncio.wait_for(queue.take(), 120)
    queue.done("a")
    queue.add("a")
    await queue.take()
    assert queue.failed("a") <= 0.001
    queue.close()


@pytest.mark.parametrize("delays", [(600, 0.01), (0.01, 600)])
async def test_the_earliest_of_several_delays_holds(delays: tuple[float, float]) -> None:
    queue = WorkQueue()
    for delay in delays:
        queue.add_after("a", delay)
    assert await asyncio.wait_for(queue.take(), 120) == "a"
    queue.close()
