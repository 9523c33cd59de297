"""Kubernetes Events: what was done to an object, and why."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from volcano_elastic.kube.resource import Object


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make(
    about: Object,
    *,
    reason: str,
    message: str,
    now: datetime,
    component: str,
    warning: bool = False,
    name: str | None = None,
) -> Object:
    """An Event about `about`, ready to be created.

    Args:
        name: for one that must not be told twice; None makes one up.
    """
    meta = about["metadata"]
    namespace = meta.get("namespace", "default")
    stamp = timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": name or f"{meta['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": meta["name"],
            "namespace": meta.get("namespace"),
            "uid": meta.get("uid"),
            "resourceVersion": meta.get("resourceVersion"),
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message[:1024],
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": component},
        "reportingComponent": component,
    }
