"""Names the parts of a pod that this kubelet refuses, and those that it does without."""

from __future__ import annotations

from volcano_elastic.kube.resource import Object

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def refusal(container: Object) -> str | None:
    """Return what the container can't do without and won't get here, or None."""
    if container.get("restartPolicy"):
        return "a container's own restartPolicy is not served here, so there are no sidecars"
    if (container.get("lifecycle") or {}).get("postStart"):
        return "lifecycle.postStart is not served here; do it in the container's command"
    for mount in container.get("volumeMounts") or ():
        if mount.get("subPath") or mount.get("subPathExpr"):
            return (
                f"volumeMount {mount['name']!r}: subPath is not served here; mount the whole "
                "volume, and name the path below it in the container's command"
            )
    return None


def ignored(container: Object, pod: Object) -> str | None:
    """Return what the container asks for and does without here, in words, or None."""
    asked = [probe for probe in _PROBES if container.get(probe)]
    if (container.get("lifecycle") or {}).get("preStop"):
        asked.append("lifecycle.preStop")
    if pod["spec"].get("readinessGates"):
        asked.append("readinessGates")
    if not asked:
        return None
    return (
        f"container {container['name']}: {', '.join(asked)} not served here: it is ready while it "
        "runs, and ends by SIGTERM alone"
    )
