"""N virtual nodes in one process: their registration, and the pods bound to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PODS, SERVICES, Object, key_of
from volcano_elastic.local.kubelet import node
from volcano_elastic.local.kubelet.address import AddressBook, Resolve, split_service_name
from volcano_elastic.local.kubelet.fake import FakePods
from volcano_elastic.local.kubelet.log_server import Tls, serving
from volcano_elastic.local.kubelet.pod_worker import Host, PodWorker
from volcano_elastic.local.kubelet.process import ProcessRuntime

_log = logging.getLogger(__name__)

_REGISTER_SECONDS = 30.0


class ProcessPods:
    """A worker for each pod on our nodes, by uid."""

    def __init__(
        self,
        client: Client,
        pods: Informer,
        services: Informer,
        nodes: frozenset[str],
        runtime: ProcessRuntime,
        state_dir: Path,
    ) -> None:
        self._pods, self._services, self._nodes = pods, services, nodes
        self._addresses = AddressBook()
        self._host = Host(client, pods, runtime, state_dir, self._resolver)
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        pods.on_change(self._on_change)

    def start(self) -> None:
        """Takes on the pods that are there: once both informers have synced."""
        for pod in self._pods:
            address = pod.get("status", {}).get("podIP")
            if address and address.startswith("127."):
                self._addresses.adopt(
                    pod["metadata"]["namespace"], pod["metadata"]["name"], address
                )
        self._started = True
        for pod in self._pods:
            self._on_change(None, pod)

    _started = False

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
        if not self._started or self._stopping:
            return
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            gone = self._workers.get(old["metadata"]["uid"])
            if gone is not None:
                gone.removed()
        if new is None or new["spec"].get("nodeName") not in self._nodes:
            return
        uid = new["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is None:
            meta = new["metadata"]
            address = (
                "127.0.0.1"
                if new["spec"].get("hostNetwork")
                else self._addresses.of(meta["namespace"], meta["name"])
            )
            worker = self._workers[uid] = PodWorker(new, address, self._host)
            task = asyncio.create_task(worker.run())
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._finished(task, uid, key_of(new)))
        worker.update(new)

    def _finished(self, task: asyncio.Task[None], uid: str, key: str) -> None:
        self._tasks.discard(task)
        del self._workers[uid]
        if not task.cancelled() and (error := task.exception()):
            _log.error("pod %s: a defect in the kubelet: %r", key, error, exc_info=error)

    def _resolver(self, namespace: str) -> Resolve:
        def resolve(host: str) -> str | None:
            named = split_service_name(host, namespace)
            return None if named is None else self._service_address(*named)

        return resolve

    def _service_address(self, namespace: str, name: str) -> str | None:
        service = self._services.get(f"{namespace}/{name}")
        if service is None:
            # Its service may still be on its way.
            known = self._pods.get(f"{namespace}/{name}") is not None
            return self._addresses.of(namespace, name) if known else None
        selector = service["spec"].get("selector") or {}
        chosen = sorted(
            pod["metadata"]["name"]
            for pod in self._pods
            if pod["metadata"]["namespace"] == namespace
            and selector
            and not pod["metadata"].get("deletionTimestamp")
            and selector.items() <= (pod["metadata"].get("labels") or {}).items()
        )
        # A replica's service bears the name of its pod, whose address is known before it exists.
        return self._addresses.of(namespace, chosen[0] if chosen else name)


async def serve(
    kubeconfig: str | None,
    *,
    nodes: int,
    gpus: int,
    mode: str,
    state_dir: Path,
    tls: Tls | None = None,
) -> None:
    """Until cancelled; then every container has ended.

    Args:
        tls: with it, an API server is served the containers' logs.

    Raises:
        KubeconfigError: no usable kubeconfig.
        OSError: a file of `tls` can't be used.
        ApiError: a node was refused.
        ConnectionError: no API server answered for half a minute.
    """
    names = node.node_names(nodes)
    mine = frozenset(names)
    async with (
        Client.from_kubeconfig(kubeconfig, user_agent="volcano-elastic-kubelet") as client,
        AsyncExitStack() as stack,
    ):
        pods = Informer(client, PODS)
        port = await stack.enter_async_context(serving(pods, tls)) if tls else None
        await _register(client, lambda: node.register(client, names, gpus, port))
        if mode == "fake":
            fake = FakePods(client, pods, mine)
            async with asyncio.TaskGroup() as group:
                group.create_task(pods.run())
                group.create_task(fake.run())
                group.create_task(node.keep_alive(client, names, gpus, port))
            return
        services = Informer(client, SERVICES)
        async with ProcessRuntime() as runtime:
            containers = ProcessPods(client, pods, services, mine, runtime, state_dir)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(pods.run())
                    group.create_task(services.run())
                    group.create_task(node.keep_alive(client, names, gpus, port))
                    await services.synced.wait()
                    await pods.synced.wait()
                    containers.start()
            finally:
                await containers.stop()


async def _register(client: Client, attempt: Callable[[], Awaitable[None]]) -> None:
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
