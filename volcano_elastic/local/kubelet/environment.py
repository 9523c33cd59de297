"""A container's environment and command line, as Kubernetes puts them together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from volcano_elastic.api.quantity import QuantityError, milli
from volcano_elastic.kube.resource import Object
from volcano_elastic.local.kubelet.address import Resolve, resolve_value
from volcano_elastic.local.kubelet.source import ConfigError, Sources, StartError, content

_SOURCES = {
    "configMapRef": "ConfigMap",
    "secretRef": "Secret",
    "configMapKeyRef": "ConfigMap",
    "secretKeyRef": "Secret",
}
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

# Of each node, which is far larger in everything but GPUs than what is asked of it.
CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known and left as it is elsewhere; `$$` stands for `$`."""

    def replace(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "$"
        return variables.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replace, text)


def _sources(of: Object) -> Iterator[tuple[str, Object]]:
    """(kind, reference) of what an `envFrom` entry or a `valueFrom` takes from elsewhere."""
    for field, reference in of.items():
        if field in _SOURCES:
            yield _SOURCES[field], reference


def references(container: Object) -> set[tuple[str, str]]:
    """The (kind, name) of every ConfigMap and Secret whose content the environment needs."""
    asking = [*(container.get("envFrom") or ())]
    asking += [entry.get("valueFrom") or {} for entry in container.get("env") or ()]
    return {(kind, ref.get("name", "")) for of in asking for kind, ref in _sources(of)}


def environment(
    container: Object,
    pod: Object,
    sources: Sources,
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
        for kind, reference in _sources(source):
            for key, found in (content(kind, reference, sources) or {}).items():
                variables[(source.get("prefix") or "") + key] = resolved(_text(found))
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
    sources: Sources,
) -> str | None:
    for kind, selector in _sources(value_from):
        data = content(kind, selector, sources) or {}
        if (key := selector.get("key", "")) in data:
            return _text(data[key])
        if selector.get("optional"):
            return None
        raise ConfigError(f"env {name}: {kind} {selector.get('name')} has no key {key!r}")
    if "fieldRef" in value_from:
        return _pod_field(name, str(value_from["fieldRef"].get("fieldPath", "")), pod)
    if "resourceFieldRef" in value_from:
        return _resource_field(name, value_from["resourceFieldRef"], pod, container)
    kinds = ", ".join(value_from) or "nothing"
    raise ConfigError(
        f"env {name}: expected valueFrom with fieldRef, resourceFieldRef, configMapKeyRef or "
        f"secretKeyRef, found {kinds}"
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _pod_field(name: str, path: str, pod: Object) -> str:
    """The downward API's `fieldPath`."""
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
    if path not in simple:
        raise ConfigError(
            f"env {name}: expected a fieldPath of {', '.join(simple)}, found {path!r}"
        )
    return str(simple[path])


def _resource_field(name: str, selector: Object, pod: Object, own: Object) -> str:
    """The downward API's `resource`, in units of the divisor, rounded up; what isn't limited is
    the node's."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    named = {container["name"]: container for container in containers} | {own["name"]: own}
    of = selector.get("containerName") or own["name"]
    if of not in named:
        raise ConfigError(
            f"env {name}: expected a containerName of {', '.join(named)}, found {of!r}"
        )
    wanted = str(selector.get("resource", ""))
    kind, _, resource = wanted.partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ConfigError(
            f"env {name}: expected a resource such as limits.cpu or requests.memory, found "
            f"{wanted!r}"
        )
    amounts = (named[of].get("resources") or {}).get(kind) or {}
    amount = amounts.get(resource, CAPACITY.get(resource, "0") if kind == "limits" else "0")
    try:
        divisor = milli(selector.get("divisor") or 1) or milli(1)
        return str(-(-milli(amount) // divisor))
    except QuantityError as error:
        raise ConfigError(f"env {name}: {error}") from error


def command_line(container: Object, variables: Mapping[str, str], python: str) -> list[str]:
    """command + args expanded; `python` and `python3` become the interpreter at `python`.

    Raises:
        StartError: there is no command; an image's entry point can't be known here.
    """
    command = [expand(str(word), variables) for word in container.get("command") or []]
    if not command:
        raise StartError(
            f"container {container['name']!r}: expected a command, found none; images are not run "
            "here, so their entry point is unknown: give spec.containers[].command"
        )
    args = [expand(str(word), variables) for word in container.get("args") or []]
    if command[0] in ("python", "python3"):
        command[0] = python
    return command + args
