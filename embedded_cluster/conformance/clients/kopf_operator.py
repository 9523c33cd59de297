"""An operator by kopf, what its handlers are called with, and what becomes of its objects.

`python kopf_operator.py KUBECONFIG NAMESPACE`: creation with a retry and a child, updates, a
resumed watch, a restart, deletion by a finalizer, posted events.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import kopf
from kubernetes import client, config
from record import Record

_GROUP, _VERSION, _PLURAL = "kopf.conformance.example.org", "v1", "shelves"
_KIND = (_GROUP, _VERSION, _PLURAL)
# The server ends each watch after so long, so that kopf resumes it again and again.
_WATCH_SECONDS = 1
_PATIENCE_SECONDS = 240.0


class Operator:
    """`with Operator(...)`: running in a thread of its own; `calls` is what its handlers saw."""

    def __init__(self, namespace: str, calls: list[Any], *, streaming: bool = False) -> None:
        """`streaming`: what is there comes by the watch (sendInitialEvents), not by a list."""
        self._ready, self._stop = threading.Event(), threading.Event()
        registry = _registry(calls, streaming=streaming)

        def run() -> None:
            asyncio.run(
                kopf.operator(
                    registry=registry,
                    standalone=True,
                    namespaces=[namespace],
                    ready_flag=self._ready,
                    stop_flag=self._stop,
                )
            )

        self._thread = threading.Thread(target=run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        if not self._ready.wait(_PATIENCE_SECONDS):
            raise TimeoutError(f"expected kopf to be ready within {_PATIENCE_SECONDS:.0f} s")

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE_SECONDS)


def _registry(calls: list[Any], *, streaming: bool) -> Any:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings: Any, **_: Any) -> None:
        settings.watching.server_timeout = _WATCH_SECONDS
        settings.watching.initial_streaming = streaming
        settings.posting.level = 20

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> Any:
        return kopf.login_with_kubeconfig(**arguments)

    @kopf.on.create(*_KIND, id="create", registry=registry)
    def create(body: Any, patch: Any, retry: int, namespace: str, **_: Any) -> Any:
        calls.append(["create", body["metadata"]["name"], retry])
        if retry == 0:
            raise kopf.TemporaryError("not yet", delay=0.5)
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}}
        kopf.adopt(child, owner=body)
        client.CoreV1Api().create_namespaced_config_map(namespace, child)
        patch.metadata.labels["made"] = "yes"
        patch.status["phase"] = "Made"
        kopf.info(body, reason="Made", message="it is made")
        return {"answer": 42}

    @kopf.on.update(*_KIND, id="update", registry=registry)
    def update(diff: Any, **_: Any) -> None:
        calls.append(["update", [[entry[0], list(entry[1]), *entry[2:]] for entry in diff]])

    @kopf.on.field(*_KIND, field="spec.size", id="size", registry=registry)
    def size(old: Any, new: Any, **_: Any) -> None:
        calls.append(["size", old, new])

    @kopf.on.resume(*_KIND, id="resume", registry=registry)
    def resume(name: str, **_: Any) -> None:
        calls.append(["resume", name])

    @kopf.on.delete(*_KIND, id="delete", registry=registry)
    def delete(name: str, **_: Any) -> None:
        calls.append(["delete", name])

    @kopf.on.event("configmaps", labels={"app": "x"}, registry=registry)
    def seen(type: str | None, name: str, body: Any, **_: Any) -> None:
        calls.append(["event", type, name, dict(body.get("data") or {})])

    return registry


def run(saw: Record, namespace: str) -> None:
    core, shelves = client.CoreV1Api(), client.CustomObjectsApi()
    kind = {"group": _GROUP, "version": _VERSION, "plural": _PLURAL, "namespace": namespace}
    one = {**kind, "name": "shelf"}
    calls: list[Any] = []

    def until(step: str, holds: Callable[[], Any]) -> None:
        """Return the calls of the handlers since the last step, and the object as it is then."""
        saw.until(step, holds)
        # Sorted: handlers of different objects come in any order.
        saw(f"{step}: calls", lambda: sorted(calls, key=str))
        calls.clear()

    def shelf() -> Any:
        return shelves.get_namespaced_custom_object(**one)

    def called(name: str, *rest: Any) -> Callable[[], bool]:
        return lambda: any(
            call == [name, *rest] or (call[0] == name and not rest) for call in calls
        )

    def settled() -> Any:
        """The object, once kopf has noted that it is done with this state of it."""
        found = shelf()
        notes = found["metadata"].get("annotations") or {}
        noted = json.loads(notes.get("kopf.zalando.org/last-handled-configuration", "{}"))
        # Its own label makes an update of its own, noted a moment later than the creation.
        labels = noted.get("metadata", {}).get("labels") == found["metadata"].get("labels")
        return found if labels and noted.get("spec") == found["spec"] and len(notes) == 1 else None

    def resized(size: int) -> None:
        shelves.patch_namespaced_custom_object(**one, body={"spec": {"size": size}})

    with Operator(namespace, calls):
        body = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "Shelf",
            "metadata": {"name": "shelf"},
        }
        shelves.create_namespaced_custom_object(**kind, body={**body, "spec": {"size": 1}})
        # By kopf's own label it is updated, too.
        until("created", lambda: called("update")() and "status" in shelf() and settled())
        saw("the child", core.read_namespaced_config_map, "child", namespace)
        resized(2)
        until("updated", lambda: called("size", 1, 2)() and settled())
        meta = {"name": "seen", "labels": {"app": "x"}}
        core.create_namespaced_config_map(namespace, {"metadata": meta, "data": {"k": "v"}})
        until("an event", called("event"))
        # Across several watches, each of which begins where the last one ended.
        for number in range(3):
            threading.Event().wait(_WATCH_SECONDS)
            core.patch_namespaced_config_map("seen", namespace, {"data": {"k": str(number)}})
        until("events across watches", called("event", "MODIFIED", "seen", {"k": "2"}))
        core.delete_namespaced_config_map("seen", namespace)
        until("an event of the end", called("event", "DELETED", "seen", {"k": "2"}))
    resized(3)
    with Operator(namespace, calls, streaming=True):
        until("restarted", lambda: called("resume")() and called("update")() and settled())
        shelves.delete_namespaced_custom_object(**one)
        until("deleted", lambda: called("delete")() and _gone(shelf))
        until(
            "its child too",
            lambda: _gone(lambda: core.read_namespaced_config_map("child", namespace)),
        )
    events = core.list_namespaced_event(namespace).items
    told = {
        (e.type, e.reason, e.message, e.involved_object.kind, e.source.component) for e in events
    }
    saw("events", lambda: sorted(told))


def _gone(read: Callable[[], Any]) -> bool:
    try:
        read()
    except client.ApiException as error:
        return bool(error.status == 404)
    return False


def _definition() -> dict[str, Any]:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        **{"name": _VERSION, "served": True, "storage": True, "subresources": {"status": {}}},
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}
        },
    }
    return {
        "metadata": {"name": f"{_PLURAL}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "scope": "Namespaced",
            "names": {"plural": _PLURAL, "kind": "Shelf"},
            "versions": [version],
        },
    }


def main() -> None:
    kubeconfig, namespace = sys.argv[1:]
    os.environ["KUBECONFIG"] = kubeconfig
    # What is logged of objects at this level becomes their events.
    logging.basicConfig(level=logging.INFO)
    config.load_kube_config(kubeconfig)
    saw, crds = Record(), client.ApiextensionsV1Api()
    crd = crds.create_custom_resource_definition(_definition())
    try:
        listed = client.CustomObjectsApi().list_namespaced_custom_object
        saw.until("served", lambda: not _gone(lambda: listed(*_KIND[:2], namespace, _PLURAL)))
        run(saw, namespace)
    finally:
        crds.delete_custom_resource_definition(crd.metadata.name)
    saw.written()


if __name__ == "__main__":
    main()
