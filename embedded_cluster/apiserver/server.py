"""HTTP: from a request to a verb, and back."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import orjson
from aiohttp import web

from embedded_cluster.apiserver import (
    discovery,
    log,
    openapi,
    patch,
    scale,
    selector,
    strategy,
)
from embedded_cluster.apiserver.admission import Admission
from embedded_cluster.apiserver.builtin import CRD, POD
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.page import page
from embedded_cluster.apiserver.registry import Registry
from embedded_cluster.apiserver.rendering import Rendering
from embedded_cluster.apiserver.request import (
    Address,
    Target,
    WriteOptions,
    address,
    body,
    check_list,
    delete_options,
    flag,
    number,
    path_and_token,
    revision,
    typed,
    write_options,
)
from embedded_cluster.apiserver.rest import Rest
from embedded_cluster.apiserver.status import (
    StatusError,
    bad_request,
    no_such_resource,
    not_served,
    success_of,
)
from embedded_cluster.apiserver.store import Change, Store, Stored
from embedded_cluster.apiserver.watch import BOOKMARK_SECONDS, Watch
from volcano_elastic.kube.resource import Object

_log = logging.getLogger(__name__)
_OPEN = frozenset({"/readyz", "/healthz", "/livez", "/version"})
_JSON = "application/json"
# Kubernetes' own limit.
BODY_LIMIT = 3 * 1024 * 1024
_WATCH_SECONDS = 3600
_STUCK_SECONDS = 10


class Server:
    """Answers requests; `handle` is an aiohttp web.Server's handler."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        rest: Rest,
        *,
        token: str,
        clock: Callable[[], datetime],
        webhook_service_address: str | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._rest = rest
        self._token = token.encode()
        self._clock = clock
        self._admission = Admission(store, rest, webhook_service_address)
        self._streams: set[asyncio.Task[Any]] = set()
        store.on_change(self._on_change)

    async def stop(self) -> None:
        """End the watches and logs that are open, which would otherwise outlive the server."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await self._admission.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            return _json(error.body(), error.code)
        except web.HTTPRequestEntityTooLarge:
            return _failure(
                413, "RequestEntityTooLarge", f"the body is larger than {BODY_LIMIT} bytes"
            )
        except (ConnectionError, asyncio.CancelledError):
            raise
        except RecursionError:
            return _failure(400, "BadRequest", "the body is nested too deeply")
        except Exception as error:
            _log.exception("%s %s", request.method, path_and_token(request)[0])
            return _failure(500, "InternalError", f"{type(error).__name__}: {error}")

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, token = path_and_token(request)
        if path in _OPEN or path.rpartition("/")[0] in _OPEN:
            is_version = path.rstrip("/") == "/version"
            return _json(discovery.VERSION) if is_version else web.Response(text="ok")
        if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._token):
            return _failure(401, "Unauthorized", "Unauthorized")
        at = address(path)
        if at is None:
            return self._document(request, path.rstrip("/"))
        kind = self._registry.get(at.group, at.version, at.plural)
        if kind is None and not self._registry.serves_built_in(at.group, at.version):
            return web.Response(status=404, text="404 page not found\n")
        if kind is None or (at.namespace is not None and not kind.namespaced):
            raise no_such_resource()
        if at.name:
            return await self._one(request, kind, at)
        return await self._collection(request, kind, at.namespace)

    def _document(self, request: web.BaseRequest, path: str) -> web.Response:
        """Discovery and OpenAPI."""
        if request.method != "GET":
            raise _not_allowed(request)
        if path == "/openapi/v2":
            return web.Response(body=openapi.NOTHING_IN_V2, content_type=openapi.V2_TYPE)
        document: Object | None = None
        match path.strip("/").split("/"):
            case ["api"]:
                document = {"kind": "APIVersions", "versions": ["v1"]}
            case ["api", version]:
                document = discovery.resource_list(self._registry, "", version)
            case ["apis"]:
                document = discovery.group_list(self._registry)
            case ["apis", group]:
                document = discovery.group(self._registry, group)
            case ["apis", group, version]:
                document = discovery.resource_list(self._registry, group, version)
            case ["openapi", "v3"]:
                document = openapi.index(self._registry, self._registry.version)
            case ["openapi", "v3", *root]:
                document = openapi.document(self._registry, "/".join(root))
        if document is None and path.startswith("/api/"):
            raise no_such_resource()
        if document is None:
            return web.Response(status=404, text="404 page not found\n")
        return _json(document)

    async def _collection(
        self, request: web.BaseRequest, kind: Kind, namespace: str | None
    ) -> web.StreamResponse:
        match request.method:
            case "GET":
                if flag(request.query, "watch"):
                    return await self._watch(request, kind, namespace)
                wanted = selector.of_query(request.query, kind)
                found, meta = page(self._store, kind.key, namespace, wanted, request.query)
                return _raw(Rendering(request, kind, self._clock).many(found, meta))
            case "POST":
                sent, options = await body(request), write_options(request)
                if kind.namespaced and namespace is None:
                    raise _not_allowed(request)
                stored = await self._admission.write(
                    Target(kind, namespace or "", ""),
                    options,
                    lambda options: self._rest.create(kind, namespace or "", sent, options),
                )
                return self._shown(request, kind, stored, 201, options)
            case "DELETE":
                options_ = delete_options(await body(request), request.query)
                wanted = selector.of_query(request.query, kind)
                found, meta = page(self._store, kind.key, namespace, wanted, request.query)
                for stored in found:
                    # A later page names what was there when the first was asked for.
                    if self._store.get(kind.key, *stored.place) is not None:
                        self._rest.delete(Target(kind, *stored.place), options_)
                meta["resourceVersion"] = str(self._store.revision)
                return _raw(Rendering(request, kind, self._clock).many(found, meta))
        raise _not_allowed(request)

    async def _one(self, request: web.BaseRequest, kind: Kind, at: Address) -> web.StreamResponse:
        target = Target(kind, at.namespace or "", at.name, at.subresource)
        if kind.namespaced and at.namespace is None:
            raise no_such_resource()
        if at.subresource and not kind.has(at.subresource):
            raise not_served(at.subresource) if kind.key == POD.key else no_such_resource()
        if at.subresource in ("scale", "log", "binding", "eviction"):
            return await self._subresource(request, target)
        match request.method:
            case "GET":
                return self._shown(request, kind, self._rest.get(target), 200)
            case "PUT" | "PATCH":
                sent, options = await body(request), write_options(request)
                exists = self._store.get(kind.key, target.namespace, target.name) is not None

                def write(options: WriteOptions) -> Stored:
                    if request.method == "PUT":
                        return self._rest.update(target, sent, options)
                    return self._rest.patch(target, request.content_type, sent, options)

                stored = await self._admission.write(target, options, write)
                return self._shown(request, kind, stored, 200 if exists else 201, options)
            case "DELETE" if not at.subresource:
                deleted = self._rest.delete(
                    target, delete_options(await body(request), request.query)
                )
                return _json(deleted)
        raise _not_allowed(request)

    async def _subresource(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        match target.subresource, request.method:
            case "log", "GET":
                return await self._logs(request, target)
            case "scale", "GET":
                return _json(scale.scale_of(target.kind, self._rest.get(target).obj))
            case "scale", "PUT" | "PATCH":
                sent, options = await body(request), write_options(request)
                if request.method == "PATCH":
                    old = scale.scale_of(target.kind, self._rest.get(target).obj)
                    sent = patch.patched(old, request.content_type, sent, None)
                sent = typed(sent, "Scale", options.refuse)
                return _json(self._rest.scale(target, sent, options))
            case "binding", "POST":
                sent, options = await body(request), write_options(request)
                return _json(self._rest.bind(target, typed(sent, "Binding"), options), 201)
            case "eviction", "POST":
                eviction = typed(await body(request), "Eviction")
                if eviction.get("metadata", {}).get("name", target.name) != target.name:
                    raise bad_request("name in URL does not match name in Eviction object")
                how = delete_options(eviction.get("deleteOptions"), request.query)
                self._rest.evict(target, how)
                return _json(success_of(201), 201)
        raise _not_allowed(request)

    def _shown(
        self,
        request: web.BaseRequest,
        kind: Kind,
        stored: Stored,
        code: int,
        options: WriteOptions | None = None,
    ) -> web.Response:
        answer = _raw(Rendering(request, kind, self._clock).one(stored), code)
        for warning in options.warnings if options else ():
            # A field's name may be anything, but a header has no room for control characters.
            text = "".join(one for one in warning if one.isprintable())
            text = text.replace("\\", "\\\\").replace('"', '\\"')
            answer.headers.add("Warning", f'299 - "{text}"')
        return answer

    async def _watch(
        self, request: web.BaseRequest, kind: Kind, namespace: str | None
    ) -> web.StreamResponse:
        query = request.query
        check_list(query, watch=True)
        seconds = number(query, "timeoutSeconds") or _WATCH_SECONDS
        wanted, since = selector.of_query(query, kind), revision(query)
        with_bookmarks = flag(query, "allowWatchBookmarks")
        initial = flag(query, "sendInitialEvents")
        if not since and "sendInitialEvents" in query:
            since = self._store.revision
        try:
            watch = Watch(
                self._store,
                kind,
                namespace,
                wanted,
                Rendering(request, kind, self._clock).one,
                since=None if initial else since or None,
                marked=initial and with_bookmarks,
            )
        except StatusError as error:
            # As there, a watch has begun before it is found to be too old.
            return _raw(orjson.dumps({"type": "ERROR", "object": error.body()}) + b"\n")
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        with self._stream():
            try:
                await response.prepare(request)
                await _pump(response, watch, seconds, with_bookmarks)
                await response.write_eof()
            except ConnectionError:
                # Not close(): that waits until the client has read what is in the buffers.
                if request.transport:
                    request.transport.abort()
            finally:
                watch.close()
        return response

    async def _logs(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        wanted = log.options(request.query, target.name)
        pod = self._rest.get(target).obj
        if not pod["spec"].get("nodeName"):
            log.container_of(pod, request.query.get("container"))
            return web.Response(status=204)
        file = log.file_of(pod, request.query.get("container"))
        uid = pod["metadata"]["uid"]

        def current() -> Object | None:
            stored = self._store.get(POD.key, target.namespace, target.name)
            same = stored is not None and stored.obj["metadata"]["uid"] == uid
            return stored.obj if stored is not None and same else None

        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        with self._stream(), suppress(ConnectionError):
            await response.prepare(request)
            async for chunk in log.read(file, wanted, current):
                await _write(response, chunk)
            await response.write_eof()
        return response

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """Marks the current task as one that `stop` has to end."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            yield
        finally:
            self._streams.discard(task)

    def _on_change(self, change: Change) -> None:
        if change.resource != CRD.key:
            return
        if change.type == "DELETED":
            self._registry.remove(change.stored.obj)
        elif not change.previous or change.previous.obj["spec"] != change.stored.obj["spec"]:
            for kind in self._registry.serve(change.stored.obj):
                strategy.reread(kind, self._store)


async def _pump(
    response: web.StreamResponse, watch: Watch, seconds: float, with_bookmarks: bool
) -> None:
    """Send what the watch collects, until its time is over or the client is hopelessly behind."""
    end = time.monotonic() + seconds
    while not watch.overrun and (left := end - time.monotonic()) > 0:
        if not watch.waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                    await watch.wake.wait()
                    continue
            if with_bookmarks and not watch.waiting:
                await _write(response, watch.bookmark())
        else:
            await _write(response, watch.take())


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Raises ConnectionError if the client takes nothing for too long."""
    try:
        async with asyncio.timeout(_STUCK_SECONDS):
            await response.write(data)
    except TimeoutError as error:
        raise ConnectionError(f"the client took nothing for {_STUCK_SECONDS} s") from error


def _not_allowed(request: web.BaseRequest) -> StatusError:
    return StatusError(
        405,
        "MethodNotAllowed",
        f"the server does not allow {request.method} on {path_and_token(request)[0]}",
        {},
    )


def _json(document: Object, code: int = 200) -> web.Response:
    return _raw(orjson.dumps(document), code)


def _raw(said: bytes, code: int = 200) -> web.Response:
    return web.Response(body=said, status=code, headers={"Content-Type": _JSON})


def _failure(code: int, reason: str, message: str) -> web.Response:
    return _json(StatusError(code, reason, message).body(), code)
