"""A container's environment and command line, as Kubernetes puts them together."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.kubelet.address import Resolve, resolve_value

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


class ConfigError(Exception):
    """The container can't be made from what the pod says; becomes CreateContainerConfigError."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known and left as it is elsewhere; `$$` stands for `$`."""

    def replace(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "$"
        return variables.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replace, text)


def references(container: Object) -> set[tuple[str, str]]:
    """The (kind, name) of every ConfigMap and Secret whose content the environment needs."""
    found = set()
    for source in container.get("envFrom") or []:
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                found.add((kind, str(source[field].get("name", ""))))
    for entry in container.get("env") or []:
        value_from = entry.get("valueFrom") or {}
        for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if field in value_from:
                found.add((kind, str(value_from[field].get("name", ""))))
    return found


def environment(
    container: Object,
    pod: Object,
    sources: Mapping[tuple[str, str], Object],
    resolve: Resolve,
) -> dict[str, str]:
    """What `env` and `envFrom` ask for; later entries win, and may refer to earlier ones.

    Args:
        pod: with status.podIP and hostIP already set.
        sources: the ConfigMaps and Secrets of `references` that exist.
        resolve: host names in values become addresses by it.

    Raises:
        ConfigError: a source, key or field is missing and not optional.
    """
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                data = _data(kind, source[field], sources)
                prefix = source.get("prefix") or ""
                for key, value in (data or {}).items():
                    variables[prefix + key] = resolve_value(value, resolve)
    for entry in container.get("env") or []:
        name = entry["name"]
        if entry.get("valueFrom"):
            taken = _value_from(name, entry["valueFrom"], pod, sources)
            if taken is None:
                continue
            # A pod's own name read from a field must stay a name.
            is_field = "fieldRef" in entry["valueFrom"]
            variables[name] = taken if is_field else resolve_value(taken, resolve)
        else:
            value = expand(str(entry.get("value") or ""), variables)
            variables[name] = resolve_value(value, resolve)
    return variables


def _value_from(
    name: str, value_from: Object, pod: Object, sources: Mapping[tuple[str, str], Object]
) -> str | None:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field not in value_from:
            continue
        selector = value_from[field]
        data = _data(kind, selector, sources)
        key = selector.get("key", "")
        if data is not None and key in data:
            return data[key]
        if selector.get("optional"):
            return None
        raise ConfigError(f"env {name}: {kind} {selector.get('name')} has no key {key!r}")
    if "fieldRef" in value_from:
        path = str(value_from["fieldRef"].get("fieldPath", ""))
        return _field(name, path, pod)
    kinds = ", ".join(value_from) or "nothing"
    raise ConfigError(
        f"env {name}: expected valueFrom with fieldRef, configMapKeyRef or secretKeyRef, "
        f"found {kinds}"
    )


def _data(
    kind: str, selector: Object, sources: Mapping[tuple[str, str], Object]
) -> dict[str, str] | None:
    name = str(selector.get("name", ""))
    source = sources.get((kind, name))
    if source is None:
        if selector.get("optional"):
            return None
        raise ConfigError(f"{kind} {name!r} not found")
    data = source.get("data") or {}
    if kind == "ConfigMap":
        return {key: str(value) for key, value in data.items()}
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}


def _field(name: str, path: str, pod: Object) -> str:
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((pod["metadata"].get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    simple: dict[str, Any] = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"].get("namespace", ""),
        "metadata.uid": pod["metadata"].get("uid", ""),
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": pod.get("status", {}).get("podIP", ""),
        "status.podIPs": pod.get("status", {}).get("podIP", ""),
        "status.hostIP": pod.get("status", {}).get("hostIP", ""),
    }
    if path not in simple:
        raise ConfigError(
            f"env {name}: expected a fieldPath of {', '.join(simple)}, found {path!r}"
        )
    return str(simple[path])


def command_line(container: Object, variables: Mapping[str, str], python: str) -> list[str]:
    """command + args expanded; `python` and `python3` become the interpreter at `python`.

    Raises:
        ConfigError: there is no command; an image's entry point can't be known here.
    """
    command = [expand(str(word), variables) for word in container.get("command") or []]
    if not command:
        raise ConfigError(
            f"container {container['name']!r}: expected a command, found none; images are not run "
            "here, so their entry point is unknown: give spec.containers[].command"
        )
    args = [expand(str(word), variables) for word in container.get("args") or []]
    if command[0] in ("python", "python3"):
        command[0] = python
    return command + args


def volume_refusal(container: Object, pod: Object) -> str | None:
    """Why a volume mount can't be honoured by a plain process, or None.

    A process sees the machine's files: a mount works only where it changes nothing.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        path = str(mount.get("mountPath", "")).rstrip("/") or "/"
        # The API server's admission mounts the token everywhere; our processes don't use it.
        if path == "/var/run/secrets/kubernetes.io/serviceaccount":
            continue
        volume = volumes.get(mount["name"])
        if volume is None:
            return f"volumeMount {mount['name']!r}: no such volume in spec.volumes"
        kind = next((key for key in volume if key != "name"), "emptyDir")
        if kind == "emptyDir" and path in ("/dev/shm", "/tmp"):
            continue
        if kind == "hostPath":
            source = str(volume["hostPath"].get("path", "")).rstrip("/") or "/"
            if source == path and not mount.get("subPath"):
                continue
            return (
                f"volume {mount['name']!r}: hostPath {source} at mountPath {path}: containers are "
                f"plain processes here, so both must be the same path; set mountPath to {source}"
            )
        return (
            f"volume {mount['name']!r} ({kind}) at {path}: containers are plain processes here; "
            "use hostPath with mountPath equal to path, or emptyDir at /dev/shm or /tmp"
        )
    return None
