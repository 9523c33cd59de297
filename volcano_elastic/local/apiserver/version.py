"""The same object in another version of its API."""

from __future__ import annotations

from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.store import Stored

# events.k8s.io/v1 on the left, core/v1 on the right.
_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}


def shown_as(kind: Kind, stored: Stored) -> Stored:
    """As a client of this version sees it; the same Stored where nothing differs."""
    if stored.obj.get("apiVersion") == kind.api_version:
        return stored
    if kind.group == "events.k8s.io":
        new_names = {old: new for new, old in _EVENT_FIELDS.items()}
        # Of these, core/v1 writes empty ones too.
        empty = ("reportingComponent", "reportingInstance")
        obj = {
            new_names.get(name, name): value
            for name, value in stored.obj.items()
            if value or name not in empty
        }
    else:
        obj = dict(stored.obj)
    return Stored.of({**obj, "apiVersion": kind.api_version})


def stored_as(kind: Kind, obj: Any) -> Object:
    """A shallow copy as it is kept: conversion by CRDs is of strategy None, the name alone."""
    if kind.group == "events.k8s.io":
        renamed = {_EVENT_FIELDS.get(name, name): value for name, value in obj.items()}
        return _typed("v1", kind.kind, renamed)
    return _typed(kind.storage_api_version, kind.kind, obj)


def _typed(api_version: str, kind: str, obj: Any) -> Object:
    """With its type in front, where lists can cut it off."""
    typed = {"apiVersion": api_version, "kind": kind}
    return typed | {name: value for name, value in obj.items() if name not in typed}
