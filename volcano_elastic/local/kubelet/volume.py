"""A pod's volumes: folders on this machine, and where containers see them."""

from __future__ import annotations

import base64
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.kubelet.environment import (
    ConfigError,
    expand,
    pod_field,
    resource_field,
)

# The API server's admission mounts the token everywhere; our processes don't use it.
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_SOURCES = {"configMap": ("ConfigMap", "name"), "secret": ("Secret", "secretName")}
_FILES = ("configMap", "secret", "downwardAPI", "projected")
_KINDS = ("emptyDir", "hostPath", *_FILES)


class NotMounted(Exception):
    """A volume can't be made as things are; becomes the event FailedMount, and is tried again."""


Sources = Mapping[tuple[str, str], Object]


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    read_only: bool = False

    def plan(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target, "read_only": self.read_only}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int


# Decided


def kind_of(volume: Object) -> str:
    return next((key for key in volume if key != "name"), "emptyDir")


def _mounted(pod: Object) -> set[str]:
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    return {m["name"] for c in containers for m in container_mounts(c)}


def container_mounts(container: Object) -> list[Object]:
    mounts = container.get("volumeMounts") or ()
    return [m for m in mounts if str(m.get("mountPath", "")).rstrip("/") != _TOKEN_PATH]


def volumes_of(pod: Object) -> list[Object]:
    """Those that some container mounts."""
    mounted = _mounted(pod)
    return [v for v in pod["spec"].get("volumes") or () if v["name"] in mounted]


def has_files(volume: Object) -> bool:
    return kind_of(volume) in _FILES


def references(pod: Object) -> set[tuple[str, str]]:
    """The (kind, name) of every ConfigMap and Secret that the pod's volumes hold."""
    found = set()
    for volume in volumes_of(pod):
        for field, source in _parts(volume):
            if field in _SOURCES:
                found.add((_SOURCES[field][0], _name(field, source)))
    return found


def _parts(volume: Object) -> Iterator[tuple[str, Object]]:
    kind = kind_of(volume)
    if kind == "projected":
        for part in volume["projected"].get("sources") or ():
            yield from part.items()
    elif kind in _FILES:
        yield kind, volume[kind]


def _name(field: str, source: Object) -> str:
    return str(source.get(_SOURCES[field][1]) or source.get("name", ""))


def refusal(pod: Object) -> str | None:
    """Which of the pod's volumes isn't served here, or None."""
    for volume in volumes_of(pod):
        if (kind := kind_of(volume)) not in _KINDS:
            return (
                f"volume {volume['name']!r}: expected {', '.join(_KINDS)}, found {kind}, which is "
                "not served here"
            )
        for field, _ in _parts(volume):
            if field not in _FILES:
                return f"volume {volume['name']!r}: {field} is not served here; leave it out"
    return None


def files_of(volume: Object, pod: Object, sources: Sources) -> dict[str, File]:
    """The files of a configMap, secret, downwardAPI or projected volume, by path.

    Raises:
        NotMounted: something is missing and not optional, or of a kind that isn't served here.
    """
    default = volume[kind_of(volume)].get("defaultMode", 0o644)
    found: dict[str, File] = {}
    for field, source in _parts(volume):
        what = f"volume {volume['name']!r}"
        if field == "downwardAPI":
            for item in source.get("items") or ():
                text = _downward(what, item, pod)
                found[item["path"]] = File(text.encode(), item.get("mode", default))
            continue
        kind, name = _SOURCES[field][0], _name(field, source)
        obj = sources.get((kind, name))
        if obj is None:
            if source.get("optional"):
                continue
            raise NotMounted(f"{what}: {kind.lower()} {name!r} not found")
        data = _data(kind, obj)
        chosen = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in chosen:
            if item["key"] in data:
                found[item["path"]] = File(data[item["key"]], item.get("mode", default))
            elif not source.get("optional"):
                raise NotMounted(f"{what}: {kind.lower()} {name!r} has no key {item['key']!r}")
    return found


def _downward(what: str, item: Object, pod: Object) -> str:
    if "fieldRef" in item:
        return pod_field(what, str(item["fieldRef"].get("fieldPath", "")), pod)
    return resource_field(what, item.get("resourceFieldRef") or {}, pod)


def _data(kind: str, obj: Object) -> dict[str, bytes]:
    text, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    if kind == "Secret":
        text, binary = {}, text
    found = {key: str(value).encode() for key, value in text.items()}
    return found | {key: base64.b64decode(value) for key, value in binary.items()}


def without_namespaces(container: Object, pod: Object) -> str | None:
    """Why a volume mount can't be honoured where a process sees the machine's own files, or None.

    There a mount works only where it changes nothing.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    for mount in container_mounts(container):
        path = str(mount.get("mountPath", "")).rstrip("/") or "/"
        volume = volumes.get(mount["name"], {"name": mount["name"]})
        kind = kind_of(volume)
        if kind == "emptyDir" and path in ("/dev/shm", "/tmp"):
            continue
        if kind == "hostPath" and not mount.get("subPath"):
            source = str(volume["hostPath"].get("path", "")).rstrip("/") or "/"
            if source == path:
                continue
        return (
            f"volume {mount['name']!r} ({kind}) at {path}: containers are plain processes here, "
            "since this machine allows no mount namespaces; use hostPath with mountPath equal to "
            "path, or emptyDir at /dev/shm or /tmp"
        )
    return None


# Done


class Volumes:
    """Of one pod: made before its first container starts, removed with the pod.

    Args:
        folder: for those on disk.
        memory: for emptyDir with medium Memory; on a tmpfs.
    """

    def __init__(self, folder: Path, memory: Path) -> None:
        self._folder, self._memory = folder, memory

    def make(self, pod: Object, sources: Sources) -> None:
        """Also again: the files of configMap, secret and downwardAPI volumes follow their sources.

        Raises:
            NotMounted: a volume can't be had; says which and why.
        """
        for volume in volumes_of(pod):
            try:
                self._make(volume, pod, sources)
            except (OSError, ConfigError) as error:
                raise NotMounted(f"volume {volume['name']!r}: {error}") from error

    def _make(self, volume: Object, pod: Object, sources: Sources) -> None:
        path = self.path(volume)
        if kind_of(volume) == "hostPath":
            _check_host_path(volume["name"], path, volume["hostPath"].get("type") or "")
            return
        path.mkdir(parents=True, exist_ok=True)
        if has_files(volume):
            _publish(path, files_of(volume, pod, sources))
        else:
            path.chmod(0o777)

    def path(self, volume: Object) -> Path:
        kind = kind_of(volume)
        if kind == "hostPath":
            return Path(volume["hostPath"]["path"])
        in_memory = kind == "emptyDir" and (volume["emptyDir"] or {}).get("medium") == "Memory"
        return (self._memory if in_memory else self._folder) / str(volume["name"])

    def mounts(self, container: Object, pod: Object, variables: Mapping[str, str]) -> list[Mount]:
        """What `container` sees, in its order.

        Raises:
            ConfigError: a mount names no volume, or leads out of it.
        """
        volumes = {volume["name"]: volume for volume in volumes_of(pod)}
        found = []
        for mount in container_mounts(container):
            volume = volumes.get(mount["name"])
            if volume is None:
                raise ConfigError(f"volumeMount {mount['name']!r}: no such volume in spec.volumes")
            path = self.path(volume)
            below = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
            if below:
                path = _below(path, below)
            read_only = bool(mount.get("readOnly")) or has_files(volume)
            found.append(Mount(str(path), mount["mountPath"], read_only))
        return found

    def remove(self) -> None:
        for folder in (self._folder, self._memory):
            shutil.rmtree(folder, ignore_errors=True)


def _below(volume: Path, subpath: str) -> Path:
    """The place in the volume, made where it isn't there; links in the volume must stay within.

    Raises:
        ConfigError: it leads elsewhere, or can't be made.
    """
    path = (volume / subpath).resolve()
    inside = path.is_relative_to(volume.resolve())
    if subpath.startswith("/") or ".." in subpath.split("/") or not inside:
        raise ConfigError(f"subPath {subpath!r}: expected a path within the volume, found {path}")
    try:
        if not path.exists():
            path.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"subPath {subpath!r}: {error}") from error
    return path


def _check_host_path(name: str, path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    tests: dict[str, Callable[[], bool]] = {
        "": path.exists,
        "Directory": path.is_dir,
        "DirectoryOrCreate": path.is_dir,
        "File": path.is_file,
        "FileOrCreate": path.is_file,
        "Socket": path.is_socket,
        "CharDevice": path.is_char_device,
        "BlockDevice": path.is_block_device,
    }
    if kind == "" and not path.exists():
        # A container runtime makes the folder that a bind mount needs.
        path.mkdir(parents=True)
    if kind not in tests or not tests[kind]():
        raise NotMounted(f"volume {name!r}: hostPath type check failed: {path} is not a {kind}")


def _publish(folder: Path, files: Mapping[str, File]) -> None:
    """All at once, as a kubelet does it: `..data` leads to one folder or to the next."""
    link = folder / "..data"
    if link.exists() and _holds(link.resolve(), files):
        return
    old = link.resolve() if link.exists() else None
    new = folder / f"..{secrets.token_hex(8)}"
    for path, file in files.items():
        target = new / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    new.mkdir(exist_ok=True)
    temporary = folder / "..data_tmp"
    temporary.symlink_to(new.name)
    temporary.replace(link)
    tops = {path.split("/")[0] for path in files}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"..data/{top}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _holds(folder: Path, files: Mapping[str, File]) -> bool:
    there = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return there == {path: file.content for path, file in files.items()}
