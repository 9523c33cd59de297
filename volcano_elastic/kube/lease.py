"""Leader election by a Lease, as client-go does it: one replica writes, the others stand by.

    standby ──(free, expired or released)──► leader ──(no renewal for renewDeadline)──► standby
                                               └──(told to stop: releases)──► gone

Nobody compares another machine's clock with its own: a lease has expired when it has not changed
for its duration since *we* saw it change. A leader may write until renewDeadline after it sent its
latest renewal; the next one begins leaseDuration after it saw that renewal, which is later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.kube.client import ApiError, Client, Conflict, NotLeading
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import LEASES, Object

_log = logging.getLogger(__name__)
_RELEASE_SECONDS = 2.0
# As client-go's JitterFactor: standbys do not come all at once.
_JITTER = 1.2


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds; the defaults are client-go's.

    Raises:
        ValueError: not retry < renew deadline < lease duration.
    """

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        # The record tells the duration in whole seconds.
        if self.lease_duration < 1 or self.lease_duration != int(self.lease_duration):
            raise ValueError(
                f"lease duration: expected whole seconds from 1 on, found {self.lease_duration:g}"
            )
        if not 0 < self.retry_period * _JITTER < self.renew_deadline < self.lease_duration:
            raise ValueError(
                "expected retry period × 1.2 < renew deadline < lease duration, found "
                f"{self.retry_period:g}, {self.renew_deadline:g}, {self.lease_duration:g} s"
            )


def claimable_in(lease: Object | None, seen: float, now: float, identity: str) -> float:
    """Seconds until `identity` may take the lease; 0 or less: at once.

    Args:
        lease: as it is known to be; None if there is none.
        seen, now: by our own clock, in seconds: when it last changed, and the present.
    """
    spec = (lease or {}).get("spec") or {}
    if spec.get("holderIdentity") in (None, "", identity):
        return 0.0
    return seen + float(spec.get("leaseDurationSeconds") or 0) - now


def claimed(lease: Object | None, identity: str, timing: Timing, now: datetime) -> Object:
    """The spec by which `identity` takes or renews the lease."""
    old = (lease or {}).get("spec") or {}
    stamp, held = _micro_time(now), old.get("holderIdentity") == identity
    changes = int(old.get("leaseTransitions") or 0)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(timing.lease_duration),
        "acquireTime": old.get("acquireTime", stamp) if held else stamp,
        "renewTime": stamp,
        "leaseTransitions": changes if held or lease is None else changes + 1,
    }


def released(lease: Object, now: datetime) -> Object:
    """The spec that lets a standby take over without waiting."""
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": _micro_time(now),
        "renewTime": _micro_time(now),
        "leaseTransitions": int(lease["spec"].get("leaseTransitions") or 0),
    }


class Election:
    """One candidate. Give it a client of its own: renewals must not queue behind other requests.

    Args:
        identity: who we are; the same one takes its own lease again without waiting, so it must
            never be borne by two processes at once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._clock = client, clock
        self._namespace, self._name, self._identity = namespace, name, identity
        self._timing = timing or Timing()
        self._lease: Object | None = None
        self._seen = clock()
        self._changed = asyncio.Event()
        self._write_until = float("-inf")
        self._random = random.Random()
        self._watch = Informer(
            client, LEASES, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        self._watch.on_change(lambda old, new: self._note(new))

    @property
    def leading(self) -> bool:
        return self._clock() < self._write_until

    def write_limit(self) -> float:
        """Seconds for which we may still write.

        Raises:
            NotLeading: we do not lead.
        """
        left = self._write_until - self._clock()
        if left <= 0:
            raise NotLeading(f"{self._identity} does not hold the lease {self._name}")
        return left

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: waits for the lease, has `lead` run while it is held, cancels it when
        it is lost. Releases the lease at the end, once `lead` has ended.

        Raises whatever `lead` raises."""
        watching = asyncio.create_task(self._watch.run())
        try:
            await self._watch.synced.wait()
            while True:
                await self._acquire()
                _log.info("%s leads now", self._identity)
                await self._hold(asyncio.ensure_future(lead()))
                _log.warning("%s has lost the lease and stands by", self._identity)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._release()

    async def _acquire(self) -> None:
        while True:
            self._changed.clear()
            wait = claimable_in(self._lease, self._seen, self._clock(), self._identity)
            if wait <= 0:
                if await self._claim():
                    return
                wait = self._timing.retry_period * self._random.uniform(1, _JITTER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    async def _hold(self, work: asyncio.Future[None]) -> None:
        """Returns when the lease is lost and `work` has ended."""
        try:
            while self.leading:
                wait = min(self._timing.retry_period, self._write_until - self._clock())
                done, _ = await asyncio.wait({work}, timeout=max(wait, 0.0))
                if done:
                    # An operator that has nothing to do any more has met a defect.
                    raise work.exception() or RuntimeError("the leader's work ended by itself")
                if self.leading:
                    await self._claim()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _claim(self) -> bool:
        """Takes or renews the lease; False if it could not be done now."""
        began = self._clock()
        spec = claimed(self._lease, self._identity, self._timing, datetime.now(UTC))
        try:
            # As client-go: one attempt must not eat up the time of all.
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                await self._write(spec)
        except Conflict:
            # Somebody else wrote it; the watch tells what it says now.
            return False
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning("lease %s: %s", self._name, error or "no answer in time")
            return False
        self._write_until = began + self._timing.renew_deadline
        return True

    async def _write(self, spec: Object) -> None:
        meta = {"name": self._name, "namespace": self._namespace}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta}
        if self._lease is None:
            self._note(await self._client.create(LEASES, lease | {"spec": spec}))
        else:
            self._note(await self._client.replace(LEASES, self._lease | {"spec": spec}))

    async def _release(self) -> None:
        if not self.leading or self._lease is None:
            return
        self._write_until = float("-inf")
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._write(released(self._lease, datetime.now(UTC)))
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning(
                "lease %s was not released (%s); a standby waits until it expires",
                self._name,
                error or "no answer in time",
            )

    def _note(self, lease: Object | None) -> None:
        """Keep the newest version of the lease that anybody has reported."""
        old = self._lease
        if lease is not None and old is not None:
            same = lease["metadata"].get("uid") == old["metadata"].get("uid")
            if same and _version(lease) <= _version(old):
                return
        self._lease, self._seen = lease, self._clock()
        if ((lease or {}).get("spec") or {}).get("holderIdentity") not in (
            None,
            "",
            self._identity,
        ):
            # Taken by force: someone edited it.
            self._write_until = float("-inf")
        self._changed.set()


def _version(lease: Object) -> int:
    return int(lease["metadata"]["resourceVersion"])


def _micro_time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
