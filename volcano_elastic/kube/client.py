"""A thin asynchronous client over plain dicts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, Self

import aiohttp
import orjson

from volcano_elastic.kube import retry
from volcano_elastic.kube.kubeconfig import Access, load
from volcano_elastic.kube.request_info import RequestInfo, request_info
from volcano_elastic.kube.resource import Object, Resource

PatchType = Literal["merge", "json", "strategic", "apply"]
_PATCH_CONTENT = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
# Longer than any server's own watch timeout would be a dead connection.
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30)
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=75, sock_connect=5)
# Enough for hundreds of pods a second; a server's own limits (APF) are far below what more opens.
_CONNECTIONS = 64
# How often it is looked whether credentials have changed. A token that was refused is replaced at
# once, but not more often than this, since plug-ins may ask people or clouds.
_RENEW_SECONDS = 60.0
_REFUSED_SECONDS = 1.0

# Told of each answer: what was asked, the status code (0: there was no answer), seconds it took.
Observer = Callable[[RequestInfo, int, float], None]
# Seconds in which a write may be made, from now on; raises NotLeading if there are none.
WriteLimit = Callable[[], float]


class ApiError(Exception):
    """The API server refused a request; carries its Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: another writer was faster, or a precondition did not hold."""


class AlreadyExists(Conflict):
    """409 on create."""


class Gone(ApiError):
    """410: the resourceVersion asked for is too old; list again."""


class Invalid(ApiError):
    """422: the object was refused; retrying the same is pointless."""


class NotLeading(TimeoutError):
    """Not sent, since the time in which this process may write is over."""


def error_of(code: int, status: Mapping[str, Any]) -> ApiError:
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists(code, reason, message)
    kinds: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}
    return kinds.get(code, ApiError)(code, reason, message)


class Client:
    """One connection pool to one API server. Use as an async context manager.

    Every method raises ApiError (or a subclass) for an answer of 400 and above, and
    aiohttp.ClientError or TimeoutError when there was no answer, or none that an API server would
    give. A 429 with Retry-After is obeyed.

    Args:
        observe: told of every answer, and of every request that got none.
        write_limit: bounds every request but reads: none is begun, and none is left open, later.
    """

    def __init__(
        self,
        access: Access,
        *,
        user_agent: str = "volcano-elastic",
        observe: Observer | None = None,
        write_limit: WriteLimit | None = None,
    ) -> None:
        self.access = access
        self._user_agent = user_agent
        self._observe: Observer = observe or _nobody
        self._write_limit = write_limit
        self._credentials = access.headers
        self._renewed = time.monotonic() - _REFUSED_SECONDS
        self._renewing = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_kubeconfig(
        cls, path: str | None = None, *, user_agent: str = "volcano-elastic"
    ) -> Self:
        return cls(load(path), user_agent=user_agent)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self.access.tls or True),
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
            timeout=_REQUEST_TIMEOUT,
            proxy=self.access.proxy,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("Client is used outside of `async with`")
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        data = None if body is None else orjson.dumps(body)
        fixed = {"Content-Type": content_type} | dict(headers or {})

        async def once() -> tuple[int, bytes]:
            return await self._once(method, path, data, params, fixed)

        try:
            code, raw = await _patiently(once, f"{method} {path}")
        except retry.Overloaded as error:
            code, raw = 429, error.answer
        if code >= 400:
            raise error_of(code, _status(raw))
        return _object(raw, f"{method} {path}")

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        fixed: dict[str, str],
    ) -> tuple[int, bytes]:
        """Return code and body; a 401 is asked again if there are new credentials by then.

        Raises:
            retry.Overloaded: 429, with the time to come again.
        """
        info = request_info(method, path)
        for _ in range(2):
            credentials = await self._authorized()
            limit = None if self._write_limit is None or method == "GET" else self._write_limit()
            started, code = time.monotonic(), 0
            try:
                async with (
                    asyncio.timeout(limit),
                    self.session.request(
                        method,
                        self.access.server + path,
                        data=data,
                        params=params,
                        headers=credentials | fixed,
                        server_hostname=self.access.server_hostname,
                    ) as answer,
                ):
                    raw = await answer.read()
                    code = answer.status
            finally:
                self._observe(info, code, time.monotonic() - started)
            if code == 401 and await self._renew(credentials, refused=True):
                continue
            break
        again = answer.headers.get("Retry-After") if code == 429 else None
        if again is not None:
            raise retry.Overloaded(_retry_after(again), raw)
        return code, raw

    async def _authorized(self) -> dict[str, str]:
        """Return the headers that prove who we are, looked at anew each minute."""
        if self.access.renew is not None and time.monotonic() - self._renewed > _RENEW_SECONDS:
            await self._renew(self._credentials)
        return self._credentials

    async def _renew(self, used: dict[str, str], *, refused: bool = False) -> bool:
        """Gets new credentials unless another request just did; True if they are not `used`."""
        if self.access.renew is None:
            return False
        async with self._renewing:
            if used == self._credentials and time.monotonic() - self._renewed > _REFUSED_SECONDS:
                self._renewed = time.monotonic()
                # The official client raises what it likes; an old token may still do.
                with contextlib.suppress(Exception):
                    self._credentials = await asyncio.to_thread(self.access.renew, refused)
        return used != self._credentials

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        path = resource.path(namespace, name)
        return _with_metadata(await self.request("GET", path), f"GET {path}")

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Object:
        """The whole List object; each item gets its apiVersion and kind, which lists leave out."""
        params = _selectors(label_selector, field_selector)
        answer = await self.request("GET", resource.path(namespace), params=params)
        if not isinstance(answer.get("items"), list) or not _versioned(answer):
            raise _unreadable(f"GET {resource.path(namespace)}", "a list", orjson.dumps(answer))
        for item in answer["items"]:
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return answer

    async def create(
        self,
        resource: Resource,
        obj: Object,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """POST; namespace (and for a subresource the name) from metadata."""
        meta = obj["metadata"]
        name = meta["name"] if subresource else None
        path = resource.path(meta.get("namespace"), name, subresource)
        params = {"dryRun": "All"} if dry_run else None
        return _with_metadata(
            await self.request("POST", path, body=obj, params=params), f"POST {path}"
        )

    async def replace(
        self, resource: Resource, obj: Object, *, subresource: str | None = None
    ) -> Object:
        meta = obj["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"], subresource)
        return _with_metadata(await self.request("PUT", path, body=obj), f"PUT {path}")

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Any,
        *,
        subresource: str | None = None,
        patch_type: PatchType = "merge",
    ) -> Object:
        path = resource.path(namespace, name, subresource)
        answer = await self.request(
            "PATCH",
            path,
            body=body,
            params={"fieldManager": self._user_agent, "force": "true"}
            if patch_type == "apply"
            else None,
            content_type=_PATCH_CONTENT[patch_type],
        )
        return _with_metadata(answer, f"PATCH {path}")

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
    ) -> Object:
        """DELETE; with `uid` only that very object, with `resource_version` only as it was then
        (else Conflict)."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        wanted = {"uid": uid, "resourceVersion": resource_version}
        if uid or resource_version:
            options["preconditions"] = {name: value for name, value in wanted.items() if value}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy:
            options["propagationPolicy"] = propagation_policy
        return await self.request("DELETE", resource.path(namespace, name), body=options)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[tuple[str, Object]]:
        """(type, object) pairs until the server ends the watch; BOOKMARKs included.

        Raises:
            Gone: `resource_version` is too old.
        """
        params = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": "300",
        }
        path = resource.path(namespace)
        started = time.monotonic()
        async with self.session.get(
            self.access.server + path,
            params=params,
            headers=await self._authorized(),
            server_hostname=self.access.server_hostname,
            timeout=_WATCH_TIMEOUT,
        ) as answer:
            # A watch is counted when it begins; how long it lasts says nothing.
            info = request_info("GET", path, watch=True)
            self._observe(info, answer.status, time.monotonic() - started)
            if answer.status >= 400:
                raise error_of(answer.status, _status(await answer.read()))
            pending = b""
            async for chunk in answer.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if not line:
                        continue
                    event = _object(line, f"watch of {path}")
                    kind, obj = event.get("type"), event.get("object")
                    if not isinstance(kind, str) or not isinstance(obj, dict):
                        raise _unreadable(f"watch of {path}", "an event", line)
                    if kind == "ERROR":
                        raise error_of(int(obj.get("code") or 500), obj)
                    if not _versioned(obj):
                        raise _unreadable(f"watch of {path}", "an object's event", line)
                    yield kind, obj

    async def logs(
        self, name: str, namespace: str, *, container: str | None = None, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """The pod's log in chunks; with `follow`, until the container ends."""
        params = {"follow": "true"} if follow else {}
        if container:
            params["container"] = container
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        async with self.session.get(
            self.access.server + path,
            params=params,
            headers=await self._authorized(),
            server_hostname=self.access.server_hostname,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            if answer.status >= 400:
                raise error_of(answer.status, _status(await answer.read()))
            async for chunk in answer.content.iter_any():
                yield chunk


def _nobody(info: RequestInfo, code: int, seconds: float) -> None:
    pass


async def _patiently(
    once: Callable[[], Awaitable[tuple[int, bytes]]], what: str
) -> tuple[int, bytes]:
    """Return what `once` returns; only where the server is overloaded is a policy needed at all."""
    try:
        return await once()
    except retry.Overloaded as error:
        first = iter([error])

    async def again() -> tuple[int, bytes]:
        for error in first:
            raise error
        return await once()

    return await retry.OVERLOADED.call(again, what=what)


def _retry_after(text: str) -> float:
    """Seconds; the header may also be a date, which API servers don't send."""
    return float(text) if text.isdecimal() else 1.0


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    params = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in params.items() if value}


def _object(raw: bytes, asked: str) -> Object:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _unreadable(asked, "JSON", raw) from error
    if not isinstance(found, dict):
        raise _unreadable(asked, "a JSON object", raw)
    return found


def _with_metadata(found: Object, asked: str) -> Object:
    if not isinstance(found.get("metadata"), dict):
        raise _unreadable(asked, "an object with metadata", orjson.dumps(found))
    return found


def _versioned(found: Object) -> bool:
    meta = found.get("metadata")
    return isinstance(meta, dict) and str(meta.get("resourceVersion")).isdecimal()


def _unreadable(asked: str, expected: str, found: bytes) -> aiohttp.ClientPayloadError:
    """Return the error for an answer of something in between, or one cut off: the request is
    repeated, as over any broken connection."""
    return aiohttp.ClientPayloadError(f"{asked}: expected {expected}, found {found[:40]!r}")


def _status(raw: bytes) -> Mapping[str, Any]:
    try:
        status = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {"message": raw.decode(errors="replace")[:500]}
    return status if isinstance(status, dict) else {"message": str(status)}
