"""One pod on a virtual node: starts its containers, tells how they fare, ends them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from volcano_elastic.kube import event
from volcano_elastic.kube.client import ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import CONFIGMAPS, EVENTS, PODS, SECRETS, Object
from volcano_elastic.local.kubelet.address import Resolve
from volcano_elastic.local.kubelet.environment import (
    ConfigError,
    command_line,
    environment,
    references,
    volume_refusal,
)
from volcano_elastic.local.kubelet.pod_status import (
    BACK_OFF_FORGIVEN,
    HOST_IP,
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    pod_status,
    restart_delay,
    terminated_reason,
)
from volcano_elastic.local.kubelet.process import Process, ProcessRuntime, StartError

_log = logging.getLogger(__name__)

LOG_DIR = "local.volcano-elastic.io/log-dir"
_NO_ANSWER = (aiohttp.ClientError, OSError, TimeoutError)
_SOURCES = {"ConfigMap": CONFIGMAPS, "Secret": SECRETS}
_SHUTDOWN_GRACE = 3.0


@dataclass(frozen=True, slots=True)
class Host:
    """What all pods of a kubelet share."""

    client: Client
    pods: Informer
    runtime: ProcessRuntime
    state_dir: Path
    # The resolver of host names for a namespace.
    resolver: Callable[[str], Resolve]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


class PodWorker:
    """Owns one pod, by uid, from its binding to its removal. `run` is its whole life."""

    def __init__(self, pod: Object, address: str, host: Host) -> None:
        self._host = host
        self._pod = pod
        self._address = address
        meta = pod["metadata"]
        self._name, self._namespace, self._uid = meta["name"], meta["namespace"], meta["uid"]
        self._policy = pod["spec"].get("restartPolicy", "Always")
        self._directory = host.state_dir / "pods" / f"{self._namespace}_{self._name}_{self._uid}"
        self._started = _start_time(pod) or host.now()
        spec, status = pod["spec"], pod.get("status", {})
        self._init = _records(
            spec.get("initContainers"), status.get("initContainerStatuses"), host.now()
        )
        self._containers = _records(spec["containers"], status.get("containerStatuses"), host.now())
        self._processes: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self._gone = False
        self._shut_down = False
        self._deadline = float("inf")
        self._deadline_moved = asyncio.Event()
        self._ended = False
        # Ended under an earlier kubelet, or evicted: there is nothing left to run or to tell.
        self._finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        self._dirty = asyncio.Event()
        self._written = asyncio.Event()
        self._events: set[asyncio.Task[None]] = set()

    def update(self, pod: Object) -> None:
        """A newer version of the pod; a deletion starts its end."""
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            self._stop(float(30 if grace is None else grace))

    def removed(self) -> None:
        """The pod is no more in the API: no grace, and nothing left to write to."""
        self._gone = True
        self._stop(0)

    def shut_down(self) -> None:
        """The kubelet ends: so do the containers, but the pod stays in the API."""
        self._shut_down = True
        self._stop(_SHUTDOWN_GRACE)

    def _stop(self, grace: float) -> None:
        self._stopping.set()
        deadline = asyncio.get_running_loop().time() + grace
        if deadline < self._deadline:
            self._deadline = deadline
            self._deadline_moved.set()

    async def run(self) -> None:
        writer = asyncio.create_task(self._write_status())
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not self._stopping.is_set() and not self._finished:
                await self._announce()
            work = asyncio.create_task(self._work())
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and (error := work.exception()):
                _log.error("pod %s: a defect in the kubelet: %r", self._key, error, exc_info=error)
            await stop
            await self._end(work)
            if not self._gone and not self._shut_down:
                await self._remove()
        finally:
            writer.cancel()

    # Containers

    async def _work(self) -> None:
        if self._finished:
            return
        self._changed()
        specs = {spec["name"]: spec for spec in self._pod["spec"].get("initContainers") or []}
        for record in self._init:
            if isinstance(record.state, Terminated) and record.state.exit_code == 0:
                continue
            # An init container that succeeded is done, even where containers always restart.
            policy = "Never" if self._policy == "Never" else "OnFailure"
            await self._live(specs[record.name], record, policy)
            state = record.state
            if self._stopping.is_set() or not isinstance(state, Terminated) or state.exit_code:
                return
        specs = {spec["name"]: spec for spec in self._pod["spec"]["containers"]}
        await asyncio.gather(
            *(self._live(specs[record.name], record, self._policy) for record in self._containers)
        )

    async def _live(self, spec: Object, record: ContainerRecord, policy: str) -> None:
        """Runs a container as often as its policy says, until the pod is stopping."""
        quick_ends = 0
        while not self._stopping.is_set():
            if not isinstance(record.state, Terminated):
                try:
                    await self._run_once(spec, record)
                except ConfigError as error:
                    record.state = Waiting("CreateContainerConfigError", str(error))
                    self._changed()
                    self._tell("Failed", f"container {record.name}: {error}", warning=True)
                    quick_ends += 1
                    await self._pause(restart_delay("Always", 1, quick_ends) or 0.0)
                    continue
            end = record.state
            if not isinstance(end, Terminated):
                return
            lived = (end.finished - end.started).total_seconds()
            quick_ends = 1 if lived >= BACK_OFF_FORGIVEN else quick_ends + 1
            delay = restart_delay(policy, end.exit_code, quick_ends)
            if delay is None or self._stopping.is_set():
                return
            record.last = end
            record.state = Waiting(
                "CrashLoopBackOff", f"back-off {delay:.0f}s restarting container {record.name}"
            )
            self._changed()
            self._tell(
                "BackOff",
                f"container {record.name} ended with exit code {end.exit_code} ({end.reason}); "
                f"it starts again in {delay:.0f} s",
                warning=True,
            )
            await self._pause(delay)
            record.restarts += 1

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _run_once(self, spec: Object, record: ContainerRecord) -> None:
        """One run: ends with the record Terminated, or still Waiting if the pod is stopping.

        Raises:
            ConfigError: it can't be started as things are.
        """
        refusal = volume_refusal(spec, self._pod)
        if refusal is not None:
            raise ConfigError(refusal)
        sources = await self._sources(spec)
        pod = self._pod | {"status": {"podIP": self._address, "hostIP": HOST_IP}}
        variables = {"HOSTNAME": self._name}
        variables |= environment(spec, pod, sources, self._host.resolver(self._namespace))
        if self._stopping.is_set():
            return
        started = self._host.now()
        try:
            try:
                command = command_line(spec, variables, sys.executable)
            except ConfigError as error:
                raise StartError(str(error)) from error
            process = self._host.runtime.start(
                command,
                variables,
                log=self._directory / f"{record.name}.log",
                owner=f"{self._uid}/{record.name}",
                directory=spec.get("workingDir") or None,
            )
        except StartError as error:
            record.state = Terminated(127, "StartError", started, started, str(error))
            (self._directory / f"{record.name}.log").open("a").write(f"{error}\n")
            self._changed()
            self._tell("Failed", f"container {record.name}: {error}", warning=True)
            return
        self._processes[record.name] = process
        record.container_id = f"process://{process.pid}"
        record.state = Running(started)
        self._changed()
        self._tell("Started", f"container {record.name} started as process {process.pid}")
        code = await process.exit_code
        del self._processes[record.name]
        reason = terminated_reason(code)
        record.state = Terminated(code, reason, started, self._host.now())
        self._changed()

    async def _sources(self, spec: Object) -> dict[tuple[str, str], Object]:
        found = {}
        for kind, name in references(spec):
            try:
                found[kind, name] = await self._host.client.get(
                    _SOURCES[kind], name, self._namespace
                )
            except NotFound:
                continue
            except (ApiError, *_NO_ANSWER) as error:
                raise ConfigError(f"reading {kind} {name!r}: {error}") from error
        return found

    # The end

    async def _end(self, work: asyncio.Task[None]) -> None:
        if self._processes:
            self._tell("Killing", "stopping " + ", ".join(sorted(self._processes)))
        loop = asyncio.get_running_loop()
        if self._deadline > loop.time():
            for process in self._processes.values():
                self._host.runtime.terminate(process)
        while not work.done() and (left := self._deadline - loop.time()) > 0:
            self._deadline_moved.clear()
            moved = asyncio.create_task(self._deadline_moved.wait())
            await asyncio.wait({work, moved}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
        while not work.done():
            for process in self._processes.values():
                self._host.runtime.kill(process)
            await asyncio.wait({work}, timeout=1.0)
        self._ended = True

    async def _remove(self) -> None:
        """Tells how it ended, then lets the API server forget the pod."""
        if self._finished:
            self._written.set()
        else:
            self._changed()
        try:
            async with asyncio.timeout(10):
                await self._written.wait()
        except TimeoutError:
            _log.warning("pod %s: its last status could not be written", self._key)
        delay = 0.1
        while not self._gone:
            try:
                await self._host.client.delete(
                    PODS, self._name, self._namespace, uid=self._uid, grace_period_seconds=0
                )
                return
            except (NotFound, Conflict):
                return
            except (ApiError, *_NO_ANSWER) as error:
                _log.warning("removing pod %s: %s", self._key, error or type(error).__name__)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
                if self._shut_down:
                    return

    # Telling

    @property
    def _key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _changed(self) -> None:
        self._written.clear()
        self._dirty.set()

    async def _announce(self) -> None:
        patch = {"metadata": {"uid": self._uid, "annotations": {LOG_DIR: str(self._directory)}}}
        await self._patch(patch, None)

    async def _write_status(self) -> None:
        last: Object | None = None
        while not self._gone:
            await self._dirty.wait()
            self._dirty.clear()
            status = pod_status(
                self._pod,
                self._init,
                self._containers,
                address=self._address,
                started=self._started,
                now=self._host.now(),
                stopped=self._ended,
            )
            if status != last:
                await self._patch({"metadata": {"uid": self._uid}, "status": status}, "status")
                last = status
            if not self._dirty.is_set():
                self._written.set()

    async def _patch(self, body: dict[str, Any], subresource: str | None) -> None:
        """Until it succeeds, or the pod is gone."""
        delay = 0.1
        while not self._gone:
            try:
                answer = await self._host.client.patch(
                    PODS, self._name, self._namespace, body, subresource=subresource
                )
            except (NotFound, Conflict):
                # Removed, or another pod bears the name: the informer will say so.
                return
            except (ApiError, *_NO_ANSWER) as error:
                _log.warning("writing pod %s: %s", self._key, error or type(error).__name__)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                self._host.pods.put(answer)
                return

    def _tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        if self._gone or self._shut_down:
            return
        task = asyncio.create_task(self._create_event(reason, message, warning))
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _create_event(self, reason: str, message: str, warning: bool) -> None:
        body = event.make(
            {"apiVersion": "v1", "kind": "Pod"} | self._pod,
            reason=reason,
            message=message,
            now=self._host.now(),
            component="kubelet",
            warning=warning,
        )
        try:
            await self._host.client.create(EVENTS, body)
        except (ApiError, *_NO_ANSWER) as error:
            _log.warning("event about pod %s: %s", self._key, error or type(error).__name__)


def _start_time(pod: Object) -> datetime | None:
    text = pod.get("status", {}).get("startTime")
    return datetime.fromisoformat(text) if text else None


def _records(
    specs: list[Object] | None, statuses: list[Object] | None, now: datetime
) -> list[ContainerRecord]:
    """Fresh records; where an earlier kubelet ran the container, its history goes on.

    Its processes died with it, so a container it left running has ended with code 137.
    """
    by_name = {status["name"]: status for status in statuses or []}
    records = []
    for spec in specs or []:
        record = ContainerRecord(spec["name"], spec.get("image", ""))
        status = by_name.get(spec["name"], {})
        record.restarts = int(status.get("restartCount", 0))
        record.container_id = status.get("containerID", "")
        state = status.get("state", {})
        if "running" in state:
            started = datetime.fromisoformat(state["running"]["startedAt"])
            record.state = Terminated(137, "Error", started, now, "its kubelet was killed")
        elif "terminated" in state:
            record.state = _terminated(state["terminated"])
        if "terminated" in status.get("lastState", {}):
            record.last = _terminated(status["lastState"]["terminated"])
        records.append(record)
    return records


def _terminated(state: Object) -> Terminated:
    return Terminated(
        int(state["exitCode"]),
        state.get("reason", ""),
        datetime.fromisoformat(state["startedAt"]),
        datetime.fromisoformat(state["finishedAt"]),
        state.get("message", ""),
    )
