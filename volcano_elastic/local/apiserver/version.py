"""The same object in another version of its API."""

from __future__ import annotations

from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.store import Stored


def shown_as(kind: Kind, stored: Stored) -> Stored:
    """As a client of this version sees it; the same Stored where nothing differs."""
    if stored.obj.get("apiVersion") == kind.api_version:
        return stored
    return Stored.of({**stored.obj, "apiVersion": kind.api_version})


def stored_as(kind: Kind, obj: Any) -> Object:
    """A shallow copy as it is kept, its type in front, where lists can cut it off.

    Conversion by CRDs is of strategy None, the name alone.
    """
    typed = {"apiVersion": kind.storage_api_version, "kind": kind.kind}
    return typed | {name: value for name, value in obj.items() if name not in typed}
