"""A pod's life in the API server: what is filled in, refused, bound and let go. All pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from embedded_cluster.apiserver.builtin import POD
from embedded_cluster.apiserver.status import (
    Cause,
    StatusError,
    bad_request,
    conflict,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
)
from volcano_elastic.api.quantity import milli
from volcano_elastic.kube.resource import Object

DEFAULT_GRACE_SECONDS = 30
# What the environment of a container may hold of its pod.
_FIELD = re.compile(
    r"metadata\.(name|namespace|uid)|metadata\.(labels|annotations)\['[^']+'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
_STANDARD = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+")


def fill_defaults(spec: Object) -> None:
    """The defaults of a PodSpec that follow from other fields, in place."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    for container in _containers(spec):
        image = str(container.get("image") or "")
        latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        for port in container.get("ports") or () if spec.get("hostNetwork") else ():
            port.setdefault("hostPort", port.get("containerPort"))
        if limits := container["resources"].get("limits"):
            container["resources"]["requests"] = {
                **limits,
                **(container["resources"].get("requests") or {}),
            }
    for volume in spec.get("volumes") or ():
        if not volume.keys() - {"name"}:
            volume["emptyDir"] = {}


def tolerate_lost_nodes(spec: Object) -> None:
    """Let the pod tolerate lost nodes for five minutes, as DefaultTolerationSeconds does, in
    place."""
    tolerations = spec.get("tolerations") or []
    long = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            one.get("key") in (key, None) and one.get("effect") in ("NoExecute", None)
            for one in tolerations
        ):
            tolerations = [*tolerations, {"key": key, **long}]
    spec["tolerations"] = tolerations


def begin(pod: Object, now: str) -> None:
    """Give a new pod its status, in place."""
    pod["status"] = {"phase": "Pending", "qosClass": _qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        why = {
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        _set_condition(pod, "PodScheduled", now, status="False", **why)


def _containers(spec: Object) -> list[Object]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _qos_class(spec: Object) -> str:
    pairs = []
    for container in _containers(spec):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        pairs += [(_amount(limits.get(r)), _amount(requests.get(r))) for r in ("cpu", "memory")]
    if not any(limit or request for limit, request in pairs):
        return "BestEffort"
    guaranteed = all(limit and limit == request for limit, request in pairs)
    return "Guaranteed" if guaranteed else "Burstable"


def _amount(quantity: str | None) -> int | None:
    """Thousandths, or None for what is absent."""
    return None if quantity is None else milli(quantity)


def causes(spec: Object) -> Iterator[Cause]:
    """Return errors that Kubernetes finds in a PodSpec, beside those of builtin_rules.txt."""
    names: set[str] = set()
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{number}]"
            if (name := container.get("name") or "") in names:
                yield duplicate(f"{path}.name", name)
            names.add(name)
            yield from _resource_causes(container["resources"], f"{path}.resources")
            for at, variable in enumerate(container.get("env") or ()):
                source = (variable.get("valueFrom") or {}).get("fieldRef") or {}
                if source and not _FIELD.fullmatch(wanted := source.get("fieldPath") or ""):
                    place = f"{path}.env[{at}].valueFrom.fieldRef.fieldPath"
                    yield invalid_value(place, wanted, "field label not supported")
            for at, mount in enumerate(container.get("volumeMounts") or ()):
                if mount.get("name") not in volumes:
                    why = f'Not found: "{mount.get("name", "")}"'
                    yield Cause(f"{path}.volumeMounts[{at}].name", "FieldValueNotFound", why)


def _resource_causes(resources: Object, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            place = f"{path}.{field}[{name}]"
            if "/" not in name and not _STANDARD.fullmatch(name):
                yield invalid_value(place, name, "must be a standard resource or fully qualified")
            if milli(amount) < 0:
                yield invalid_value(place, amount, "must be greater than or equal to 0")
            elif "/" in name and milli(amount) % 1000:
                yield invalid_value(place, amount, "must be an integer")
    for name, amount in requests.items():
        limit, request = _amount(limits.get(name)), milli(amount)
        if limit is not None and request > limit:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield invalid_value(f"{path}.requests", amount, why)
        elif "/" in name and limit is None:
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif "/" in name and limit != request:
            why = f"must be equal to {name} limit of {limits[name]}"
            yield invalid_value(f"{path}.requests", amount, why)


def update_causes(new: Object, old: Object) -> Iterator[Cause]:
    """A pod's spec and quality of service stand still, but for images, tolerations, deadline and
    scheduling gates."""
    if _frozen(new["spec"]) != _frozen(old["spec"]):
        why = "images, activeDeadlineSeconds, tolerations (only additions) and schedulingGates"
        yield forbidden_field("spec", f"pod updates may not change fields other than {why}")
    kept = new["spec"].get("tolerations") or []
    if any(toleration not in kept for toleration in old["spec"].get("tolerations") or ()):
        yield forbidden_field("spec.tolerations", "those that are there stay as they are")
    quality, was = ((one.get("status") or {}).get("qosClass") for one in (new, old))
    if quality and was and quality != was:
        yield invalid_value("status.qosClass", quality, "field is immutable")
    gates = old["spec"].get("schedulingGates") or []
    for number, gate in enumerate(new["spec"].get("schedulingGates") or ()):
        if gate not in gates:
            why = "only deletion is allowed, but found new scheduling gate"
            yield forbidden_field(f"spec.schedulingGates[{number}].name", why)


def resized(old: Object, wanted: Object) -> Object:
    """Return the pod with the resources of the other's containers, and all else as it is."""
    spec = old["spec"]
    asked = {c.get("name"): c.get("resources") for c in wanted["spec"].get("containers") or ()}
    containers = [
        {**c, "resources": asked.get(c["name"]) or c["resources"]} for c in spec["containers"]
    ]
    return {**old, "spec": {**spec, "containers": containers}}


def resize_causes(new: Object, old: Object) -> Iterator[Cause]:
    """CPU and memory alone may change, neither is taken away, and the quality of service stays; the
    kubelet has to tell what containers have."""
    statuses = (old.get("status") or {}).get("containerStatuses") or ()
    running = [one for one in statuses if (one.get("state") or {}).get("running")]
    if running and running[0].get("resources") is None:
        yield forbidden_field("spec", "Pod running on node without support for resize")
    others_change = False
    pairs = zip(new["spec"]["containers"], old["spec"]["containers"], strict=True)
    for number, (mine, was) in enumerate(pairs):
        path = f"spec.containers[{number}].resources"
        for field in ("limits", "requests"):
            now, before = mine["resources"].get(field) or {}, was["resources"].get(field) or {}
            if any(name in before and name not in now for name in ("cpu", "memory")):
                yield forbidden_field(f"{path}.{field}", f"resource {field} cannot be removed")
            others = (now.keys() | before.keys()) - {"cpu", "memory"}
            others_change |= any(now.get(name) != before.get(name) for name in others)
    if others_change:
        yield forbidden_field("spec", "only cpu and memory resources are mutable")
    quality = _qos_class(old["spec"])
    if _qos_class(new["spec"]) != quality:
        why = "Pod QOS Class may not change as a result of resizing"
        yield invalid_value("spec", quality, why)


def _frozen(spec: Object) -> Object:
    frozen = {
        name: value
        for name, value in spec.items()
        if name not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    }
    for field in ("containers", "initContainers"):
        if frozen.get(field):
            frozen[field] = [{**container, "image": None} for container in frozen[field]]
    return frozen


def is_finished(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def grace_seconds(pod: Object, asked: int | None) -> int:
    """Return how long the pod may take to end, in seconds: 0 for one that no kubelet holds or that
    has ended."""
    if not pod["spec"].get("nodeName") or is_finished(pod):
        return 0
    seconds = pod["spec"].get("terminationGracePeriodSeconds") if asked is None else asked
    if seconds is None:
        return DEFAULT_GRACE_SECONDS
    return 1 if seconds < 0 else int(seconds)


def bind(pod: Object, binding: Object, now: str) -> None:
    """Give `pod` (a copy) its node.

    Raises:
        StatusError: 400 for a bad Binding, 409 for a pod that is bound, leaving or gated.
    """
    target = binding.get("target") or {}
    if target.get("kind", "Node") != "Node" or not target.get("name"):
        raise bad_request(f"Binding: expected a target of kind Node with a name, found {target}")
    meta, name = pod["metadata"], pod["metadata"]["name"]
    wanted = binding.get("metadata") or {}
    if wanted.get("name", name) != name:
        raise bad_request("name in URL does not match name in Binding object")
    if wanted.get("uid") and wanted["uid"] != meta["uid"]:
        raise conflict(POD, name, f"uid is {meta['uid']}, the binding is for {wanted['uid']}")
    if meta.get("deletionTimestamp"):
        raise _unbindable(f"pod {name} is being deleted, cannot be assigned to a host", name)
    if pod["spec"].get("nodeName"):
        taken = pod["spec"]["nodeName"]
        raise _unbindable(f'pod {name} is already assigned to node "{taken}"', name)
    if pod["spec"].get("schedulingGates"):
        raise _unbindable(f"pod {name} has non-empty .spec.schedulingGates", name)
    if annotations := wanted.get("annotations"):
        meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
    pod["spec"]["nodeName"] = target["name"]
    _set_condition(pod, "PodScheduled", now)


def evicted(pod: Object, now: str) -> None:
    """Enter, in place, that somebody evicts it."""
    why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    _set_condition(pod, "DisruptionTarget", now, **why)


def _set_condition(pod: Object, kind: str, now: str, status: str = "True", **why: str) -> None:
    times = {"lastProbeTime": None, "lastTransitionTime": now}
    old = pod["status"] = pod.get("status") or {"phase": "Pending"}
    others = [one for one in old.get("conditions") or () if one.get("type") != kind]
    old["conditions"] = [*others, {"type": kind, "status": status, **times, **why}]


def _unbindable(why: str, name: str) -> StatusError:
    words = f'Operation cannot be fulfilled on pods/binding "{name}": {why}'
    return StatusError(409, "Conflict", words, {"name": name, "kind": "pods/binding"})
