"""Measures jobs: speeds and pauses that trainers tell, and GPU hours used, kept in the status.

On the way, a coordinator that goes by another range than its job has now is told so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from volcano_elastic.api import checkpoint_size, condition
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.queue_policy import Diverged, Stragglers
from volcano_elastic.api.role import elastic
from volcano_elastic.kube import event
from volcano_elastic.kube.client import AlreadyExists, ApiError, NotFound
from volcano_elastic.kube.resource import EVENTS, Object, key_of
from volcano_elastic.operator import (
    checkpoint_report,
    coordinator_client,
    divergence_report,
    failure_report,
    hang_report,
    last_word,
    load_report,
    progress_report,
    round_history,
    straggler_report,
)
from volcano_elastic.operator.cluster import Cluster, controlled_by, job_key
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.divergence_report import DivergedRank
from volcano_elastic.operator.ended_pods import EndedPods
from volcano_elastic.operator.executor import COMPONENT
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.failure_report import Exclusion, Failure
from volcano_elastic.operator.gpu_hours import Use, due, units, used
from volcano_elastic.operator.hang_report import HungRound
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.memory_kills import MemoryKills
from volcano_elastic.operator.server_loads import ServerLoads
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.operator.speed_report import news, pause_to_write
from volcano_elastic.operator.straggler_report import SlowRank
from volcano_elastic.operator.survivors import Survivors
from volcano_elastic.operator.token import BadKey
from volcano_elastic.operator.tracing import Tracing
from volcano_elastic.pytorchjob.coordinator import dedicated, host_name
from volcano_elastic.pytorchjob.goodput import kept, with_places
from volcano_elastic.pytorchjob.label import replica_name
from volcano_elastic.pytorchjob.pod_startup import PodStartups

_log = logging.getLogger(__name__)
_EVERY_SECONDS = 10.0
_AT_MOST_PER_SECOND = 100.0
_AT_ONCE = 16
_ASKED = 5
"""Agents of a job that are asked who hosts the coordinator."""
_TIMEOUT = aiohttp.ClientTimeout(total=2.0, connect=1.0)


def _ended(job: Object) -> bool:
    return condition.finished((job.get("status") or {}).get("conditions") or ())


class Measurement:
    """Asks each job's coordinator every ten seconds, or less often where there are very many, and
    one whose job was edited, or has ended, at once."""

    def __init__(
        self,
        cluster: Cluster,
        builder: SnapshotBuilder,
        clock: Callable[[], datetime],
        token_of: Callable[[str], Awaitable[str]],
        lost_pods: LostPods,
        failed_nodes: FailedNodes,
        survivors: Survivors,
        tracing: Tracing | None = None,
        server_loads: ServerLoads | None = None,
        memory_kills: MemoryKills | None = None,
    ) -> None:
        self._cluster, self._builder, self._clock = cluster, builder, clock
        self._lost_pods, self._failed_nodes = lost_pods, failed_nodes
        self._survivors, self._tracing = survivors, tracing
        self._server_loads, self._memory_kills = server_loads, memory_kills
        lost_pods.on_doubt(self._ask_now)
        self._token_of = token_of
        """Returns the token of the job with this uid; may raise as Tokens.of does."""
        self._uses: dict[str, Use] = {}
        """By uid."""
        self._reported: dict[str, set[tuple[int, int, int]]] = {}
        """By uid, the failures that an Event was made of."""
        self._warned: dict[str, set[str]] = {}
        """By uid, names of Events about nodes, rounds and ranks."""
        self._goodput: dict[str, dict[str, Any]] = {}
        """By uid, as it is to be written."""
        self._startups = PodStartups()
        self._due: asyncio.Queue[str] | None = None
        """Keys of jobs; None while somebody else leads: `run` begins with all jobs anyway."""
        self._hosts: dict[str, str] = {}
        """By uid, where the job's coordinator was found last."""
        self._ended = EndedPods()
        cluster.jobs.on_change(self._note_edit)
        cluster.pods.on_change(self._note_pod)

    async def run(self) -> None:
        """Until cancelled; may be called again then."""
        # Another operator may have written meanwhile.
        self._uses.clear()
        self._goodput.clear()
        self._startups.forget()
        self._survivors.begin()
        async with aiohttp.ClientSession(
            timeout=_TIMEOUT,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=2 * _AT_ONCE, force_close=True),
        ) as session:
            self._due = asyncio.Queue()
            for obj in self._cluster.jobs:
                if _ended(obj):  # maybe while no operator ran
                    self._ask_now(key_of(obj))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._again_and_again(session))
                    group.create_task(self._at_once(session, self._due))
            finally:
                self._due = None

    async def _again_and_again(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                asked = await self._once(session)
            except Exception:
                # Sizes can do without; the next time may be better.
                _log.exception("speeds could not be read")
                asked = 0
            await asyncio.sleep(max(_EVERY_SECONDS, asked / _AT_MOST_PER_SECOND))

    def _note_edit(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._ended.forget(key_of(old))
            self._hosts.pop(old["metadata"]["uid"], None)
        if old is None or new is None:
            return
        edited = old["metadata"].get("generation") != new["metadata"].get("generation")
        if edited or (_ended(new) and not _ended(old)):
            self._ask_now(key_of(new))

    def _ask_now(self, key: str) -> None:
        if self._due is not None:
            self._due.put_nowait(key)

    async def _at_once(self, session: aiohttp.ClientSession, due: asyncio.Queue[str]) -> None:
        """Edits of ranges are known at once, and so are pods of a lost node, and a job's status has
        its last figures as soon as it ends; what fails here is done in its turn."""
        while True:
            keys = {await due.get()}
            while not due.empty() and len(keys) < _AT_ONCE:
                keys.add(due.get_nowait())
            jobs = [job for key in keys if (job := self._builder.parsed_job(key)) is not None]
            try:
                await asyncio.gather(*(self._hear(session, job) for job in jobs))
                over = keys - {job.key for job in jobs}
                await asyncio.gather(*(self._write_last(key, just_now=True) for key in over))
            except Exception:
                _log.exception("ranges could not be told")

    async def _once(self, session: aiohttp.ClientSession) -> int:
        # Before its first size is written, there is nothing to add to.
        jobs = [j for j in self._builder.parsed() if j.elastic and j.desired is not None]
        if self._uses.keys() - {job.uid for job in jobs}:
            served = {job.key for job in self._builder.parsed()}
            over = [key for obj in self._cluster.jobs if (key := key_of(obj)) not in served]
            await asyncio.gather(*map(self._write_last, over))
        self._uses = {j.uid: self._uses[j.uid] for j in jobs if j.uid in self._uses}
        self._reported = {j.uid: self._reported[j.uid] for j in jobs if j.uid in self._reported}
        self._warned = {j.uid: self._warned[j.uid] for j in jobs if j.uid in self._warned}
        self._goodput = {j.uid: self._goodput[j.uid] for j in jobs if j.uid in self._goodput}
        self._startups.keep(j.uid for j in jobs)
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
        report = await self._hear(session, job)
        latest = self._builder.parsed_job(job.key)
        if latest is None or latest.uid != job.uid:
            return  # it has ended meanwhile, and its last word counts
        await self._tell(job, obj, report.failures)
        await self._warn_once(job, obj, failure_report.EXCLUDED, report.excluded)
        await self._warn_once(job, obj, hang_report.REASON, report.hung)
        await self._warn_once(job, obj, straggler_report.REASON, report.slow)
        await self._warn_once(job, obj, divergence_report.REASON, report.diverged)
        assert job.desired is not None
        elastic = job.status["elastic"]
        change: dict[str, Any] = {}
        speeds = report.speeds
        if job.servers is not None:  # others may be of another number of servers
            speeds = {size: speed for size, speed in speeds.items() if size == job.desired}
        if found := news(elastic.get("speeds") or {}, speeds):
            change["speeds"] = found
        committed = elastic.get("commits") or {}
        if report.commits.keys() - committed.keys():  # that there was one is all that is asked
            change["commits"] = {**report.commits, **committed}
        if (pause := pause_to_write(elastic.get("pauseSeconds"), report.pause)) is not None:
            change["pauseSeconds"] = pause
        now, desired = self._clock(), job.desired
        rounds = round_history.to_write(elastic.get(round_history.FIELD) or (), report.rounds)
        if rounds is not None:
            change[round_history.FIELD] = rounds
        progress = progress_report.to_write(elastic.get("progress") or {}, report.progress, now)
        if progress is not None:
            change["progress"] = progress
        serving, known_loads = self._server_loads, elastic.get("loads") or {}
        uses = load_report.with_servers(
            report.loads,
            {} if serving is None else serving.uses(job),
            known_loads,
            report.heard is not None,
        )
        loads = load_report.to_write(known_loads, uses, now)
        if loads is not None:
            change["loads"] = loads
        tables = None if serving is None else serving.tables(job)
        size = checkpoint_report.to_write(
            elastic.get(checkpoint_size.FIELD) or {}, report.checkpoint, tables
        )
        if size is not None:
            change[checkpoint_size.FIELD] = size
        seen = self._uses[job.uid].seen if job.uid in self._uses else now
        use = used(
            self._uses.get(job.uid),
            self._unit(job, obj) * int(elastic.get("ready") or 0),
            desired,
            float(elastic.get("gpuHours") or 0),
            now,
        )
        self._uses[job.uid] = use
        if due(use, desired, now):
            change["gpuHours"] = round(use.hours, 4)
        known = elastic.get("goodput") or {}
        uses = kept(self._goodput.get(job.uid, known), report.goodput)
        pods, ledger = self._cluster.pods_of(obj), report.goodput
        uses = self._startups.count(job.uid, uses, pods, ledger.processes if ledger else 0)
        uses = with_places(
            uses,
            (now - seen) // timedelta(milliseconds=1),
            max(0, int(elastic.get("ready") or 0) - self._lost_pods.silent(job)),
            job.elastic.max if job.elastic is not None else 0,
        )
        self._goodput[job.uid] = uses
        # One that is silent may have told its last.
        told = report.heard is None or "milliseconds" not in known
        new = told and uses.get("milliseconds") != known.get("milliseconds")
        if uses != known and ("gpuHours" in change or new):
            change["goodput"] = uses
        if change and await self._write(job.key, job.uid, change) and "gpuHours" in change:
            self._uses[job.uid] = Use(use.hours, now, desired, now)

    async def _write_last(self, key: str, *, just_now: bool = False) -> None:
        """Writes what is known of a job that has ended, or is suspended, and was not written."""
        obj = self._cluster.jobs.get(key)
        uid = "" if obj is None else obj["metadata"]["uid"]
        use, uses = self._uses.pop(uid, None), self._goodput.pop(uid, None)
        if obj is None or (use is None and not just_now):
            return
        elastic = (obj.get("status") or {}).get("elastic") or {}
        found: dict[str, Any] = {} if use is None else {"gpuHours": round(use.hours, 4)}
        word = last_word.read(obj, self._cluster.pods_of(obj)) if _ended(obj) else None
        known = uses if uses is not None else elastic.get("goodput") or {}
        if spent := kept(known, word.goodput if word else None):
            found["goodput"] = spent
        if _ended(obj):
            found |= last_word.to_write(obj, word, self._clock())
        change = {name: value for name, value in found.items() if value != elastic.get(name)}
        if change:
            await self._write(key, uid, change)

    async def _hear(self, session: aiohttp.ClientSession, job: PyTorchJob) -> Report:
        report = await self._ask(session, job)
        self._lost_pods.hear(job, report)
        self._survivors.hear(job, report)
        if self._tracing is not None:
            self._tracing.heard(job, report)
        if report.heard is not None:
            self._failed_nodes.hear(job, [*report.excluded, *self._to_leave(job, report)])
            if self._memory_kills is not None:
                self._memory_kills.hear(job, report.failures)
        return report

    def _to_leave(self, job: PyTorchJob, report: Report) -> Sequence[Exclusion]:
        """Return the nodes of slow and diverged ranks that the job's queue wants replaced."""
        view = self._builder.job(job.key)
        if view is None or not (report.slow or report.diverged):
            return ()
        wanted, found = self._builder.policy_of(view.queue).nodes, list[Exclusion]()
        if wanted.stragglers is Stragglers.REPLACE:
            found += straggler_report.to_leave(report.slow, job.desired or 0)
        if wanted.diverged is Diverged.REPLACE:
            found += divergence_report.to_leave(report.diverged)
        return found

    async def _ask(self, session: aiohttp.ClientSession, job: PyTorchJob) -> Report:
        """Return what its coordinator tells. One that goes by another range is told the job's."""
        obj = self._cluster.jobs.get(job.key)
        name = host_name(job)
        pod = self._cluster.pods.get(f"{job.namespace}/{name}")
        if obj is None:
            return Report()
        if pod is not None and not controlled_by(pod, obj):
            pod = None
        url = coordinator_client.endpoint(job, pod)
        others = self._others(job, obj)
        if url is None and not others:
            return Report()
        try:
            token = await self._token_of(job.uid)
        except (ApiError, BadKey, aiohttp.ClientError, TimeoutError) as error:
            # Other jobs need none, and hours are counted without asking anybody.
            _log.warning("%s: its speed is not asked for: %s", job.key, error or "no answer")
            return Report(asked=False)
        url = self._hosts.get(job.uid) or url
        report = Report()
        if url is not None:
            report = await coordinator_client.ask(session, url, job, token)
        # Another agent may have taken it over, and one without enough others may be the older.
        if (report.heard is None or report.missing) and others:
            followed = await coordinator_client.find(session, others, job, token)
            elsewhere = followed.url if followed is not None else None
            if elsewhere is not None and elsewhere != url:
                other = await coordinator_client.ask(session, elsewhere, job, token)
                # Agents may speak of the one that answers by a name that only pods resolve.
                if other.heard is not None or report.heard is None:
                    url, report = elsewhere, other
            vouched = followed is not None and followed.heard and report.heard is None
            report = replace(report, reached=followed is not None, vouched=vouched)
        report = replace(report, host=(urlsplit(url).hostname or "") if url is not None else "")
        self._remember_host(job.uid, url if report.heard is not None else None)
        ended = self._ended.report(job.key, self._cluster.pods_of(obj))
        if ended is not None and (report.missing or report.heard is None):
            # The coordinator, where it waits; where there is none, those who could take it over.
            asked = [*others, *([url] if url is not None and report.missing else [])]
            await coordinator_client.tell_gone(session, asked, job, token, ended)
        if url is None:
            return report
        # It may have been edited since this round of questions began.
        latest = self._builder.parsed_job(job.key)
        if latest is not None and latest.uid == job.uid:
            nodes = coordinator_client.owed(latest, report)
            if nodes is not None:
                await coordinator_client.tell_range(session, url, latest, token, nodes)
        return report

    def _others(self, job: PyTorchJob, obj: Object) -> list[str]:
        """Return where some agents say who hosts the coordinator, which has no pod of its own."""
        if dedicated(job):
            return []
        urls = (coordinator_client.succession(job, pod) for pod in self._cluster.pods_of(obj))
        return [url for url in urls if url is not None][:_ASKED]

    def _remember_host(self, uid: str, url: str | None) -> None:
        if url is None:
            self._hosts.pop(uid, None)
        else:
            self._hosts[uid] = url

    def _note_pod(self, old: Object | None, new: Object | None) -> None:
        """Keeps which of a job's pods have ended, or were given up."""
        anew = (
            old is not None and new is not None and old["metadata"]["uid"] != new["metadata"]["uid"]
        )
        if anew:  # the answer to its making came before the watch told of the other's end
            self._note_pod(old, None)
        pod = new or old
        key = job_key(pod) if pod is not None else ""
        if pod is None or not key:
            return
        if new is not None:
            self._ended.begin(key, new)
            # Its host waits for the other agents, and ends after the job has.
            if last_word.left(new) and not last_word.left(old):
                self._ask_now(key)
        elif self._builder.parsed_job(key) is not None and self._ended.end(key, pod):
            self._ask_now(key)

    async def _tell(self, job: PyTorchJob, obj: Object, failures: Sequence[Failure]) -> None:
        """Emits one Warning a round, about the pod whose worker failed first."""
        reported = self._reported.setdefault(job.uid, set())
        new = [failure for failure in failures if failure.identity not in reported]
        reported |= {failure.identity for failure in new}
        for group in failure_report.by_round(new):
            name = replica_name(job.name, elastic(), group[0].worker)
            about = self._cluster.pods.get(f"{job.namespace}/{name}") or obj
            event_name = failure_report.event_name(name, job.uid, group[0])
            await self._warn(
                job, about, failure_report.REASON, failure_report.message(group), event_name
            )

    async def _warn_once(
        self,
        job: PyTorchJob,
        obj: Object,
        reason: str,
        found: Sequence[Exclusion | HungRound | SlowRank | DivergedRank],
    ) -> None:
        """Emits one Warning about the job for each that none was emitted for yet."""
        warned = self._warned.setdefault(job.uid, set())
        for one in found:
            name = one.event_name(job.name, job.uid)
            if name not in warned:
                warned.add(name)
                await self._warn(job, obj, reason, one.message, name)

    async def _warn(
        self, job: PyTorchJob, about: Object, reason: str, message: str, name: str
    ) -> None:
        body = event.make(
            about,
            reason=reason,
            message=message,
            now=self._clock(),
            component=COMPONENT,
            warning=True,
            name=name,
        )
        try:
            await self._cluster.client.create(EVENTS, body)
        except AlreadyExists:
            pass
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("%s: a failure was not told: %s", job.key, error or "no answer")

    def _unit(self, job: PyTorchJob, obj: Object) -> float:
        """Return what a pod of its size holds on average of the policy's resource, else of cpu."""
        view = self._builder.job(job.key)
        if view is None:
            return 0.0
        pods = (self._builder.pod(key_of(pod)) for pod in self._cluster.pods_of(obj))
        counted = elastic().name
        held = [p.requests for p in pods if p is not None and p.role == counted and p.running]
        resource = self._builder.policy_of(view.queue).resource
        return units(held or [view.pod_requests], resource)

    async def _write(self, key: str, uid: str, elastic: dict[str, Any]) -> bool:
        # The uid makes it a Conflict if another job bears the name by now.
        body = {"metadata": {"uid": uid}, "status": {"elastic": elastic}}
        namespace, name = key.split("/")
        jobs = self._cluster.jobs
        try:
            answer = await jobs.client.patch(
                jobs.resource, name, namespace, body, subresource="status"
            )
        except NotFound:
            return False
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("%s: what it used was not written: %s", key, error or "no answer")
            return False
        jobs.note_write(answer)
        return True
