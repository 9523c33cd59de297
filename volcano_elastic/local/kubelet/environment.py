"""A container's environment and command line, as Kubernetes puts them together."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from volcano_elastic.api.quantity import QuantityError, milli
from volcano_elastic.kube.resource import Object
from volcano_elastic.local.kubelet.address import Resolve, resolve_value

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

# Of each node, which is far larger in everything but GPUs than what is asked of it.
CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}


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
    resolve: Resolve | None = None,
) -> dict[str, str]:
    """What `env` and `envFrom` ask for; later entries win, and may refer to earlier ones.

    Args:
        pod: with status.podIP and hostIP already set.
        sources: the ConfigMaps and Secrets of `references` that exist.
        resolve: host names in values become addresses by it; None leaves them.

    Raises:
        ConfigError: a source, key or field is missing and not optional.
    """

    def resolved(value: str) -> str:
        return value if resolve is None else resolve_value(value, resolve)

    variables: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                data = _data(kind, source[field], sources)
                prefix = source.get("prefix") or ""
                for key, value in (data or {}).items():
                    variables[prefix + key] = resolved(value)
    for entry in container.get("env") or []:
        name = entry["name"]
        if entry.get("valueFrom"):
            taken = _value_from(name, entry["valueFrom"], container, pod, sources)
            if taken is None:
                continue
            # A pod's own name read from a field must stay a name.
            is_field = not entry["valueFrom"].keys().isdisjoint(("fieldRef", "resourceFieldRef"))
            variables[name] = taken if is_field else resolved(taken)
        else:
            value = expand(str(entry.get("value") or ""), variables)
            variables[name] = resolved(value)
    return variables


def _value_from(
    name: str,
    value_from: Object,
    container: Object,
    pod: Object,
    sources: Mapping[tuple[str, str], Object],
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
        return pod_field(f"env {name}", path, pod)
    if "resourceFieldRef" in value_from:
        return resource_field(f"env {name}", value_from["resourceFieldRef"], pod, container)
    kinds = ", ".join(value_from) or "nothing"
    raise ConfigError(
        f"env {name}: expected valueFrom with fieldRef, resourceFieldRef, configMapKeyRef or "
        f"secretKeyRef, found {kinds}"
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


def pod_field(what: str, path: str, pod: Object) -> str:
    """The downward API's `fieldPath`.

    Raises:
        ConfigError: there is no such field; `what` asked for it.
    """
    meta, status = pod["metadata"], pod.get("status", {})
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((meta.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    simple: dict[str, Any] = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", ""),
        "metadata.uid": meta.get("uid", ""),
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": status.get("hostIP", ""),
    }
    if path in ("metadata.labels", "metadata.annotations") and not what.startswith("env "):
        pairs = sorted((meta.get(path.partition(".")[2]) or {}).items())
        return "\n".join(f"{key}={json.dumps(value)}" for key, value in pairs)
    if path not in simple:
        raise ConfigError(f"{what}: expected a fieldPath of {', '.join(simple)}, found {path!r}")
    return str(simple[path])


def resource_field(what: str, selector: Object, pod: Object, own: Object | None = None) -> str:
    """The downward API's `resource`, in units of the divisor, rounded up; what isn't limited is
    the node's.

    Args:
        own: the container that is meant where `containerName` is not given.

    Raises:
        ConfigError: there is no such resource or container; `what` asked for it.
    """
    container = _container_named(what, str(selector.get("containerName") or ""), pod, own)
    wanted = str(selector.get("resource", ""))
    kind, _, resource = wanted.partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ConfigError(
            f"{what}: expected a resource such as limits.cpu or requests.memory, found {wanted!r}"
        )
    amounts = (container.get("resources") or {}).get(kind) or {}
    amount = amounts.get(resource, CAPACITY.get(resource, "0") if kind == "limits" else "0")
    try:
        divisor = milli(selector.get("divisor") or 1) or milli(1)
        return str(-(-milli(amount) // divisor))
    except QuantityError as error:
        raise ConfigError(f"{what}: {error}") from error


def _container_named(what: str, name: str, pod: Object, own: Object | None) -> Object:
    if own is not None and name in ("", own["name"]):
        return own
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    for container in containers:
        if container["name"] == name:
            found: Object = container
            return found
    names = ", ".join(container["name"] for container in containers)
    raise ConfigError(f"{what}: expected a containerName of {names}, found {name!r}")


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
