"""A whole cluster on this machine, its programs as child processes."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
import yaml

from embedded_cluster import kubeconfig_file
from embedded_cluster.component import ClusterError, Component, Start, start
from embedded_cluster.readiness import HOST, free_port, is_free, is_ready
from volcano_elastic import assets
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client
from volcano_elastic.kube.resource import CRDS, NODES, Object

# Generous: a program that dies is told at once, and a busy machine takes its time.
_START_SECONDS = 120.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 0.1
_RESTART_SECONDS = 0.5
_STOP_SECONDS = {"kubelet": 12.0}
# A program of others, which has no /readyz that we know, is well when it has lived this long.
_FOREIGN_SECONDS = 4.0


class LocalCluster:
    """`async with LocalCluster(...) as cluster`: up when entered, nothing left when exited.

    Enter it on the main thread. Programs that die are started again, but the API server only where
    `data_dir` keeps its objects; without, `failed` is set.

    Args:
        kubelet: "process", "fake" or "none".
        port: of the API server; 0 takes any free one.
        kubeconfig: where to write it; default: in the cluster's own folder.
        data_dir: objects and logs are kept there; default: a temporary folder, removed at the end.
        existing: kubeconfig of an API server that runs already and serves our CRDs: the other
            programs use it, and no API server is started.
        kubelet_arguments: for the kubelet, beside what the other arguments say.
        operator_arguments: likewise for the operator.
        commands: run beside, by name; one with the name of a program of ours takes its place.
        start: starts a program's process.
        say: told what happens to the programs, a line at a time; default: standard error.

    Raises (on entering):
        ClusterError: a program died at its start or isn't ready in 120 s; all has been stopped.
    """

    def __init__(
        self,
        *,
        nodes: int = 2,
        gpus_per_node: int = 2,
        kubelet: str = "process",
        operator: bool = True,
        scheduler: bool = True,
        scheduler_conf: Path | None = None,
        port: int = 0,
        kubeconfig: Path | None = None,
        data_dir: Path | None = None,
        existing: Path | None = None,
        kubelet_arguments: Sequence[str] = (),
        operator_arguments: Sequence[str] = (),
        commands: Mapping[str, Sequence[str]] | None = None,
        start: Start = start,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._nodes = nodes
        self._gpus_per_node = gpus_per_node
        self._kubelet, self._operator, self._scheduler = kubelet, operator, scheduler
        self._scheduler_conf = scheduler_conf
        self._port = port
        self._wanted_kubeconfig = kubeconfig
        self._data_dir = data_dir
        self._existing = existing
        self._kubelet_arguments = kubelet_arguments
        self._operator_arguments = operator_arguments
        self._commands = commands or {}
        self._start_process = start
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._folder = Path()
        self._components: dict[str, Component] = {}
        self._ports: dict[str, int] = {}
        """Ports of the programs that are asked for /readyz."""
        self._watching: asyncio.Task[None] | None = None
        self._wrote_kubeconfig = False
        self.kubeconfig = Path()
        self.failed: asyncio.Future[str]

    @property
    def logs(self) -> Path:
        """One `<program>.log` each."""
        return self._folder / "logs"

    @property
    def pods_folder(self) -> Path:
        """`<namespace>_<pod>_<uid>/<container>.log` under the process kubelet."""
        return self._folder / "kubelet" / "pods"

    @property
    def processes(self) -> dict[str, int]:
        """Name (apiserver, scheduler, kubelet, operator) to the id of its current process."""
        return {name: component.pid for name, component in self._components.items()}

    def client(self) -> Client:
        return Client.from_kubeconfig(str(self.kubeconfig))

    async def __aenter__(self) -> Self:
        self.failed = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        self._watching = asyncio.create_task(self._restart_what_dies())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stop()

    # Start

    async def _start(self) -> None:
        self._prepare()
        if self._existing:
            self.kubeconfig = self._existing.absolute()
        else:
            await self._start_apiserver()
        started = asyncio.get_running_loop().time()
        self._start_programs()
        await asyncio.gather(self._nodes_ready(), self._programs_ready(started), self._serve_crds())

    async def _start_apiserver(self) -> None:
        token = secrets.token_urlsafe(32)
        token_file = self._folder / "token"
        kubeconfig_file.write_private(token_file, token)
        self._ports["apiserver"] = self._port = self._port or free_port()
        command = [*_python("embedded_cluster.apiserver"), "--port", str(self._port)]
        command += ["--token-file", str(token_file)]
        if self._data_dir:
            command += ["--data-dir", str(self._data_dir / "objects")]
        self._run("apiserver", command)
        await self._ready("apiserver")
        kubeconfig_file.write(self.kubeconfig, f"http://{HOST}:{self._port}", token)
        self._wrote_kubeconfig = True

    def _prepare(self) -> None:
        if self._port and not is_free(self._port):
            raise ClusterError(
                f"port {self._port} on 127.0.0.1 is in use; give another --port, "
                "or leave it out for any free one"
            )
        if self._wanted_kubeconfig:
            kubeconfig_file.refuse_foreign(self._wanted_kubeconfig)
        try:
            if self._data_dir:
                self._folder = self._data_dir.resolve()
                self._folder.mkdir(parents=True, exist_ok=True)
            else:
                self._folder = Path(tempfile.mkdtemp(prefix="volcano-elastic-"))
            self.logs.mkdir(exist_ok=True)
            for log in self.logs.glob("*.log"):
                log.unlink()
        except OSError as error:
            raise ClusterError(f"--data-dir {self._data_dir}: {error.strerror}") from error
        self.kubeconfig = (self._wanted_kubeconfig or self._folder / "kubeconfig").absolute()

    def _start_programs(self) -> None:
        access = ["--kubeconfig", str(self.kubeconfig)]
        commands: dict[str, Sequence[str]] = {}
        if self._kubelet != "none":
            size = ["--nodes", str(self._nodes), "--gpus-per-node", str(self._gpus_per_node)]
            state = ["--mode", self._kubelet, "--state-dir", str(self._folder / "kubelet")]
            # Elsewhere a kube-controller-manager looks after silent nodes.
            alone = [] if self._existing else ["--node-monitor-grace-period", "40"]
            more = [*size, *state, *alone, *self._kubelet_arguments]
            commands["kubelet"] = [*_python("embedded_cluster.kubelet"), *access, *more]
        if self._scheduler:
            conf = ["--scheduler-conf", str(self._scheduler_conf)] if self._scheduler_conf else []
            serve = ["--listen-address", self._address("scheduler")]
            commands["scheduler"] = [*_python("embedded_cluster.scheduler"), *access, *conf, *serve]
        if self._operator:
            serve = ["--metrics-address", self._address("operator")]
            more = [*serve, *self._operator_arguments]
            commands["operator"] = [*_python("volcano_elastic.operator"), *access, *more]
        for name, command in {**commands, **self._commands}.items():
            self._run(name, command)

    def _run(self, name: str, command: Sequence[str]) -> Component:
        log = self.logs / f"{name}.log"
        component = Component(name, command, log, self._start_process)
        self._components[name] = component
        component.start()
        return component

    def _address(self, program: str) -> str:
        self._ports[program] = free_port()
        return f"{HOST}:{self._ports[program]}"

    async def _ready(self, program: str) -> None:
        async def found() -> str | None:
            return program if await asyncio.to_thread(is_ready, self._ports[program]) else None

        await self._until(found, f"the {program} is ready")

    async def _serve_crds(self) -> None:
        if self._existing:
            return
        files = sorted(assets.CRDS.glob("*.yaml"))
        if not files:
            raise ClusterError(f"no CRDs: expected YAML files in {assets.CRDS}, found none")
        documents = [doc for file in files for doc in yaml.safe_load_all(file.read_text()) if doc]
        async with self.client() as client:
            for crd in documents:
                try:
                    await client.create(CRDS, crd)
                except AlreadyExists:
                    await client.patch(CRDS, crd["metadata"]["name"], None, {"spec": crd["spec"]})
                except ApiError as error:
                    name = crd["metadata"]["name"]
                    raise ClusterError(f"the CRD {name} was refused: {error}") from error
            for crd in documents:
                spec = crd["spec"]
                for version in spec["versions"]:
                    path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"

                    async def served(path: str = path) -> str | None:
                        try:
                            await client.request("GET", path)
                        except (ApiError, aiohttp.ClientError):
                            return None
                        return path

                    await self._until(served, f"{path} is served")

    async def _nodes_ready(self) -> None:
        if self._kubelet == "none":
            return
        wanted = {f"node-{index}" for index in range(1, self._nodes + 1)}
        async with self.client() as client:

            async def ready() -> str | None:
                answer = await client.list(NODES)
                found = {node["metadata"]["name"] for node in answer["items"] if _is_ready(node)}
                return "ready" if wanted <= found else None

            await self._until(ready, f"{self._nodes} nodes are ready")

    async def _programs_ready(self, started: float) -> None:
        foreign = self._commands.keys() & {"scheduler", "operator"}
        for program in self._ports.keys() - foreign - {"apiserver"}:
            await self._ready(program)
        if foreign:
            loop = asyncio.get_running_loop()

            async def lives() -> str | None:
                return "well" if loop.time() - started > _FOREIGN_SECONDS else None

            await self._until(lives, f"the {', '.join(sorted(foreign))} lives")

    async def _until(self, found: Callable[[], Awaitable[str | None]], what: str) -> str:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_SECONDS
        while True:
            for component in self._components.values():
                code = component.exit_code()
                if code is not None:
                    raise ClusterError(_death(component, code))
            result = await found()
            if result is not None:
                return result
            if loop.time() > deadline:
                tails = [
                    f"--- {component.name}\n{component.tail()}"
                    for component in self._components.values()
                ]
                raise ClusterError(
                    f"expected that {what} within {_START_SECONDS:.0f} s, found not; last lines:\n"
                    + "\n".join(tails)
                )
            await asyncio.sleep(_POLL_SECONDS)

    # While it runs

    async def _restart_what_dies(self) -> None:
        loop = asyncio.get_running_loop()
        due: dict[str, float] = {}
        while True:
            for name, component in self._components.items():
                code = component.exit_code()
                if code is None:
                    continue
                if name == "apiserver" and not self._data_dir:
                    if not self.failed.done():
                        self.failed.set_result(_death(component, code))
                    return
                if name not in due:
                    due[name] = loop.time() + _RESTART_SECONDS
                    self._say(
                        f"the {name} died ({_ending(code)}); it starts again in "
                        f"{_RESTART_SECONDS} s; its log: {component.log}"
                    )
                elif loop.time() >= due[name]:
                    del due[name]
                    component.start()
                    self._say(f"the {name} runs again as process {component.pid}")
            await asyncio.sleep(_WATCH_SECONDS)

    # Stop

    async def _stop(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        # The API server last: the kubelet tells it how the pods ended.
        rest = [name for name in self._components if name != "apiserver"]
        stopping = asyncio.ensure_future(self._stop_in_order([rest, ["apiserver"]]))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise
        finally:
            if self._wrote_kubeconfig:
                self.kubeconfig.unlink(missing_ok=True)
            if not self._data_dir and self._folder != Path():
                shutil.rmtree(self._folder, ignore_errors=True)

    async def _stop_in_order(self, groups: list[list[str]]) -> None:
        for names in groups:
            components = [self._components[name] for name in names if name in self._components]
            for component in components:
                component.send(signal.SIGTERM)
            await asyncio.gather(*(_ended(component) for component in components))


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", module]


async def _ended(component: Component) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STOP_SECONDS.get(component.name, 4.0)
    while component.running():
        if loop.time() > deadline:
            component.send(signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)


def _death(component: Component, code: int) -> str:
    tail = component.tail() or "(it wrote nothing)"
    return f"the {component.name} died ({_ending(code)}); its last lines:\n{tail}"


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
