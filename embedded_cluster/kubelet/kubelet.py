"""N virtual nodes in one process: their registration, and the pods bound to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from embedded_cluster.kubelet.address import AddressBook
from embedded_cluster.kubelet.fake import FakePods
from embedded_cluster.kubelet.fault import NodeFaultKind
from embedded_cluster.kubelet.log_server import serving
from embedded_cluster.kubelet.names import Names
from embedded_cluster.kubelet.node import VirtualNodes, node_names, register
from embedded_cluster.kubelet.node_lifecycle import NodeLifecycle
from embedded_cluster.kubelet.pod_status import HOST_IP
from embedded_cluster.kubelet.pod_worker import Host, PodWorker
from embedded_cluster.kubelet.prepared import PreparedPython
from embedded_cluster.kubelet.process import ProcessRuntime
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import NAMESPACES, NODES, PODS, SERVICES, Object, key_of

_log = logging.getLogger(__name__)

_REGISTER_SECONDS = 30.0
# No other folder may be called so: those of kubelets that are gone are removed.
_MEMORY_FOLDER = "volcano-elastic-kubelet-"


@dataclass(slots=True)
class Options:
    """Options of a kubelet; `--help` explains each."""

    kubeconfig: str | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    mode: str = "process"
    state_dir: Path | None = None
    serve_logs: Sequence[Path] = ()
    plain: bool = False
    restart_back_off: float = 10.0
    node_monitor_grace_period: float | None = None
    prepared: PreparedPython | None = None


class ProcessPods:
    """A worker for each pod on our nodes, by uid. Make it once the informers have synced."""

    def __init__(
        self, pods: Informer, nodes: VirtualNodes, addresses: AddressBook, host: Host
    ) -> None:
        self._pods, self._nodes = pods, nodes
        self._addresses, self._host = addresses, host
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        pods.on_change(self._on_change)
        nodes.handlers.append(self._on_outage)
        for pod in pods:
            self._on_change(None, pod)

    async def stop(self) -> None:
        """Ends every container; the pods stay in the API."""
        self._stopping = True
        for worker in self._workers.values():
            worker.shut_down()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=10)
            for task in late:
                task.cancel()

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        if self._stopping:
            return
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            gone = self._workers.get(old["metadata"]["uid"])
            if gone is not None and self._nodes.up(gone.node):
                gone.removed()
            elif gone is not None and not gone.crashed:
                self._addresses.renew(*gone.key.split("/"))
        if new is None or not self._nodes.up(new["spec"].get("nodeName")):
            return
        uid = new["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is None:
            meta = new["metadata"]
            address = self._addresses.of(meta["namespace"], meta["name"])
            if new["spec"].get("hostNetwork"):
                address = HOST_IP
            worker = self._workers[uid] = PodWorker(new, address, self._host)
            task = asyncio.create_task(worker.run())
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._finished(task, uid, key_of(new)))
        if not worker.crashed:
            worker.update(new)

    def _on_outage(self, name: str, kind: NodeFaultKind | None) -> None:
        workers = [w for w in self._workers.values() if w.node == name and not w.crashed]
        for worker in workers:
            if kind == "down":
                worker.crash()
            elif kind is not None:
                worker.cut_off(frozen=kind == "frozen")
            else:
                pod = self._pods.get(worker.key)
                same = pod is not None and pod["metadata"]["uid"] == worker.uid
                worker.reconnect(pod if same else None)
        for pod in self._pods:
            if kind is None and pod["spec"].get("nodeName") == name:
                self._on_change(None, pod)

    def _finished(self, task: asyncio.Task[None], uid: str, key: str) -> None:
        self._tasks.discard(task)
        worker = self._workers.pop(uid)
        if not task.cancelled() and (error := task.exception()):
            _log.error("pod %s: a defect in the kubelet: %r", key, error, exc_info=error)
        pod = self._pods.get(key)
        if worker.crashed and pod is not None:
            # Its node may be up again by now.
            self._on_change(None, pod)


async def serve(options: Options) -> None:
    """Until cancelled; then every container has ended.

    Raises:
        KubeconfigError: no usable kubeconfig.
        OSError: a file or folder of `options` can't be used.
        ApiError: a node was refused.
        ConnectionError: no API server answered for half a minute.
    """
    names, gpus = node_names(options.nodes), options.gpus_per_node
    async with (
        Client.from_kubeconfig(options.kubeconfig, user_agent="volcano-elastic-kubelet") as client,
        AsyncExitStack() as stack,
    ):
        pods, all_nodes = Informer(client, PODS), Informer(client, NODES)
        if (state := options.state_dir) is None:
            temporary = tempfile.TemporaryDirectory(prefix="volcano-elastic-pods-")
            state = Path(stack.enter_context(temporary))
        state = state.resolve()
        state.mkdir(parents=True, exist_ok=True)
        port = None
        if options.serve_logs:
            port = await stack.enter_async_context(serving(pods, *options.serve_logs))
        await _until_answered(client, lambda: register(client, names, gpus, port))
        nodes = VirtualNodes(client, names, gpus, port)
        all_nodes.on_change(nodes.on_change)
        async with asyncio.TaskGroup() as group:

            def on_outage(name: str, kind: NodeFaultKind | None) -> None:
                if kind is None:
                    group.create_task(nodes.beat(name, returned=True))

            nodes.handlers.append(on_outage)
            for informer in (pods, all_nodes):
                group.create_task(informer.run())
            await all_nodes.synced.wait()
            group.create_task(nodes.run())
            if (grace := options.node_monitor_grace_period) is not None:
                # Not by the leases: while nobody can renew any, no node is to blame.
                watcher = NodeLifecycle(client, all_nodes, pods, names, nodes.seconds_silent, grace)
                group.create_task(watcher.run())
            if options.mode == "fake":
                fake = FakePods(client, pods, frozenset(names), nodes.silent)
                nodes.handlers.append(fake.on_outage)
                group.create_task(fake.run())
            else:
                group.create_task(_run_pods(client, pods, nodes, options, state))


async def _run_pods(
    client: Client, pods: Informer, nodes: VirtualNodes, options: Options, state: Path
) -> None:
    services = Informer(client, SERVICES)
    # A cluster is known by its kube-system, as everywhere in Kubernetes.
    cluster = await client.get(NAMESPACES, "kube-system")
    addresses = AddressBook(cluster["metadata"]["uid"])
    with _memory_folder() as memory:
        processes = ProcessRuntime(plain=options.plain, prepared=options.prepared)
        async with processes as runtime, asyncio.TaskGroup() as group:
            watching = group.create_task(services.run())
            await services.synced.wait()
            await pods.synced.wait()
            names = Names(pods, services, addresses)
            host = Host(client, pods, runtime, names, state, memory, options.restart_back_off)
            containers = ProcessPods(pods, nodes, addresses, host)
            try:
                await watching
            finally:
                await containers.stop()


@contextlib.contextmanager
def _memory_folder() -> Iterator[Path]:
    """For volumes in memory; also removes those of kubelets that were killed."""
    place = Path("/dev/shm")
    if not place.is_dir():
        place = Path(tempfile.gettempdir())
    for old in place.glob(f"{_MEMORY_FOLDER}*"):
        pid = old.name.removeprefix(_MEMORY_FOLDER)
        if not Path("/proc", pid).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = place / f"{_MEMORY_FOLDER}{os.getpid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _until_answered(client: Client, attempt: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _REGISTER_SECONDS
    while True:
        try:
            await attempt()
            return
        except (ApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.code < 500 and error.code != 429:
                raise
            if loop.time() > deadline:
                raise ConnectionError(
                    f"no API server answered at {client.access.server} for "
                    f"{_REGISTER_SECONDS:.0f} s: {error or type(error).__name__}"
                ) from error
            await asyncio.sleep(0.1)
