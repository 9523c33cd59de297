"""Asks jobs' first parameter servers how loaded all of them are: often where that may change
anything, else for the job's status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp

from volcano_elastic.api import server_bounds
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.server_count import ServerCount
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.resource import Object
from volcano_elastic.operator import coordinator_client, server_report
from volcano_elastic.operator.cluster import Cluster, controlled_by
from volcano_elastic.operator.load_report import PodUse
from volcano_elastic.operator.server_report import ServersReport
from volcano_elastic.operator.token import BadKey
from volcano_elastic.pytorchjob import server_scaling
from volcano_elastic.pytorchjob.server_scaling import History, Look
from volcano_elastic.pytorchjob.servers import capacity

_log = logging.getLogger(__name__)
_EVERY_SECONDS = 10.0
_SELDOM_SECONDS = 60.0
"""Likewise, where loads change nothing, but stand in the job's status."""
_FRESH_SECONDS = 180.0
_AT_ONCE = 32
_TIMEOUT = aiohttp.ClientTimeout(total=2.0, connect=1.0)
SLOW_SECONDS = 60.0
"""For how long a server is slow before it is made anew."""
AVOID_SECONDS = 1800.0
"""For how long its node is avoided then."""


@dataclass(slots=True)
class _Known:
    """Facts found out about one job."""

    uid: str
    history: History = field(default_factory=History)
    count: ServerCount | None = None
    slow_since: dict[str, float] = field(default_factory=dict)
    move: dict[str, str] = field(default_factory=dict)
    """Uids by name of pods that are to be made anew."""
    avoid: dict[str, float] = field(default_factory=dict)
    """By node, until when."""
    asked: float | None = None
    report: ServersReport | None = None
    """The newest, and `heard` when it came."""
    heard: float = 0.0


class ServerLoads:
    """In memory only: the number that is decided is in the job's status, and loads are told anew.

    Args:
        jobs: returns those that are served.
        replaces: tells whether the job's queue has slow pods replaced.
        token_of: the token of the job with this uid; raises as Tokens.of.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Callable[[], Iterable[PyTorchJob]],
        replaces: Callable[[PyTorchJob], bool],
        token_of: Callable[[str], Awaitable[str]],
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster, self._jobs, self._replaces = cluster, jobs, replaces
        self._token_of, self._clock = token_of, clock
        self._known: dict[str, _Known] = {}
        self._tell: Callable[[str], None] = lambda key: None

    def on_news(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the key of each job of which something was decided."""
        self._tell = tell

    def count(self, job: PyTorchJob) -> ServerCount | None:
        """Return how many servers the job should have by their loads; None: as it has."""
        known = self._of(job)
        return None if known is None else known.count

    def to_move(self, job: PyTorchJob) -> frozenset[str]:
        """Return the names of its pods that are to be made anew, as long as they are the same."""
        known = self._of(job)
        return frozenset(
            name
            for name, uid in ({} if known is None else known.move).items()
            if self._pod(job, name).get("metadata", {}).get("uid") == uid
        )

    def to_avoid(self, job: PyTorchJob) -> Mapping[str, str]:
        """Return the nodes on which a server of the job was slow, with that reason."""
        known, now = self._of(job), self._clock().timestamp()
        nodes = {} if known is None else known.avoid
        return {
            node: "a parameter server was slow there" for node, end in nodes.items() if now < end
        }

    def uses(self, job: PyTorchJob) -> Mapping[str, PodUse]:
        """Return what its servers use, by their pods' names; nothing where that is not known."""
        report = self._newest(job)
        return {} if report is None else report.uses

    def tables(self, job: PyTorchJob) -> Bytes | None:
        """Return what the rows take that its servers hold; None: not known."""
        report = self._newest(job)
        return None if report is None else report.tables

    def _newest(self, job: PyTorchJob) -> ServersReport | None:
        known = self._of(job)
        is_fresh = known and self._clock().timestamp() - known.heard <= _FRESH_SECONDS
        return known.report if known is not None and is_fresh else None

    async def run(self) -> None:
        """Until cancelled; may be called again then."""
        self._known.clear()
        async with aiohttp.ClientSession(
            timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            while True:
                await asyncio.sleep(_EVERY_SECONDS)
                try:
                    await self.look(session)
                except Exception:
                    # Jobs keep the servers that they have; the next time may be better.
                    _log.exception("loads of parameter servers could not be read")

    async def look(self, session: aiohttp.ClientSession) -> None:
        """Ask all jobs whose turn it is once."""
        served = [job for job in self._jobs() if job.servers is not None]
        self._known = {job.key: self._of(job) or _Known(job.uid) for job in served}
        jobs = [job for job in served if self._is_due(job)]
        free = asyncio.Semaphore(_AT_ONCE)

        async def ask(job: PyTorchJob) -> None:
            async with free:
                await self._ask(session, job)

        await asyncio.gather(*map(ask, jobs))

    def _is_due(self, job: PyTorchJob) -> bool:
        asked, now = self._known[job.key].asked, self._clock().timestamp()
        often = _bounds(job) is not None or self._replaces(job)
        # Those of other jobs stand in no status.
        seldom = job.elastic is not None and (asked is None or now - asked >= _SELDOM_SECONDS)
        if not (often or seldom):
            return False
        self._known[job.key].asked = now
        return True

    async def _ask(self, session: aiohttp.ClientSession, job: PyTorchJob) -> None:
        url = server_report.endpoint(job, self._pod(job, server_report.first_server(job)))
        if url is None:
            # It is yet to run: asked at the next look.
            self._known[job.key].asked = None
            return
        try:
            token = await self._token_of(job.uid)
        except (ApiError, BadKey, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("%s: its servers are not asked: %s", job.key, error or "no answer")
            return
        body = await coordinator_client.ask_for(session, f"{url}/status", job, token)
        report = server_report.read(body, job)
        if report is not None:
            self.hear(job, report)

    def hear(self, job: PyTorchJob, report: ServersReport) -> None:
        """Take in what the job's servers say."""
        assert job.servers is not None
        known = self._of(job) or _Known(job.uid)
        self._known[job.key] = known
        now, has = self._clock().timestamp(), job.servers.replicas
        known.report, known.heard, known.count = report, now, None
        if (bounds := _bounds(job)) is not None:
            look = Look(now, report.cpus, report.memory, report.steps_per_second, job.desired or 0)
            known.history, decided = server_scaling.decide(
                known.history, look, has, bounds, capacity(job.servers)
            )
            if decided is not None:
                known.count = ServerCount(decided.replicas, job.servers.asked, decided.message)
                self._tell(job.key)
        slow = report.slow if self._replaces(job) else frozenset()
        known.slow_since = {name: known.slow_since.get(name, now) for name in sorted(slow)}
        # One at a time: each gives its rows to the others.
        due = [name for name, since in known.slow_since.items() if now - since >= SLOW_SECONDS][:1]
        known.move = {}
        for name in due:
            pod = self._pod(job, name)
            node = (pod.get("spec") or {}).get("nodeName")
            if not node or pod["metadata"].get("deletionTimestamp"):
                continue
            known.move[name] = pod["metadata"]["uid"]
            known.avoid[node] = now + AVOID_SECONDS
            del known.slow_since[name]
            self._tell(job.key)

    def _of(self, job: PyTorchJob) -> _Known | None:
        known = self._known.get(job.key)
        return known if known is not None and known.uid == job.uid else None

    def _pod(self, job: PyTorchJob, name: str) -> Object:
        obj = self._cluster.jobs.get(job.key)
        pod = self._cluster.pods.get(f"{job.namespace}/{name}")
        return pod if pod is not None and obj is not None and controlled_by(pod, obj) else {}


def _bounds(job: PyTorchJob) -> server_bounds.ServerBounds | None:
    return server_bounds.read(job.annotations)
