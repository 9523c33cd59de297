"""A pod's volumes: folders on this machine, and where containers see them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embedded_cluster.kubelet.source import ConfigError, Reference, Sources
from volcano_elastic.kube.resource import Object

# The API server's admission mounts the token everywhere; our processes don't use it.
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_KINDS = ("emptyDir", "hostPath", "configMap", "secret")
_HOST_PATH_TESTS: dict[str, Callable[[Path], bool]] = {
    "": Path.exists,
    "Directory": Path.is_dir,
    "File": Path.is_file,
    "Socket": Path.is_socket,
    "CharDevice": Path.is_char_device,
    "BlockDevice": Path.is_block_device,
}


class NotMounted(Exception):
    """A volume can't be made as things are; becomes the event FailedMount, and is tried again."""


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


# Decided


def kind_of(volume: Object) -> str:
    return next((key for key in volume if key != "name"), "emptyDir")


def container_mounts(container: Object) -> list[Object]:
    mounts = container.get("volumeMounts") or ()
    return [m for m in mounts if str(m.get("mountPath", "")).rstrip("/") != _TOKEN_PATH]


def volumes_of(pod: Object) -> list[Object]:
    """Those that some container mounts."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    mounted = {mount["name"] for one in containers for mount in container_mounts(one)}
    return [v for v in pod["spec"].get("volumes") or () if v["name"] in mounted]


def refusal(pod: Object) -> str | None:
    """Return the pod's first volume that isn't served here, or None."""
    for volume in volumes_of(pod):
        if (kind := kind_of(volume)) not in _KINDS:
            return (
                f"volume {volume['name']!r}: expected {', '.join(_KINDS)}, found {kind}, which is "
                "not served here"
            )
    return None


def _files(reference: Reference, sources: Sources) -> dict[str, tuple[bytes, int]]:
    """Content and mode by path.

    Raises:
        ConfigError: something is missing and not optional.
    """
    data, fields = reference.content(sources, binary=True), reference.fields
    found = {}
    for item in fields.get("items") or [{"key": key, "path": key} for key in data]:
        if item["key"] in data:
            mode = item.get("mode", fields.get("defaultMode", 0o644))
            found[item["path"]] = (data[item["key"]], mode)
        elif not reference.optional:
            raise ConfigError(reference.lacks(item["key"]))
    return found


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
        if kind == "hostPath":
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
    """The volumes of one pod: made before its first container starts, removed with the pod.

    Args:
        folder: for those on disk.
        memory: for emptyDir with medium Memory; on a tmpfs.
    """

    def __init__(self, folder: Path, memory: Path) -> None:
        self._folder, self._memory = folder, memory
        self._making = threading.Lock()

    def make(self, pod: Object, sources: Sources) -> None:
        """Also again, and in several threads, as containers start: what is there is left as it is.

        Raises:
            NotMounted: a volume can't be had; says which and why.
        """
        with self._making:
            for volume in volumes_of(pod):
                try:
                    self._make(volume, sources)
                except (OSError, ConfigError) as error:
                    raise NotMounted(f"volume {volume['name']!r}: {error}") from error

    def _make(self, volume: Object, sources: Sources) -> None:
        path = self.path(volume)
        if kind_of(volume) == "hostPath":
            _check_host_path(path, volume["hostPath"].get("type") or "")
        elif not path.exists():
            reference = Reference.of(volume)
            files = _files(reference, sources) if reference else {}
            # Under a name that no volume has until it is whole: who finds it takes it as it is.
            new = path.with_name(f".{path.name}")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            for name, (content, mode) in files.items():
                target = new / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(mode)
            if reference is None:
                new.chmod(0o777)
            new.rename(path)

    def path(self, volume: Object) -> Path:
        kind = kind_of(volume)
        if kind == "hostPath":
            return Path(volume["hostPath"]["path"])
        in_memory = kind == "emptyDir" and (volume["emptyDir"] or {}).get("medium") == "Memory"
        return (self._memory if in_memory else self._folder) / str(volume["name"])

    def mounts(self, container: Object, pod: Object) -> list[Mount]:
        """Return the mounts of `container`, in its order.

        Raises:
            ConfigError: a mount names no volume.
        """
        volumes = {volume["name"]: volume for volume in volumes_of(pod)}
        found = []
        for mount in container_mounts(container):
            volume = volumes.get(mount["name"])
            if volume is None:
                raise ConfigError(f"volumeMount {mount['name']!r}: no such volume in spec.volumes")
            read_only = bool(mount.get("readOnly")) or Reference.of(volume) is not None
            found.append(Mount(str(self.path(volume)), mount["mountPath"], read_only))
        return found

    def remove(self) -> None:
        for folder in (self._folder, self._memory):
            shutil.rmtree(folder, ignore_errors=True)


def _check_host_path(path: Path, kind: str) -> None:
    if kind in ("", "DirectoryOrCreate") and not path.exists():
        # Also without a type: a container runtime makes the folder that a bind mount needs.
        # Other pods' may be about to.
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    test = _HOST_PATH_TESTS.get(kind.removesuffix("OrCreate"))
    if test is None or not test(path):
        raise ConfigError(f"hostPath type check failed: {path} is not a {kind}")
