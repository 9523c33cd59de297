"""What trainers tell of their speed, and what jobs have used so far, kept in each job's status."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import aiohttp

from volcano_elastic.api.pytorchjob import BACKEND, WORKER, PyTorchJob
from volcano_elastic.kube import event
from volcano_elastic.kube.client import AlreadyExists, ApiError, NotFound
from volcano_elastic.kube.resource import EVENTS, Object
from volcano_elastic.operator import failure_report
from volcano_elastic.operator.cluster import Cluster, controlled_by
from volcano_elastic.operator.executor import COMPONENT
from volcano_elastic.operator.failure_report import Failure
from volcano_elastic.operator.snapshot import Adapter
from volcano_elastic.operator.token import HEADER, BadKey
from volcano_elastic.pytorchjob.coordinator import dedicated
from volcano_elastic.pytorchjob.label import coordinator_name, replica_name

_log = logging.getLogger(__name__)
_EVERY_SECONDS = 10.0
_AT_MOST_PER_SECOND = 100.0
_AT_ONCE = 16
_TIMEOUT = aiohttp.ClientTimeout(total=2.0, connect=1.0)
_MOST_BYTES = 1 << 20
_WRITE_HOURS_EVERY = timedelta(minutes=5)
_NOISE = 0.05
_PAUSES = 5


@dataclass(frozen=True, slots=True)
class Report:
    speeds: Mapping[int, float] = field(default_factory=dict)
    """Samples a second by size in Workers, or another number proportional to it."""
    pause: timedelta | None = None
    """How long training stood still at the latest changes of its round."""
    failures: tuple[Failure, ...] = ()
    """Of its workers, by time."""


@dataclass(slots=True)
class Use:
    """Of one job since its hours were written."""

    hours: float
    seen: datetime
    size: int
    written: datetime


def endpoint(job: PyTorchJob, pod: Mapping[str, Any] | None) -> str | None:
    """Where the job's coordinator tells its status; None while it has none that runs."""
    policy, worker = job.elastic, job.worker
    if policy is None or worker is None or policy.rdzv_backend != BACKEND or policy.rdzv_host:
        return None
    status = (pod or {}).get("status") or {}
    address = status.get("podIP")
    if status.get("phase") != "Running" or not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{(policy.rdzv_port or worker.port) + 1}/status"


def read(body: bytes, job: PyTorchJob) -> Report:
    """What a coordinator answered; empty if it makes no sense or is another job's."""
    policy = job.elastic
    try:
        answer = json.loads(body)
    except ValueError:
        return Report()
    if policy is None or not isinstance(answer, dict) or answer.get("job") != job.key:
        return Report()
    # The coordinator counts agents, and the Master has one too.
    extra = 1 if job.master is not None else 0
    speeds = {}
    told = answer.get("speeds")
    for size, speed in told.items() if isinstance(told, dict) else ():
        workers = int(size) - extra if size.isdecimal() and len(size) < 7 else 0
        if 1 <= workers <= policy.max and _sensible(speed):
            speeds[workers] = float(f"{speed:.3g}")
    rounds = answer.get("rounds")
    pauses = [
        r["pause_seconds"]
        for r in (rounds if isinstance(rounds, list) else ())
        if isinstance(r, dict) and _sensible(r.get("pause_seconds"))
    ]
    pause = timedelta(seconds=round(median(pauses[-_PAUSES:]), 1)) if pauses else None
    return Report(speeds, pause, failure_report.read(answer))


def _sensible(number: object) -> bool:
    return (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and math.isfinite(number)
        and 0 < number < 1e12
    )


def news(known: Mapping[str, Any], speeds: Mapping[int, float]) -> dict[str, float]:
    """Of the measured speeds, those to be written: new sizes, and more than noise."""
    found = {}
    for size, speed in speeds.items():
        before = known.get(str(size))
        if before is None or not abs(speed - float(before)) <= _NOISE * float(before):
            found[str(size)] = speed
    return found


def used(use: Use | None, units: float, desired: int, hours: float, now: datetime) -> Use:
    """The job's hours with what `units` have used since it was last seen."""
    if use is None:
        return Use(hours, now, desired, now)
    more = units * max(0.0, (now - use.seen).total_seconds()) / 3600
    return Use(use.hours + more, now, use.size, use.written)


def due(use: Use, desired: int, now: datetime) -> bool:
    """Whether its hours are to be written: at each change of size, or every few minutes."""
    return desired != use.size or now - use.written >= _WRITE_HOURS_EVERY


class Measurement:
    """Asks each job's coordinator every ten seconds, or less often where there are very many."""

    def __init__(
        self,
        cluster: Cluster,
        adapter: Adapter,
        clock: Callable[[], datetime],
        token_of: Callable[[str], Awaitable[str]],
    ) -> None:
        self._cluster, self._adapter, self._clock = cluster, adapter, clock
        self._token_of = token_of
        """Of a job's uid; may raise as Tokens.of does."""
        self._uses: dict[str, Use] = {}
        """By uid."""
        self._told: dict[str, set[tuple[int, int, int]]] = {}
        """By uid, the failures that an Event was made of."""

    async def run(self) -> None:
        """Until cancelled; may be called again then."""
        # Another operator may have written meanwhile.
        self._uses.clear()
        async with aiohttp.ClientSession(
            timeout=_TIMEOUT,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True),
        ) as session:
            while True:
                try:
                    asked = await self._once(session)
                except Exception:
                    # Sizes can do without; the next time may be better.
                    _log.exception("speeds could not be read")
                    asked = 0
                await asyncio.sleep(max(_EVERY_SECONDS, asked / _AT_MOST_PER_SECOND))

    async def _once(self, session: aiohttp.ClientSession) -> int:
        # Before its first size is written, there is nothing to add to.
        jobs = [j for j in self._adapter.parsed() if j.elastic and j.desired is not None]
        self._uses = {j.uid: self._uses[j.uid] for j in jobs if j.uid in self._uses}
        self._told = {j.uid: self._told[j.uid] for j in jobs if j.uid in self._told}
        free = asyncio.Semaphore(_AT_ONCE)

        async def measure(job: PyTorchJob) -> None:
            async with free:
                await self._measure(session, job)

        await asyncio.gather(*(measure(job) for job in jobs))
        return len(jobs)

    async def _measure(self, session: aiohttp.ClientSession, job: PyTorchJob) -> None:
        obj = self._cluster.jobs.get(job.key)
        if obj is None or obj["metadata"]["uid"] != job.uid:
            return
        name = replica_name(job.name, WORKER, 0)
        pod = self._cluster.pods.get(
            f"{job.namespace}/{coordinator_name(job) if dedicated(job) else name}"
        )
        url = endpoint(job, pod) if pod is not None and controlled_by(pod, obj) else None
        report = Report()
        if url is not None:
            try:
                token = await self._token_of(job.uid)
            except (ApiError, BadKey, aiohttp.ClientError, TimeoutError) as error:
                # Other jobs need none, and hours are counted without asking anybody.
                _log.warning("%s: its speed is not asked for: %s", job.key, error or "no answer")
            else:
                report = await _ask(session, url, job, token)
        await self._tell(job, obj, report.failures)
        if report.pause is not None:
            self._adapter.paused(job.key, report.pause)
        assert job.desired is not None
        elastic = job.status["elastic"]
        change: dict[str, Any] = {}
        if found := news(elastic.get("speeds") or {}, report.speeds):
            change["speeds"] = found
        now, desired = self._clock(), job.desired
        use = used(
            self._uses.get(job.uid),
            self._unit(job) * int(elastic.get("ready") or 0),
            desired,
            float(elastic.get("gpuHours") or 0),
            now,
        )
        self._uses[job.uid] = use
        if due(use, desired, now):
            change["gpuHours"] = round(use.hours, 4)
        if change and await self._write(job, change) and "gpuHours" in change:
            self._uses[job.uid] = Use(use.hours, now, desired, now)

    async def _tell(self, job: PyTorchJob, obj: Object, failures: Sequence[Failure]) -> None:
        """One Warning a round, about the pod whose worker failed first."""
        told = self._told.setdefault(job.uid, set())
        new = [failure for failure in failures if failure.identity not in told]
        told |= {failure.identity for failure in new}
        for group in failure_report.by_round(new):
            name = replica_name(job.name, WORKER, group[0].worker)
            body = event.make(
                self._cluster.pods.get(f"{job.namespace}/{name}") or obj,
                reason=failure_report.REASON,
                message=failure_report.message(group),
                now=self._clock(),
                component=COMPONENT,
                warning=True,
                name=failure_report.event_name(name, job.uid, group[0]),
            )
            try:
                await self._cluster.client.create(EVENTS, body)
            except AlreadyExists:
                pass
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                _log.warning("%s: a failure was not told: %s", job.key, error or "no answer")

    def _unit(self, job: PyTorchJob) -> float:
        """What one Worker holds of the policy's resource, else of cpu."""
        view = self._adapter.job(job.key)
        if view is None:
            return 0.0
        requests = view.pod_requests
        resource = self._adapter.policy_of(view.queue).resource
        return (requests.get(resource, 0) or requests.get("cpu", 0)) / 1000

    async def _write(self, job: PyTorchJob, elastic: dict[str, Any]) -> bool:
        # The uid makes it a Conflict if another job bears the name by now.
        body = {"metadata": {"uid": job.uid}, "status": {"elastic": elastic}}
        jobs = self._cluster.jobs
        try:
            answer = await jobs.client.patch(
                jobs.resource, job.name, job.namespace, body, subresource="status"
            )
        except NotFound:
            return False
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("%s: what it used was not written: %s", job.key, error or "no answer")
            return False
        jobs.put(answer)
        return True


async def _ask(session: aiohttp.ClientSession, url: str, job: PyTorchJob, token: str) -> Report:
    try:
        headers = {HEADER: token}
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            body = b""
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > _MOST_BYTES:
                    _log.warning("%s: %s answers more than %d bytes", job.key, url, _MOST_BYTES)
                    return Report()
            if answer.status == 401:
                _log.warning("%s: %s takes another token", job.key, url)
            return read(body, job) if answer.status == 200 else Report()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        _log.debug("%s: %s: %s", job.key, url, error or type(error).__name__)
        return Report()
