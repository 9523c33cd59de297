"""Writes what each plan found into the status of the QueuePolicies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime

import aiohttp

from volcano_elastic.api import merge_patch
from volcano_elastic.kube.client import ApiError, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object
from volcano_elastic.operator.queue_policy_status import Seen, Status, status
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.queue_policy.decision import Decision, Plan

_log = logging.getLogger(__name__)
_AT_MOST_EVERY_SECONDS = 1.0
_AT_ONCE = 8


class PolicyReport:
    """`planned` and `failed` only note what there is to say; `run` writes it, so that no plan
    waits for the API server, and at most once a second."""

    def __init__(self, policies: Informer, builder: SnapshotBuilder) -> None:
        self._policies, self._builder = policies, builder
        self._wanted: dict[str, Status] = {}
        """By uid; counts from it go on, since the server's may be a second old."""
        self._due = asyncio.Event()

    def forget(self) -> None:
        """Another operator may have written since."""
        self._wanted.clear()

    def planned(self, plan: Plan, done: Iterable[Decision], now: datetime) -> None:
        """`done`: decisions that were carried out, or shown only."""
        decisions: dict[str | None, list[Decision]] = {}
        for decision in done:
            decisions.setdefault(self._builder.queue_of(decision.job), []).append(decision)
        blocked: dict[str | None, dict[str, str]] = {}
        for key, why in plan.blocked.items():
            blocked.setdefault(self._builder.queue_of(key), {})[key] = why
        self._note(
            {
                name: Seen(
                    queue=self._builder.queue(name),
                    in_force=self._builder.policy_of(name),
                    figures=plan.queues.get(name),
                    decisions=decisions.get(name, ()),
                    blocked=blocked.get(name, {}),
                )
                for name in self._queues()
            },
            now,
        )

    def failed(self, failure: str, now: datetime) -> None:
        """No plan could be made."""
        self._note(
            {
                name: Seen(
                    queue=self._builder.queue(name),
                    in_force=self._builder.policy_of(name),
                    failure=failure,
                )
                for name in self._queues()
            },
            now,
        )

    async def run(self) -> None:
        """Until cancelled; may be called again then."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def write(obj: Object) -> None:
            async with free:
                await self._write(obj)

        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.gather(*(write(obj) for obj in self._policies))
            await asyncio.sleep(_AT_MOST_EVERY_SECONDS)

    def _queues(self) -> set[str]:
        return {_queue(obj) for obj in self._policies}

    def _note(self, seen: dict[str, Seen], now: datetime) -> None:
        wanted: dict[str, Status] = {}
        for obj in self._policies:
            uid, written = obj["metadata"]["uid"], obj.get("status") or {}
            last = self._wanted.get(uid, written)
            invalid = self._builder.invalid.get(obj["metadata"]["name"])
            wanted[uid] = status(obj | {"status": last}, invalid, seen[_queue(obj)], now)
            if wanted[uid] != written:
                self._due.set()
        self._wanted = wanted

    async def _write(self, obj: Object) -> None:
        meta = obj["metadata"]
        wanted = self._wanted.get(meta["uid"])
        patch = wanted and merge_patch.difference(obj.get("status") or {}, wanted)
        if not patch:
            return
        # The uid makes it a Conflict if another policy bears the name by now.
        body = {"metadata": {"uid": meta["uid"]}, "status": patch}
        try:
            answer = await self._policies.client.patch(
                self._policies.resource, meta["name"], None, body, subresource="status"
            )
        except NotFound:
            return
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("status of QueuePolicy %s: %s", meta["name"], error or "no answer in time")
            self._due.set()
            return
        self._policies.note_write(answer)


def _queue(obj: Object) -> str:
    return str((obj.get("spec") or {}).get("queue", ""))
