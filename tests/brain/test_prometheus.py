"""Loads as Prometheus tells them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.brain.world import amounts
from volcano_elastic.brain.prometheus import PrometheusError, read, used


def vector(*samples: tuple[str, str]) -> dict[str, Any]:
    result = [
        {"metric": {"namespace": "team", "pod": pod}, "value": [1767268800.0, value]}
        for pod, value in samples
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


async def asked(answers: dict[str, Any], status: int = 200) -> Any:
    """Return what `used` finds at a server that answers each query by a word in it."""

    async def query(request: web.Request) -> web.Response:
        told = request.query["query"]
        assert 'container="pytorch"' in told
        word = next(word for word in answers if word in told)
        return web.json_response(answers[word], status=status)

    app = web.Application()
    app.add_routes([web.get("/api/v1/query", query)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return await used(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    finally:
        await runner.cleanup()


def test_pods_of_which_both_are_known_are_measured() -> None:
    cpu = vector(("a-worker-0", "1.5"), ("a-worker-1", "2"), ("a-worker-2", "NaN"))
    memory = vector(("a-worker-0", str(3 << 30)), ("a-worker-2", "5"))
    found = asyncio.run(asked({"cpu_usage": cpu, "working_set": memory}))
    assert found == {("team", "a-worker-0"): amounts(1.5, 3)}


def test_a_refusal_says_where() -> None:
    with pytest.raises(PrometheusError, match=r"Prometheus at http://127.0.0.1:\d+/: 503"):
        asyncio.run(asked({"cpu_usage": {}}, status=503))


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"status": "error", "error": "x"}, {"data": {"resultType": "matrix"}}],
)
def test_another_answer_is_refused(answer: Any) -> None:
    with pytest.raises(PrometheusError, match="expected a vector"):
        read(answer)
