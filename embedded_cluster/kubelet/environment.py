"""A container's environment and command line, as Kubernetes puts them together."""

from __future__ import annotations

import re
from collections.abc import Mapping

from embedded_cluster.kubelet.address import Resolve, resolve_value
from embedded_cluster.kubelet.source import ConfigError, Reference, Sources, StartError
from volcano_elastic.kube.resource import Object

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known and left as it is elsewhere; `$$` stands for `$`."""

    def replace(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "$"
        return variables.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replace, text)


def entries(container: Object) -> list[Object]:
    """Return the entries of its environment that come from elsewhere."""
    own = [entry.get("valueFrom") or {} for entry in container.get("env") or ()]
    return [*(container.get("envFrom") or ()), *own]


def environment(
    container: Object,
    pod: Object,
    sources: Sources,
    resolve: Resolve | None = None,
) -> dict[str, str]:
    """Return the variables of `env` and `envFrom`; later entries win, and may refer to earlier
    ones.

    Args:
        pod: with status.podIP and hostIP already set.
        sources: the ConfigMaps and Secrets of its `entries` that exist.
        resolve: host names in values become addresses by it; None leaves them.

    Raises:
        ConfigError: a source, key or field is missing and not optional.
    """

    def resolved(value: str) -> str:
        return value if resolve is None else resolve_value(value, resolve)

    variables: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        if reference := Reference.of(source):
            for key, found in reference.content(sources).items():
                variables[(source.get("prefix") or "") + key] = resolved(_text(found))
    for entry in container.get("env") or []:
        name = entry["name"]
        if entry.get("valueFrom"):
            taken = _value_from(name, entry["valueFrom"], pod, sources)
            if taken is None:
                continue
            # A pod's own name read from a field must stay a name.
            variables[name] = taken if "fieldRef" in entry["valueFrom"] else resolved(taken)
        else:
            value = expand(str(entry.get("value") or ""), variables)
            variables[name] = resolved(value)
    return variables


def _value_from(
    name: str,
    value_from: Object,
    pod: Object,
    sources: Sources,
) -> str | None:
    if reference := Reference.of(value_from):
        data, key = reference.content(sources), reference.fields.get("key", "")
        if key in data:
            return _text(data[key])
        if reference.optional:
            return None
        raise ConfigError(f"env {name}: {reference.lacks(key)}")
    if "fieldRef" in value_from:
        return _pod_field(name, str(value_from["fieldRef"].get("fieldPath", "")), pod)
    kinds = ", ".join(value_from) or "nothing"
    raise ConfigError(
        f"env {name}: expected valueFrom with fieldRef, configMapKeyRef or secretKeyRef, "
        f"found {kinds}"
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _pod_field(name: str, path: str, pod: Object) -> str:
    """The downward API's `fieldPath`."""
    meta, status = pod["metadata"], pod.get("status", {})
    spec = {"serviceAccountName": "default"} | pod["spec"]
    if keyed := _KEYED.fullmatch(path):
        return str((meta.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    fields = {
        **{f"metadata.{field}": meta for field in ("name", "namespace", "uid")},
        **{f"spec.{field}": spec for field in ("nodeName", "serviceAccountName")},
        **{f"status.{field}": status for field in ("podIP", "podIPs", "hostIP", "hostIPs")},
    }
    if path not in fields:
        raise ConfigError(
            f"env {name}: expected a fieldPath of {', '.join(fields)}, found {path!r}"
        )
    # There is one address of each kind.
    return str(fields[path].get(path.partition(".")[2].removesuffix("s"), ""))


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
