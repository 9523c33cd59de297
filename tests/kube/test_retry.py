"""One transient error, one policy: volcano_elastic/kube/retry.py."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from tests.kube.test_kubeconfig import EMPTY, serving
from volcano_elastic.kube import retry
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import PODS

QUICK = retry.RetryPolicy("test", (retry.Interrupted,), None, 0.001, 0.002)


async def test_a_reason_is_logged_once_and_a_new_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reasons = iter(["no route", "no route", "no route", "refused", "refused"])

    async def operation() -> str:
        for reason in reasons:
            raise retry.Interrupted(reason)
        return "done"

    told: list[str] = []
    with caplog.at_level(logging.WARNING):
        assert await QUICK.call(operation, what="asking", failed=told.append) == "done"
    said = [record.message for record in caplog.records]
    assert said == ["asking: no route; trying again", "asking: refused; trying again"]
    assert told == ["no route"] * 3 + ["refused"] * 2


async def test_a_function_that_returns_an_awaitable_is_awaited_and_tried_again() -> None:
    tries: list[int] = []

    async def operation(name: str) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise retry.Interrupted("down")
        return name

    assert await QUICK.call(lambda: operation("done"), what="asking") == "done"


async def test_other_errors_and_the_last_try_are_raised() -> None:
    async def broken() -> None:
        raise LookupError("a defect")

    with pytest.raises(LookupError):
        await QUICK.call(broken, what="asking")

    tries = 0

    async def never() -> None:
        nonlocal tries
        tries += 1
        raise retry.Interrupted("down")

    few = retry.RetryPolicy("test", (retry.Interrupted,), 3, 0.001, 0.002)
    with pytest.raises(retry.Interrupted, match="down"):
        await few.call(never, what="asking")
    assert tries == 3


@pytest.mark.parametrize("refused", [0, 2, 9])
async def test_429_is_asked_again_a_few_times(refused: int) -> None:
    asked = 0

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked <= refused:
            body = {"reason": "TooManyRequests", "message": "busy"}
            return web.json_response(body, status=429, headers={"Retry-After": "0"})
        return web.json_response(EMPTY)

    async with (
        serving(answer) as port,
        Client(Access(f"http://127.0.0.1:{port}", {}, None)) as client,
    ):
        if refused < 4:
            assert (await client.list(PODS))["items"] == []
            assert asked == refused + 1
        else:
            with pytest.raises(ApiError, match="429 TooManyRequests: busy"):
                await client.list(PODS)
            assert asked == 4


async def test_a_policy_ends_when_it_is_cancelled() -> None:
    async def never() -> None:
        raise retry.Interrupted("down")

    task = asyncio.create_task(QUICK.call(never, what="asking"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
