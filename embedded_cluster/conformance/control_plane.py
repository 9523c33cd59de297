"""API servers that e2e runs on and conformance compares, and how each is reached."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

import aiohttp
import yaml

from embedded_cluster import kubeconfig_file
from embedded_cluster.component import Component, Start, start
from embedded_cluster.readiness import HOST, free_port, is_ready
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client
from volcano_elastic.kube.resource import CRDS, NODES, Object

ROOT = Path(__file__).resolve().parents[2]
# Generous: several of these may start at once on a small machine.
START_SECONDS = 90.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05
# Volcano brings its own CRDs; ours only stand in for them where it isn't installed.
_VOLCANO_GROUP = "scheduling.volcano.sh"


class ControlPlaneError(Exception):
    """The control plane can't be had; the message says why and what to do."""


class ControlPlane:
    """`with ControlPlane(...) as plane`: up with all CRDs when entered, gone when exited.

    Its programs die with the process that started them, however that ends.
    Enter it on the main thread, and outside of a running event loop.
    """

    name: ClassVar[str]
    rbac: ClassVar[bool] = True
    """True if there are users with fewer rights than the administrator's."""

    api_server: ClassVar[str] = "apiserver"
    """Its name among the components."""

    kept: ClassVar[bool] = False
    """True if it outlives us, so that what was put in has to be taken out."""

    def __init__(self) -> None:
        self.start: Start = start
        """Starts a program's process."""
        self.folder = Path()
        self.kubeconfig = Path()
        """The administrator's."""
        self.kubelet_arguments: Sequence[str] = ()
        """Arguments that `embedded_cluster.kubelet` needs beside --kubeconfig."""
        self.components: dict[str, Component] = {}

    def __enter__(self) -> Self:
        # Short, since the path of a unix socket may have only 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ve-e2e-"))
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        raise NotImplementedError

    def client(self, kubeconfig: Path | None = None) -> Client:
        """The administrator's, or that of another kubeconfig; use it with `async with`."""
        return Client.from_kubeconfig(str(kubeconfig or self.kubeconfig))

    def kubeconfig_of(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Access as `user`, who may do what RBAC allows: nothing, at first.

        `system:serviceaccount:NAMESPACE:NAME` has the rights of that service account.
        """
        raise ControlPlaneError(f"the {self.name} control plane knows one user only")

    def stop_api_server(self) -> None:
        """Kill it; a control plane that keeps its objects can start it again."""
        component = self.components[self.api_server]
        component.send(signal.SIGKILL)
        while component.running():
            time.sleep(0.01)

    def start_api_server(self) -> None:
        """Start it where it was.

        Raises:
            ControlPlaneError: it isn't ready again in time.
        """
        self.components[self.api_server].start()

    def requests(self, user: str) -> list[Object]:
        """Each finished request of `user`, as a Kubernetes audit event (level Metadata)."""
        raise ControlPlaneError(f"the {self.name} control plane keeps no audit log")

    # For those that implement it

    def component(self, name: str, command: Sequence[str]) -> Component:
        component = Component(name, command, self.folder / f"{name}.log", self.start)
        self.components[name] = component
        component.start()
        return component

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Raises ControlPlaneError if a program dies meanwhile, or time is up."""
        deadline = time.monotonic() + START_SECONDS
        while not holds():
            for component in self.components.values():
                if component.exit_code() is not None:
                    raise ControlPlaneError(
                        f"{component.name} died with exit code {component.exit_code()} before "
                        f"{what}; its last lines:\n{component.tail()}"
                    )
            if time.monotonic() > deadline:
                tails = [f"--- {one.name}\n{one.tail()}" for one in self.components.values()]
                raise ControlPlaneError(
                    f"expected that {what} within {START_SECONDS:.0f} s, found not; last lines:\n"
                    + "\n".join(tails)
                )
            time.sleep(_POLL_SECONDS)

    def install_crds(self) -> None:
        asyncio.run(_install_crds(self.client()))

    def _stop(self) -> None:
        # The API server before etcd: it would wait for it.
        for component in reversed(self.components.values()):
            component.send(signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            while component.running():
                if time.monotonic() > deadline:
                    component.send(signal.SIGKILL)
                time.sleep(_POLL_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


class EmbeddedControlPlane(ControlPlane):
    """embedded_cluster.apiserver: one user, no RBAC."""

    name = "embedded"
    rbac = False

    def __init__(self, *, data_dir: Path | None = None) -> None:
        super().__init__()
        self._data_dir = data_dir

    def _start(self) -> None:
        token, token_file = secrets.token_urlsafe(32), self.folder / "token"
        kubeconfig_file.write_private(token_file, token)
        port = free_port()
        self.component(
            "apiserver",
            [
                *(sys.executable, "-m", "embedded_cluster.apiserver"),
                *("--port", str(port), "--token-file", str(token_file)),
                *(("--data-dir", str(self._data_dir)) if self._data_dir else ()),
            ],
        )
        self.until(lambda: is_ready(port), "the API server is ready")
        self.kubeconfig = self.folder / "kubeconfig"
        kubeconfig_file.write(self.kubeconfig, f"http://{HOST}:{port}", token)
        self.install_crds()


class ForeignControlPlane(ControlPlane):
    """The cluster of $KUBECONFIG, asked for by name: nobody's shell names a cluster by accident."""

    name = "kubeconfig"
    rbac = False
    kept = True

    def _start(self) -> None:
        named = os.environ.get("KUBECONFIG")
        if not named:
            raise ControlPlaneError("--control-plane kubeconfig: expected KUBECONFIG, found none")
        self.kubeconfig = Path(named).absolute()
        self.install_crds()

    def _stop(self) -> None:
        if self.kubeconfig != Path():
            asyncio.run(self._remove_nodes())
        super()._stop()

    async def _remove_nodes(self) -> None:
        async with self.client() as client:
            virtual = {"labelSelector": "volcano-elastic.io/virtual=true"}
            await client.request("DELETE", NODES.path(), params=virtual)


async def _install_crds(client: Client) -> None:
    """Ours, and Volcano's: its own where VOLCANO_BIN has them, else ours where it has none."""
    folders = [ROOT / "crds"]
    if volcano := os.environ.get("VOLCANO_BIN"):
        folders.insert(0, Path(volcano) / "crds")
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    crds = [crd for file in files for crd in yaml.safe_load_all(file.read_text()) if crd]
    async with client:
        for crd in crds:
            try:
                await client.create(CRDS, crd)
            except AlreadyExists:
                if crd["spec"]["group"] != _VOLCANO_GROUP:
                    name = crd["metadata"]["name"]
                    await client.patch(CRDS, name, None, {"spec": crd["spec"]})
        for crd in crds:
            spec = crd["spec"]
            for version in spec["versions"]:
                if version.get("served"):
                    path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
                    await _served(client, path)


async def _served(client: Client, path: str) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                await client.request("GET", path)
            except (ApiError, aiohttp.ClientError):
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return
