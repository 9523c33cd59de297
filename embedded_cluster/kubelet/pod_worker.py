"""One pod on a virtual node: carries out what its lifecycle decides, and tells how it fares."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from embedded_cluster.apiserver.log import LOG_FOLDER_ANNOTATION
from embedded_cluster.kubelet import environment, fault, not_served, termination, volume
from embedded_cluster.kubelet.container import Container
from embedded_cluster.kubelet.lifecycle import Action, ContainerCommand, Lifecycle, PodEvent
from embedded_cluster.kubelet.names import Names
from embedded_cluster.kubelet.pod_report import PodReport
from embedded_cluster.kubelet.pod_status import HOST_IP, PodFailure
from embedded_cluster.kubelet.process import Command, Process, ProcessRuntime
from embedded_cluster.kubelet.source import ConfigError, StartError, references
from volcano_elastic.api.quantity import QuantityError, milli
from volcano_elastic.kube.client import ApiError, Client, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import CONFIGMAPS, SECRETS, Object

_log = logging.getLogger(__name__)

_SOURCES = {"ConfigMap": CONFIGMAPS, "Secret": SECRETS}
_SHUTDOWN_GRACE = 3.0


@dataclass(frozen=True, slots=True)
class Host:
    """The facilities that all pods of a kubelet share."""

    client: Client
    pods: Informer
    runtime: ProcessRuntime
    names: Names
    state_dir: Path
    memory_dir: Path
    """On a tmpfs, for this kubelet alone."""
    back_off: float
    """Seconds; see Lifecycle."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class PodWorker:
    """Owns one pod, by uid, from its binding to its removal. `run` is its whole life."""

    def __init__(self, pod: Object, address: str, host: Host) -> None:
        self._host, self._pod, self._address = host, pod, address
        meta = pod["metadata"]
        self._name, self._namespace, self._uid = meta["name"], meta["namespace"], meta["uid"]
        self._folder = host.state_dir / "pods" / f"{self._namespace}_{self._name}_{self._uid}"
        self._hosts = self._folder / "etc-hosts"
        self._volumes = volume.Volumes(self._folder / "volumes", host.memory_dir / self._uid)
        self._life = Lifecycle(pod, host.now(), host.back_off)
        self._processes: dict[str, Process] = {}
        self._happened = asyncio.Event()
        self.crashed = False
        self._frozen = False
        """True while all of its processes are stopped, as its node is."""
        self._shut_down = False
        self._fault = ""
        self._report = PodReport(pod, host.client, host.pods, self._status)
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, pod: Object) -> None:
        """A newer version of the pod; a deletion starts its end."""
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            self._life.stop(float(30 if grace is None else grace), self._host.now())
        if (wanted := fault.annotated(pod)) != self._fault:
            before, self._fault = self._fault, wanted
            self._spawn(self._apply_fault(before, wanted))
        self._happened.set()

    def removed(self) -> None:
        """The pod is no more in the API: no grace, and nothing left to write to."""
        self._report.closed = True
        self._life.stop(0, self._host.now())
        self._happened.set()

    @property
    def key(self) -> str:
        return self._report.key

    @property
    def uid(self) -> str:
        return str(self._uid)

    @property
    def node(self) -> str:
        return str(self._pod["spec"]["nodeName"])

    def cut_off(self, *, frozen: bool) -> None:
        """Its kubelet reaches no API server, and hears of nothing; its processes go on, unless
        they are frozen."""
        self._report.cut_off()
        if frozen != self._frozen:
            self._frozen = frozen
            for process in self._processes.values():
                (self._host.runtime.freeze if frozen else self._host.runtime.thaw)(process)

    def reconnect(self, pod: Object | None) -> None:
        """Its kubelet works again, and finds this pod; None: it is no more in the API."""
        self.cut_off(frozen=False)
        if pod is None:
            self._report.closed = True
        self._report.reconnect()
        if pod is None:
            self.removed()
        else:
            self.update(pod)

    def crash(self) -> None:
        """Its node is down: its processes are gone, and nobody tells."""
        self.crashed = True
        self.removed()

    def shut_down(self) -> None:
        """The kubelet ends: so do the containers, but the pod stays in the API."""
        self._shut_down = True
        self._life.stop(_SHUTDOWN_GRACE, self._host.now())
        self._happened.set()

    @property
    def _leaving(self) -> bool:
        deleted = bool(self._pod["metadata"].get("deletionTimestamp"))
        return deleted or self._report.closed or self._shut_down

    async def run(self) -> None:
        writer = asyncio.create_task(self._report.write_changes())
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._life.finished and not self._leaving:
                await self._report.annotate({LOG_FOLDER_ANNOTATION: str(self._folder)})
            await self._live()
            if not self._report.closed and not self._shut_down:
                await self._report.remove(with_status=not self._life.finished)
        finally:
            for task in (writer, *self._tasks):
                task.cancel()
            self._host.names.drop_hosts(self._hosts)
            if not self.crashed and not self._shut_down:
                await asyncio.to_thread(self._volumes.remove)

    async def _live(self) -> None:
        life = self._life
        while True:
            self._happened.clear()
            for action in life.advance(self._host.now()):
                self._do(action)
            if not life.finished:
                self._report.changed()
            if life.over and self._leaving:
                return
            left = None
            if life.wake is not None:
                left = max((life.wake - self._host.now()).total_seconds(), 0.0)
            try:
                async with asyncio.timeout(left):
                    await self._happened.wait()
            except TimeoutError:
                pass

    def _do(self, action: Action) -> None:
        match action:
            case ContainerCommand("start", container):
                self._spawn(self._start(container))
            case ContainerCommand("terminate", container):
                if process := self._processes.get(container.name):
                    self._host.runtime.terminate(process)
            case ContainerCommand(_, container):
                self._host.runtime.kill(self._processes[container.name])
            case PodEvent():
                self._tell(action)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._happened.set()
        if not task.cancelled() and (error := task.exception()):
            _log.error(
                "pod %s: a defect in the kubelet: %r", self._report.key, error, exc_info=error
            )

    # Containers

    async def _start(self, container: Container) -> None:
        life = self._life
        try:
            command = await self._command(container)
            if life.stopping:
                life.given_up(container)
                return
            process = await self._host.runtime.start(command)
        except (ConfigError, OSError) as error:
            # An OSError is the machine's: its disk may have room again, or it more descriptors.
            self._tell(*life.not_made(container, str(error), self._host.now()))
        except volume.NotMounted as error:
            self._tell(*life.not_made(container, str(error), self._host.now(), mounting=True))
        except StartError as error:
            with contextlib.suppress(OSError), self._log(container.name).open("a") as log:
                log.write(f"{error}\n")
            self._tell(*life.not_started(container, str(error), self._host.now()))
        except BaseException:
            life.given_up(container)
            raise
        else:
            self._processes[container.name] = process
            life.started(container, f"process://{process.pid}", self._host.now())
            self._tell(PodEvent("Started", f"Started container {container.name}"))
            if ignored := not_served.ignored(container.spec, self._pod):
                self._tell(PodEvent("NotServed", ignored, warning=True))
            self._spawn(self._await_end(container, process))
            if self._frozen:
                self._host.runtime.freeze(process)
            elif fault.parse(self._fault) and self._fault.startswith("freeze"):
                await self._apply_fault("", self._fault)

    async def _command(self, container: Container) -> Command:
        """Raises ConfigError, NotMounted, StartError."""
        spec, isolation = container.spec, self._host.runtime.isolation
        refusal = not_served.refusal(spec) or volume.refusal(self._pod)
        if refusal or (not isolation and (refusal := volume.without_namespaces(spec, self._pod))):
            raise ConfigError(refusal)
        pod = self._pod | {"status": {"podIP": self._address, "hostIP": HOST_IP}}
        sources = await self._sources(environment.entries(spec) + volume.volumes_of(pod))
        if isolation:
            await asyncio.to_thread(self._volumes.make, pod, sources)
        hostname = str(self._pod["spec"].get("hostname") or self._name)
        resolve = None if isolation else self._host.names.resolver(self._namespace)
        # Pods share this process' control group: its load is nobody's own.
        variables = {"HOSTNAME": hostname, "VOLCANO_ELASTIC_CONTROL_GROUP": ""}
        variables |= environment.environment(spec, pod, sources, resolve)
        message = self._message(spec)
        variables |= {} if isolation else {termination.VARIABLE: str(message)}
        mounts = self._mounts(spec, message) if isolation else []
        root, log = self._folder / "root", self._log(container.name)
        root.mkdir(exist_ok=True)
        return Command(
            environment.command_line(spec, variables, sys.executable),
            variables,
            log,
            log_start=log.stat().st_size if log.exists() else 0,
            directory=spec.get("workingDir") or None,
            hostname=hostname,
            root=root,
            mounts=mounts,
            limit=_memory_limit(spec),
        )

    def _message(self, spec: Object) -> Path:
        """Return the file for a container's termination message, made anew."""
        message = self._folder / f"{spec['name']}.termination"
        message.write_bytes(b"")
        # Whoever the container's programs run as.
        message.chmod(0o666)
        return message

    def _mounts(self, spec: Object, message: Path) -> list[volume.Mount]:
        path = spec.get("terminationMessagePath") or termination.PATH
        mounts = [volume.Mount(str(message), path)]
        if not self._pod["spec"].get("hostNetwork"):
            self._host.names.keep_hosts(self._hosts, self._pod, self._address)
            mounts.append(volume.Mount(str(self._hosts), "/etc/hosts"))
        return mounts + self._volumes.mounts(spec, self._pod)

    async def _sources(self, entries: list[Object]) -> dict[tuple[str, str], Object]:
        found = {}
        for kind, name in references(entries):
            try:
                found[kind, name] = await self._host.client.get(
                    _SOURCES[kind], name, self._namespace
                )
            except NotFound:
                continue
            except (ApiError, aiohttp.ClientError, OSError) as error:
                raise ConfigError(f"reading {kind} {name!r}: {error}") from error
        return found

    async def _await_end(self, container: Container, process: Process) -> None:
        end = await process.end
        del self._processes[container.name]
        message = termination.message(
            container.spec,
            end.code,
            self._folder / f"{container.name}.termination",
            process.command.log,
            process.command.log_start,
        )
        self._life.ended(container, end.code, self._host.now(), oom=end.oom, message=message)

    def _status(self) -> Object:
        return self._life.status(self._pod, self._address, self._host.now())

    def _tell(self, *told: PodEvent) -> None:
        if not self._report.closed and not self._shut_down:
            for one in told:
                self._spawn(self._report.tell(one))

    def _log(self, container: str) -> Path:
        return self._folder / f"{container}.log"

    # Faults

    async def _apply_fault(self, before: str, wanted: str) -> None:
        if (was := fault.parse(before)) and was.kind == "freeze":
            for process in self._hit(was):
                self._host.runtime.thaw(process)
        now = fault.parse(wanted)
        if now is None:
            if wanted:
                message = f"{fault.ANNOTATION}: expected kill, oom, evict or freeze, found {wanted}"
                self._tell(PodEvent("UnknownFault", message, warning=True))
            return
        if now.kind == "freeze":
            for process in self._hit(now):
                self._host.runtime.freeze(process)
            return
        # Forgotten first, so that a kubelet that dies meanwhile doesn't do it twice.
        await self._report.annotate({fault.ANNOTATION: None})
        if now.kind == "evict":
            self._life.fail(
                PodFailure("Evicted", "The node was low on resource: by request.", disruption=True),
                self._host.now(),
            )
            return
        for process in self._hit(now):
            self._host.runtime.kill(process, oom=now.kind == "oom")

    def _hit(self, wanted: fault.PodFault) -> list[Process]:
        return [
            process for name, process in self._processes.items() if wanted.container in (None, name)
        ]


def _memory_limit(container: Object) -> int:
    """Bytes; 0: none."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    try:
        return 0 if limit is None else milli(limit) // 1000
    except QuantityError as error:
        raise ConfigError(f"resources.limits.memory: {error}") from error
