"""The informer's store after lists, watches and writes, in whatever order they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.patience import PATIENCE
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import PODS, Object


def pod(name: str, version: int, uid: str = "") -> Object:
    meta = {"name": name, "namespace": "team", "uid": uid or f"u-{name}"}
    return {"metadata": meta | {"resourceVersion": str(version)}}


def listed(version: int, *pods: Object) -> bytes:
    return json.dumps({"items": pods, "metadata": {"resourceVersion": str(version)}}).encode()


def events(*told: tuple[str, Object]) -> bytes:
    lines = (json.dumps({"type": kind, "object": obj}) + "\n" for kind, obj in told)
    return "".join(lines).encode()


EXPIRED = events(("ERROR", {"code": 410, "reason": "Expired"}))


class Followed:
    """An informer, what its handlers were told, and what it asked the server for."""

    def __init__(self, informer: Informer) -> None:
        self.informer = informer
        self.told: list[tuple[str | None, str | None]] = []
        """uids before and after each change."""
        self.asked: list[tuple[bool, str]] = []
        """True for a watch, and the version that it began from; one a request."""
        informer.on_change(lambda old, new: self.told.append((_uid(old), _uid(new))))

    @property
    def versions(self) -> dict[str, str]:
        return {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in self.informer}


def _uid(obj: Object | None) -> str | None:
    return None if obj is None else str(obj["metadata"]["uid"])


@pytest.fixture
def followed() -> Followed:
    """One that is not run: it has its writer's words alone."""
    return Followed(Informer(Client(Access("http://127.0.0.1", {}, None)), PODS))


@asynccontextmanager
async def served(*answers: bytes, before: tuple[Object, ...] = ()) -> AsyncIterator[Followed]:
    """One that runs until the server has given these answers, to a list or a watch each, and was
    asked once more; `before`: writes entered first."""
    left, all_given, over = list(answers), asyncio.Event(), asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.Response:
        query = request.query
        found.asked.append(("watch" in query, query.get("resourceVersion", "")))
        if left:
            return web.Response(body=left.pop(0), content_type="application/json")
        all_given.set()
        await over.wait()
        return web.Response(status=500)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        access = Access(f"http://127.0.0.1:{runner.addresses[0][1]}", {}, None)
        async with Client(access) as client:
            found = Followed(Informer(client, PODS))
            for obj in before:
                found.informer.note_write(obj)
            running = asyncio.create_task(found.informer.run())
            try:
                async with asyncio.timeout(PATIENCE):
                    await all_given.wait()
                yield found
            finally:
                over.set()
                running.cancel()
    finally:
        await runner.cleanup()


def test_a_write_is_there_before_its_event_comes(followed: Followed) -> None:
    followed.informer.note_write(pod("a", 7))
    assert followed.versions == {"u-a": "7"} and followed.told == [(None, "u-a")]
    followed.informer.note_write(pod("a", 7))
    assert followed.told == [(None, "u-a")], "its own event is nothing new"


def test_the_newer_version_wins_whichever_comes_last(followed: Followed) -> None:
    for version in (7, 6, 9, 8):
        followed.informer.note_write(pod("a", version))
    assert followed.versions == {"u-a": "9"} and len(followed.told) == 2


def test_an_answer_that_comes_after_the_deletion_brings_nothing_back(followed: Followed) -> None:
    followed.informer.note_write(pod("a", 5))
    followed.informer.drop(pod("a", 6))
    followed.informer.note_write(pod("a", 5))
    assert followed.versions == {} and followed.told == [(None, "u-a"), ("u-a", None)]
    followed.informer.note_write(pod("a", 9, "another"))
    assert followed.versions == {"another": "9"}, "but one of its name is another"


def test_a_deletion_of_one_takes_no_other_of_its_name(followed: Followed) -> None:
    followed.informer.note_write(pod("a", 9, "new"))
    followed.informer.drop(pod("a", 8, "old"))
    followed.informer.note_write(pod("a", 7, "older"))
    assert followed.versions == {"new": "9"}


async def test_who_was_deleted_while_the_watch_had_expired_is_told() -> None:
    a, b = pod("a", 2), pod("b", 3)
    async with served(listed(5, a, b), EXPIRED, listed(9, b)) as found:
        assert found.versions == {"u-b": "3"}
        assert found.told == [(None, "u-a"), (None, "u-b"), ("u-a", None)]
        assert found.asked == [(False, ""), (True, "5"), (False, ""), (True, "9")]


async def test_a_list_takes_away_no_write_that_is_newer_than_it() -> None:
    async with served(listed(5, pod("a", 2)), before=(pod("mine", 6), pod("old", 4))) as found:
        assert found.versions == {"u-a": "2", "u-mine": "6"}


async def test_a_watch_that_is_cut_goes_on_from_its_last_event() -> None:
    first = events(("ADDED", pod("b", 6)), ("BOOKMARK", {"metadata": {"resourceVersion": "8"}}))
    second = events(("MODIFIED", pod("b", 9)), ("DELETED", pod("a", 10)))
    async with served(listed(5, pod("a", 2)), first, second) as found:
        assert found.versions == {"u-b": "9"}
        assert found.asked == [(False, ""), (True, "5"), (True, "8"), (True, "10")]
        assert found.informer.lists == 1


async def test_one_that_a_selector_left_out_for_a_while_comes_back() -> None:
    gone = events(("DELETED", pod("a", 6)), ("ADDED", pod("a", 7)))
    async with served(listed(5, pod("a", 2)), gone) as found:
        assert found.versions == {"u-a": "7"}
