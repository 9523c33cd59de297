"""`volcano-elastic brain`: kopf's handlers, under a Lease.

Only low-level handlers (`on.event`): a timer or `on.create` of kopf would write finalizers and
annotations to people's jobs. kopf has a thread and a loop of its own, since at its end it cancels
whatever began after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import kopf

from volcano_elastic.api import pytorchjob_validation
from volcano_elastic.api.brain_mode import BrainMode, mode_of
from volcano_elastic.api.pytorchjob_shape import CONTROLLER
from volcano_elastic.api.queue_policy import InvalidPolicy, QueuePolicy, effective
from volcano_elastic.api.queue_policy import parse as parse_policy
from volcano_elastic.api.scale_plan import AUTO, TYPE_LABEL
from volcano_elastic.brain import auto_plan, observation, prometheus, served_job
from volcano_elastic.brain.advice import Advice, Unknown, advise_running, recommendation
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.brain.prometheus import PrometheusError
from volcano_elastic.brain.recorder import Recorder
from volcano_elastic.kube import event, health
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.lease import Election, Timing
from volcano_elastic.kube.resource import (
    EVENTS,
    NODES,
    PODS,
    PYTORCHJOBS,
    QUEUEPOLICIES,
    SCALEPLANS,
    Object,
    Resource,
    key_of,
)
from volcano_elastic.pytorchjob.at_start import RECOMMENDATION
from volcano_elastic.pytorchjob.label import JOB_NAME

_log = logging.getLogger(__name__)
COMPONENT = "volcano-elastic-brain"
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
_DAY_SECONDS = 86_400.0
_TROUBLE = (ApiError, aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Options:
    database: str
    mode: BrainMode
    """The mode of jobs of which neither annotation nor queue says one."""
    sample: timedelta
    keep: timedelta
    live_after: timedelta
    """How long a running job is measured before it is advised by that."""
    lease_namespace: str | None = None
    liveness: str | None = None
    """URL to listen on, e.g. http://0.0.0.0:8080/healthz."""
    prometheus: str | None = None
    """URL to ask for loads in place of the metrics API."""
    unknown_memory: float = 1.0
    """How many times the memory that it asks for a job in mode Live begins with that too few runs
    are like."""
    metrics_address: tuple[str, int] | None = None
    """Host and port to serve /metrics on; None: nowhere."""


class UnusableAddress(Exception):
    """An address that can't be listened on; says which and why."""


async def run(access: Access, options: Options) -> None:
    """Until cancelled. Of several, only the one that holds the Lease works.

    Raises:
        DatabaseError: the database's URL makes no sense.
        UnusableAddress: the metrics' address can't be listened on.
    """
    history, metrics = History(options.database), Metrics()
    try:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(access, user_agent=COMPONENT))
            if options.metrics_address is not None:
                host, port = options.metrics_address
                try:
                    port = await stack.enter_async_context(
                        health.serve(host, port, metrics.registry, lambda: "")
                    )
                except OSError as error:
                    raise UnusableAddress(f"{host}:{port}: {error.strerror}") from error
                _log.info("metrics on http://%s:%d/metrics", host, port)
            election = Election(
                client,
                namespace=options.lease_namespace or access.namespace,
                name=COMPONENT,
                identity=f"{socket.gethostname()}_{uuid.uuid4()}",
                timing=Timing(),
            )

            async def lead() -> None:
                metrics.leader.set(1)
                try:
                    await _in_a_thread(access, history, options, metrics)
                finally:
                    metrics.leader.set(0)

            await election.run(lead)
    finally:
        history.close()


async def _in_a_thread(
    access: Access, history: History, options: Options, metrics: Metrics
) -> None:
    stop = threading.Event()
    registry = kopf.OperatorRegistry()
    _Brain(access, history, options, metrics).register(registry)
    running = asyncio.create_task(
        asyncio.to_thread(
            kopf.run,
            registry=registry,
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
            liveness_endpoint=options.liveness,
        )
    )
    try:
        await asyncio.shield(running)
    finally:
        stop.set()
        await asyncio.wait({running})


class _Brain:
    def __init__(
        self, access: Access, history: History, options: Options, metrics: Metrics
    ) -> None:
        self._access, self._options, self._metrics = access, options, metrics
        self._recorder = Recorder(history, lambda: datetime.now(UTC), options.keep, metrics)
        self._client: Client | None = None
        self._advised: set[str] = set()
        """Uids."""
        self._jobs: dict[str, Object] = {}
        """By uid, those that go on."""
        self._tasks: list[asyncio.Task[None]] = []
        self._unmeasured = ""

    def register(self, registry: kopf.OperatorRegistry) -> None:
        kopf.on.login(registry=registry)(_login)
        kopf.on.startup(registry=registry)(self._start)
        kopf.on.cleanup(registry=registry)(self._stop)
        group, version, plural = PYTORCHJOBS.group, PYTORCHJOBS.version, PYTORCHJOBS.plural
        kopf.on.event(group, version, plural, registry=registry)(self._job_changed)

    async def _start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        # What handlers log is for the log, not for people's jobs.
        settings.posting.enabled = False
        settings.scanning.disabled = False
        self._client = Client(self._access, user_agent=COMPONENT)
        await self._client.__aenter__()
        for again in (self._measure_for_ever, self._forget_for_ever):
            self._tasks.append(asyncio.create_task(again()))

    async def _stop(self, **_: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.__aexit__(None, None, None)

    async def _job_changed(self, event: Any, body: Any, **_: Any) -> None:
        job = dict(body)
        found = await self._recorder.job_changed(job, deleted=event["type"] == "DELETED")
        if found.outcome:
            self._jobs.pop(found.uid, None)
        else:
            self._jobs[found.uid] = job
        self._metrics.jobs.set(len(self._jobs))
        if found.outcome or found.uid in self._advised:
            return
        if mode_of(job["metadata"].get("annotations") or {}, None) is BrainMode.OFF:
            return
        await self._advise(job, found)

    async def _advise(self, job: Object, run: Run) -> None:
        assert self._client is not None
        try:
            mode = self._mode(job, run, await self._policies(self._client))
            told = RECOMMENDATION in ((job.get("status") or {}).get("elastic") or {})
            if mode is not BrainMode.OFF and not (mode.carried_out and told):
                nodes = (await self._client.list(NODES))["items"]
                found = await self._recorder.advice(
                    job, run, observation.largest(nodes), self._unknown(mode, nodes)
                )
                give = self._recommend if mode.carried_out else self._tell
                await give(self._client, job, run, found)
        except _TROUBLE as error:
            # Its next event is the next occasion.
            _log.warning("%s/%s gets no advice yet: %s", run.namespace, run.name, error)
            return
        self._advised.add(run.uid)

    def _unknown(self, mode: BrainMode, nodes: Iterable[Object]) -> Unknown | None:
        """Return what a job begins with that too few runs are like, in the mode that corrects it
        later."""
        factor, node = self._options.unknown_memory, observation.leanest(nodes)
        if mode is not BrainMode.LIVE or factor <= 1 or node is None:
            return None
        return Unknown(factor, node)

    async def _policies(self, client: Client) -> dict[str, QueuePolicy]:
        try:
            objects = (await client.list(QUEUEPOLICIES))["items"]
        except NotFound:
            return {}
        return effective(_readable(objects))

    def _mode(self, job: Object, run: Run, policies: Mapping[str, QueuePolicy]) -> BrainMode:
        policy = policies.get(run.queue)
        annotations = job["metadata"].get("annotations") or {}
        return mode_of(annotations, policy.brain.mode if policy else None) or self._options.mode

    async def _tell(self, client: Client, job: Object, run: Run, found: Sequence[Advice]) -> None:
        for advice in found:
            # Named by what it is about, so that the next leader doesn't tell it again.
            digest = hashlib.sha256(f"{run.uid} {advice.role}".encode()).hexdigest()[:12]
            told = event.make(
                job,
                reason="ResourcesRecommended",
                message=str(advice),
                now=datetime.now(UTC),
                component=COMPONENT,
                name=f"{run.name}.{digest}",
            )
            with contextlib.suppress(AlreadyExists):
                await client.create(EVENTS, told)
                self._metrics.advice.labels("told").inc()

    async def _recommend(
        self, client: Client, job: Object, run: Run, found: Sequence[Advice]
    ) -> None:
        """Writes it where the operator looks before it makes the job's first pods."""
        if not _is_ours(job):
            return
        told = {"elastic": {RECOMMENDATION: recommendation(found, datetime.now(UTC))}}
        body = {"metadata": {"uid": run.uid}, "status": told}
        # Gone, or another of its name: that one has an event of its own.
        with contextlib.suppress(NotFound, Conflict):
            await client.patch(PYTORCHJOBS, run.name, run.namespace, body, subresource="status")
            self._metrics.advice.labels("recommended").inc(len(found))

    async def _largest_node(self, client: Client) -> Amounts | None:
        return observation.largest((await client.list(NODES))["items"])

    async def _measure_for_ever(self) -> None:
        assert self._client is not None
        while True:
            await asyncio.sleep(self._options.sample.total_seconds())
            try:
                pods = (await self._client.list(PODS, label_selector=JOB_NAME))["items"]
            except _TROUBLE as error:
                self._say_unmeasured(f"pods: {error}")
                # What could not be written before may be now.
                await self._recorder.pods_measured((), {}, {})
                continue
            used = await self._used(self._client, pods)
            self._metrics.measured_pods.set(len(used))
            gpus = observation.told_gpus(self._jobs.values(), datetime.now(UTC))
            await self._recorder.pods_measured(pods, used, gpus)
            try:
                await self._follow(self._client)
            except _TROUBLE as error:
                _log.warning("no running job gets advice yet: %s", error)

    async def _used(self, client: Client, pods: Iterable[Object]) -> dict[tuple[str, str], Amounts]:
        """Return what pods use: as the trainer in them told, else by the metrics API or Prometheus,
        which is asked only where one runs that told nothing."""
        told = observation.told(self._jobs.values(), datetime.now(UTC))
        if not any(observation.runs_untold(pod, told) for pod in pods):
            return told
        try:
            if self._options.prometheus is not None:
                found = await prometheus.used(self._options.prometheus)
            else:
                listed = await client.list(POD_METRICS, label_selector=JOB_NAME)
                found = observation.usage(listed["items"])
        except PrometheusError as error:
            self._say_unmeasured(str(error))
            return told
        except _TROUBLE as error:
            self._say_unmeasured(f"metrics API, for pods that have no trainer of ours: {error}")
            return told
        self._unmeasured = ""
        return found | told

    def _say_unmeasured(self, why: str) -> None:
        if why != self._unmeasured:
            self._unmeasured = why
            _log.warning("loads are not measured: %s", why)

    async def _follow(self, client: Client) -> None:
        """Recommends to jobs in mode Live what their own pods turn out to need."""
        policies = await self._policies(client)
        runs = {uid: self._recorder.known(uid) for uid in self._jobs}
        live = [
            (job, run)
            for uid, job in self._jobs.items()
            if (run := runs[uid]) and self._mode(job, run, policies) is BrainMode.LIVE
        ]
        node = await self._largest_node(client) if live else None
        if any(served_job.is_served(job) for job in self._jobs.values()):
            served = [(job, run) for job, run in live if served_job.is_served(job)]
            await self._keep_plans(client, served, node)
        for job, run in live:
            if served_job.is_served(job):
                continue
            found = advise_running(job, run, node, datetime.now(UTC), self._options.live_after)
            if found:
                await self._recommend(client, job, run, found)

    async def _keep_plans(
        self, client: Client, live: Sequence[tuple[Object, Run]], node: Amounts | None
    ) -> None:
        """Writes ScalePlans of jobs with parameter servers in mode Live, and removes others'."""
        try:
            found = await client.list(SCALEPLANS, label_selector=f"{TYPE_LABEL}={AUTO}")
        except NotFound:
            return
        plans = {key_of(obj): obj for obj in found["items"]}
        for job, run in live:
            if not _is_ours(job):
                continue
            there = plans.get(f"{run.namespace}/{auto_plan.name_of(job)}")
            await self._keep_plan(client, job, run, there, node)
        followed = {run.uid for _, run in live}
        for uid, job in self._jobs.items():
            key = f"{job['metadata'].get('namespace', 'default')}/{auto_plan.name_of(job)}"
            if uid not in followed and key in plans and auto_plan.kept(job, plans[key]):
                await self._delete_plan(client, plans[key])

    async def _keep_plan(
        self, client: Client, job: Object, run: Run, there: Object | None, node: Amounts | None
    ) -> None:
        now, wait = datetime.now(UTC), self._options.live_after
        if there is None:
            size = served_job.planned(job, run, None, node, now, wait)
            if size is not None:
                # Another program's, or a leader's before: looked at next time.
                with contextlib.suppress(AlreadyExists):
                    await client.create(SCALEPLANS, auto_plan.made(job, size))
                    self._metrics.plans.labels("created").inc()
            return
        kept = auto_plan.kept(job, there)
        if kept is None or kept.is_beaten:
            return
        if kept.is_over:
            await self._delete_plan(client, there)
            return
        size = served_job.planned(job, run, kept.plan.roles, node, now, wait)
        patch = auto_plan.patch(kept, size, now)
        if patch is not None:
            patch.setdefault("metadata", {})["uid"] = there["metadata"]["uid"]
            with contextlib.suppress(NotFound, Conflict):
                await client.patch(SCALEPLANS, kept.plan.name, kept.plan.namespace, patch)
                self._metrics.plans.labels("patched").inc()

    async def _delete_plan(self, client: Client, plan: Object) -> None:
        meta = plan["metadata"]
        with contextlib.suppress(NotFound, Conflict):
            await client.delete(SCALEPLANS, meta["name"], meta["namespace"], uid=meta["uid"])
            self._metrics.plans.labels("deleted").inc()

    async def _forget_for_ever(self) -> None:
        while True:
            await self._recorder.forget_old()
            await asyncio.sleep(_DAY_SECONDS)


def _is_ours(job: Object) -> bool:
    """Return whether the operator carries the job out, not another controller."""
    policy = pytorchjob_validation.run_policy(job)
    return bool(policy.get("managedBy", CONTROLLER) == CONTROLLER)


def _readable(objects: Iterable[Object]) -> Iterator[QueuePolicy]:
    for one in objects:
        # Its own status says what is wrong with it.
        with contextlib.suppress(InvalidPolicy):
            yield parse_policy(one)


def _login(**given: Any) -> Any:
    return kopf.login_via_client(**given)
