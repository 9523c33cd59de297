"""Resolves service names, and writes the /etc/hosts that tell pods of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from embedded_cluster.kubelet.address import AddressBook, Resolve
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object

_HEAD = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"
_DOMAIN = "svc.cluster.local"
# Many services come at once; their names are written once for all of them.
_WRITE_SECONDS = 0.05


def hosts_file(pod: Object, address: str, services: Iterable[tuple[str, str, str]]) -> str:
    """The text of a pod's /etc/hosts.

    Args:
        services: (namespace, name, address) of each.
    """
    meta, spec = pod["metadata"], pod["spec"]
    hostname = spec.get("hostname") or meta["name"]
    own = [hostname]
    if spec.get("subdomain"):
        own.insert(0, f"{hostname}.{spec['subdomain']}.{meta['namespace']}.{_DOMAIN}")
    lines = [_HEAD + f"{address}\t{' '.join(own)}"]
    for alias in spec.get("hostAliases") or ():
        lines.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}")
    for namespace, name, place in services:
        lines.append(f"{place}\t{' '.join(_aliases(namespace, name, meta['namespace']))}")
    return "\n".join(lines) + "\n"


def _aliases(namespace: str, name: str, seen_from: str) -> list[str]:
    full = f"{name}.{namespace}"
    return [*([name] if namespace == seen_from else ()), full, f"{full}.svc", f"{full}.{_DOMAIN}"]


class Names:
    """Resolves the names of services: each to its first pod, or to the pod that will bear its
    name."""

    def __init__(self, pods: Informer, services: Informer, addresses: AddressBook) -> None:
        self._pods, self._services, self._addresses = pods, services, addresses
        self._known: list[tuple[str, str, str]] | None = None
        """All services; None once one has come, changed or gone, or a pod has left one."""
        self._files: dict[Path, tuple[Object, str]] = {}
        """Those that are kept current, with their pod and its address."""
        services.on_change(self._changed)
        pods.on_change(self._pod_changed)

    def resolver(self, namespace: str) -> Resolve:
        """For a pod of that namespace, as its /etc/hosts would; pods whose service may still be on
        its way are known too."""
        pods = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in self._pods]
        known = [*((*pod, self._addresses.of(*pod)) for pod in pods), *self._all()]
        return {
            alias: place
            for other, name, place in known
            for alias in _aliases(other, name, namespace)
        }.get

    def keep_hosts(self, file: Path, pod: Object, address: str) -> None:
        """Writes the pod's, and keeps it current until it is dropped."""
        self._files[file] = (pod, address)
        file.touch()
        self._write(file)

    def drop_hosts(self, file: Path) -> None:
        self._files.pop(file, None)

    def _write(self, file: Path) -> None:
        """In place, since containers have this very file mounted."""
        text = hosts_file(*self._files[file], self._all()).encode()
        # Not as text: a container may have written anything there.
        if file.read_bytes() != text:
            # Not truncated first: whoever reads it meanwhile shouldn't find nothing.
            with file.open("r+b") as open_file:
                open_file.write(text)
                open_file.truncate()

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if self._known is not None and self._files:
            asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._write_all)
        self._known = None

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        # Most services have one pod, whose address doesn't change with its status.
        if old is None or new is None or _leaving(old) != _leaving(new):
            self._changed(old, new)

    def _write_all(self) -> None:
        for file in self._files:
            # Somebody may have removed it.
            with contextlib.suppress(OSError):
                self._write(file)

    def _all(self) -> list[tuple[str, str, str]]:
        if self._known is None:
            self._known = []
            for service in self._services:
                namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
                self._known.append((namespace, name, self._address(service, namespace, name)))
        return self._known

    def _address(self, service: Object, namespace: str, name: str) -> str:
        selector = service["spec"].get("selector") or {}
        own = self._pods.get(f"{namespace}/{name}")
        if own is not None and selector and _selects(selector, own):
            return self._addresses.of(namespace, name)
        chosen = sorted(
            pod["metadata"]["name"]
            for pod in self._pods
            if pod["metadata"]["namespace"] == namespace and selector and _selects(selector, pod)
        )
        # A replica's service bears the name of its pod, whose address is known before it exists.
        return self._addresses.of(namespace, chosen[0] if chosen else name)


def _selects(selector: Object, pod: Object) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return not _leaving(pod) and selector.items() <= labels.items()


def _leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
