"""`volcano-elastic brain`: kopf's handlers, under a Lease.

Of jobs and plans only low-level ones (`on.event`), which write nothing by themselves. kopf's timers
and daemons put a finalizer on each object (1.45: no argument turns it off, and without it they go
on after the object is gone), so that nobody could delete a job while Brain is away; its `on.create`
annotates it. The loop that measures is a task of `on.startup` in their place, and a probe tells
whether it goes on.

kopf has a thread and a loop of its own, since at its end it cancels whatever began after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import kopf

from volcano_elastic.api.brain_mode import BrainMode, mode_of
from volcano_elastic.api.pytorchjob_validation import queue
from volcano_elastic.api.queue_policy import InvalidPolicy, QueuePolicy, effective
from volcano_elastic.api.queue_policy import parse as parse_policy
from volcano_elastic.api.scale_plan import AUTO, TYPE_LABEL
from volcano_elastic.brain import observation, prometheus, served_job, standby
from volcano_elastic.brain.advice import Advice, Unknown, advise_running, recommendation
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.brain.plan_keeper import PlanKeeper, is_ours
from volcano_elastic.brain.prometheus import PrometheusError
from volcano_elastic.brain.recorder import Recorder
from volcano_elastic.brain.standby import UnusableAddress
from volcano_elastic.kube import event, health
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.lease import Election, Timing
from volcano_elastic.kube.resource import (
    EVENTS,
    LIMITRANGES,
    NODES,
    PODS,
    PYTORCHJOBS,
    QUEUEPOLICIES,
    QUEUES,
    RESOURCEQUOTAS,
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
_STUCK_SAMPLES, _STUCK_SECONDS = 3, 300.0
"""After so many samples, and so long beside, a loop that has not come round hangs."""
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
    unknown_memory: float = 2.0
    """How many times the memory that it asks for a job in mode Live begins with that too few runs
    are like, where nothing but nodes bounds memory."""
    metrics_address: tuple[str, int] | None = None
    """Host and port to serve /metrics on; None: nowhere."""


async def run(access: Access, options: Options) -> None:
    """Until cancelled. Of several, only the one that holds the Lease works.

    Raises:
        DatabaseError: the database's URL makes no sense.
        UnusableAddress: the metrics' or the liveness' address can't be listened on.
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

            waits = await stack.enter_async_context(contextlib.AsyncExitStack())
            await waits.enter_async_context(standby.alive(options.liveness))

            async def lead() -> None:
                # kopf serves that address from here on.
                await waits.aclose()
                metrics.leader.set(1)
                try:
                    await _in_a_thread(access, history, options, metrics)
                finally:
                    metrics.leader.set(0)
                    await waits.enter_async_context(standby.alive(options.liveness))

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
        self._keeper: PlanKeeper | None = None
        self._measured = time.monotonic()
        """When the loop that measures came round."""
        self._tasks: list[asyncio.Task[None]] = []
        self._unmeasured = ""

    def register(self, registry: kopf.OperatorRegistry) -> None:
        kopf.on.login(registry=registry)(_login)
        kopf.on.startup(registry=registry)(self._start)
        kopf.on.cleanup(registry=registry)(self._stop)
        group, version, plural = PYTORCHJOBS.group, PYTORCHJOBS.version, PYTORCHJOBS.plural
        kopf.on.event(group, version, plural, registry=registry)(self._job_changed)
        group, version, plural = SCALEPLANS.group, SCALEPLANS.version, SCALEPLANS.plural
        by_programs = {TYPE_LABEL: AUTO}
        kopf.on.event(group, version, plural, labels=by_programs, registry=registry)(
            self._plan_changed
        )
        kopf.on.probe(id="measured", registry=registry)(self._probe)

    async def _start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        # What handlers log is for the log, not for people's jobs.
        settings.posting.enabled = False
        settings.scanning.disabled = False
        self._client = Client(self._access, user_agent=COMPONENT)
        await self._client.__aenter__()
        self._keeper = PlanKeeper(self._client, self._options.live_after, self._metrics)
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

    async def _plan_changed(self, event: Any, body: Any, **_: Any) -> None:
        plan = dict(body)
        assert self._keeper is not None
        try:
            await self._keeper.changed(plan, self._jobs, deleted=event["type"] == "DELETED")
        except _TROUBLE as error:
            # The loop that measures tries it again.
            _log.warning("ScalePlan %s is not deleted yet: %s", key_of(plan), error)

    async def _probe(self, **_: Any) -> float:
        """Return for how many seconds nothing was measured.

        Raises:
            kopf.PermanentError: for so long that the loop can't be going on.
        """
        age = time.monotonic() - self._measured
        if age > _STUCK_SAMPLES * self._options.sample.total_seconds() + _STUCK_SECONDS:
            raise kopf.PermanentError(f"nothing was measured for {age:.0f} s")
        return round(age, 1)

    async def _advise(self, job: Object, run: Run) -> None:
        assert self._client is not None
        try:
            mode = self._mode(job, run, await self._policies())
            told = RECOMMENDATION in ((job.get("status") or {}).get("elastic") or {})
            if mode is not BrainMode.OFF and not (mode.carried_out and told):
                nodes = (await self._client.list(NODES))["items"]
                found = await self._recorder.advice(
                    job, run, observation.largest(nodes), await self._unknown(mode, job, nodes)
                )
                give = self._recommend if mode.carried_out else self._tell
                await give(self._client, job, run, found)
        except _TROUBLE as error:
            # Its next event is the next occasion.
            _log.warning("%s/%s gets no advice yet: %s", run.namespace, run.name, error)
            return
        self._advised.add(run.uid)

    async def _unknown(
        self, mode: BrainMode, job: Object, nodes: Iterable[Object]
    ) -> Unknown | None:
        """Return what a job begins with that too few runs are like, in the mode that corrects it
        later; None where a queue or its namespace bounds memory, which more might exceed."""
        factor, node = self._options.unknown_memory, observation.leanest(nodes)
        if mode is not BrainMode.LIVE or factor <= 1 or node is None:
            return None
        if observation.has_pods(job):
            return None
        namespace = job["metadata"].get("namespace", "default")
        try:
            bounded = observation.bounds_memory(
                queue(job),
                await self._served(QUEUES),
                await self._served(RESOURCEQUOTAS, namespace),
                await self._served(LIMITRANGES, namespace),
            )
        except ApiError as error:
            _log.warning("new kinds of jobs get no more memory than they ask for: %s", error)
            return None
        return None if bounded else Unknown(factor, node)

    async def _served(self, resource: Resource, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects; none where the API server doesn't know their kind."""
        assert self._client is not None
        with contextlib.suppress(NotFound):
            found: Sequence[Object] = (await self._client.list(resource, namespace))["items"]
            return found
        return ()

    async def _policies(self) -> dict[str, QueuePolicy]:
        return effective(_readable(await self._served(QUEUEPOLICIES)))

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
        if not is_ours(job):
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
            self._measured = time.monotonic()
            await asyncio.sleep(self._options.sample.total_seconds())
            try:
                await self._measure(self._client)
            except Exception:
                # One odd object must not end it for all; the next time may be better.
                _log.exception("loads could not be measured")

    async def _measure(self, client: Client) -> None:
        """Takes a sample of all jobs' pods, and advises the jobs that go by it."""
        try:
            pods = (await client.list(PODS, label_selector=JOB_NAME))["items"]
        except _TROUBLE as error:
            self._say_unmeasured(f"pods: {error}")
            # What could not be written before may be now.
            await self._recorder.pods_measured((), {}, {})
            return
        used = await self._used(client, pods)
        self._metrics.measured_pods.set(len(used))
        gpus = observation.reported_gpus(self._jobs.values(), datetime.now(UTC))
        await self._recorder.pods_measured(pods, used, gpus)
        try:
            await self._follow(client)
        except _TROUBLE as error:
            _log.warning("no running job gets advice yet: %s", error)

    async def _used(self, client: Client, pods: Iterable[Object]) -> dict[tuple[str, str], Amounts]:
        """Return what pods use: as the trainer in them told, else by the metrics API or Prometheus,
        which is asked only where one runs that told nothing."""
        told = observation.reported(self._jobs.values(), datetime.now(UTC))
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
        policies = await self._policies()
        runs = {uid: self._recorder.known(uid) for uid in self._jobs}
        live = [
            (job, run)
            for uid, job in self._jobs.items()
            if (run := runs[uid]) and self._mode(job, run, policies) is BrainMode.LIVE
        ]
        node = await self._largest_node(client) if live else None
        if self._keeper and any(served_job.is_served(job) for job in self._jobs.values()):
            served = [(job, run) for job, run in live if served_job.is_served(job)]
            # A copy: jobs come and go while plans are written.
            await self._keeper.keep(served, list(self._jobs.values()), node, datetime.now(UTC))
        for job, run in live:
            if served_job.is_served(job):
                continue
            found = advise_running(job, run, node, datetime.now(UTC), self._options.live_after)
            if found:
                await self._recommend(client, job, run, found)

    async def _forget_for_ever(self) -> None:
        while True:
            await self._recorder.forget_old()
            await asyncio.sleep(_DAY_SECONDS)


def _readable(objects: Iterable[Object]) -> Iterator[QueuePolicy]:
    for one in objects:
        # Its own status says what is wrong with it.
        with contextlib.suppress(InvalidPolicy):
            yield parse_policy(one)


def _login(**given: Any) -> Any:
    return kopf.login_via_client(**given)
