"""Admission webhooks, asked before an object is created or changed.

Not here: match conditions, and webhooks on deletion and on subresources.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp
import orjson

from embedded_cluster.apiserver import patch, selector
from embedded_cluster.apiserver.builtin import MUTATING, NAMESPACE, VALIDATING
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.request import Target, WriteOptions
from embedded_cluster.apiserver.rest import Rest
from embedded_cluster.apiserver.status import StatusError
from embedded_cluster.apiserver.store import Store, Stored
from volcano_elastic.kube.resource import Object

_VERSION = "admission.k8s.io/v1"
_SECONDS = 10
# Between asking and writing, others may write.
_ATTEMPTS = 5

Write = Callable[[WriteOptions], Stored]


@dataclass(slots=True)
class _Wish:
    """A requested write; `old` is the stored object."""

    target: Target
    old: Object | None
    new: Object
    options: WriteOptions

    @property
    def operation(self) -> str:
        return "UPDATE" if self.old else "CREATE"


class Admission:
    """
    Args:
        service_address: HOST:PORT where every webhook is that its configuration names by Service,
            since nothing here routes to Services.
    """

    def __init__(self, store: Store, rest: Rest, service_address: str | None = None) -> None:
        self._store, self._rest, self._service_address = store, rest, service_address
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def write(self, target: Target, options: WriteOptions, write: Write) -> Stored:
        """Return the result of `write` after the webhooks; `target` may not exist yet.

        Raises:
            StatusError: as `write` does, or since a webhook refuses or can't be asked.
        """
        kind = target.kind
        mutating, validating = self._hooks(MUTATING, target), self._hooks(VALIDATING, target)
        if target.subresource or not (mutating or validating):
            return write(options)
        dry = replace(options, dry_run=True)
        for attempt in range(1, _ATTEMPTS + 1):
            options.warnings.clear()
            old = self._store.get(kind.key, target.namespace, target.name) if target.name else None
            wish = _Wish(target, old.obj if old else None, write(dry).copy(), options)
            for hook in self._matching(mutating, wish):
                response = await self._ask(hook, wish)
                if response.get("patch"):
                    changes = orjson.loads(base64.b64decode(response["patch"]))
                    changed = patch.json_patch(wish.new, changes)
                    wish.new = self._stored(target, old, changed, dry).copy()
            for hook in self._matching(validating, wish):
                await self._ask(hook, wish)
            try:
                return self._stored(target, old, wish.new, options)
            except StatusError as error:
                if error.reason != "Conflict" or attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _stored(
        self, target: Target, old: Stored | None, new: Object, options: WriteOptions
    ) -> Stored:
        if old is None:
            return self._rest.create(target.kind, target.namespace, new, options)
        new["metadata"]["resourceVersion"] = old.obj["metadata"]["resourceVersion"]
        # None would keep those that are there, of which an apply may leave none.
        managed = new["metadata"].get("managedFields") or []
        return self._rest.update(target, new, options, managed=managed)

    def _hooks(self, kind: Kind, target: Target) -> list[Object]:
        # As there, no webhook guards the webhooks, so that any of them can be taken away.
        if target.kind.key in (MUTATING.key, VALIDATING.key):
            return []
        found = self._store.all_of(kind.key)
        return [hook for stored in found for hook in stored.obj.get("webhooks") or ()]

    def _matching(self, hooks: list[Object], wish: _Wish) -> list[Object]:
        target = wish.target
        # An object that is about to leave a selector is still guarded by it.
        either = [one["metadata"].get("labels") or {} for one in (wish.new, wish.old) if one]
        found = self._store.get(NAMESPACE.key, "", target.namespace)
        around = (found.obj["metadata"].get("labels") or {}) if found else None
        if target.kind.key == NAMESPACE.key:
            around = either[0]
        return [
            hook
            for hook in hooks
            if _concerns(hook, target.kind, wish.operation)
            and any(selector.matches(hook.get("objectSelector"), labels) for labels in either)
            and (around is None or selector.matches(hook.get("namespaceSelector"), around))
        ]

    async def _ask(self, hook: Object, wish: _Wish) -> Object:
        kind, options, uid = wish.target.kind, wish.options, str(uuid.uuid4())
        versioned = {"group": kind.group, "version": kind.version}
        request = {
            "uid": uid,
            "kind": {**versioned, "kind": kind.kind},
            "resource": {**versioned, "resource": kind.plural},
            "name": wish.new["metadata"].get("name", ""),
            "namespace": wish.target.namespace,
            "operation": wish.operation,
            "userInfo": {"username": options.field_manager},
            "object": wish.new,
            "oldObject": wish.old,
            "dryRun": options.dry_run,
        }
        review = {"apiVersion": _VERSION, "kind": "AdmissionReview", "request": request}
        seconds = hook.get("timeoutSeconds") or _SECONDS
        try:
            async with asyncio.timeout(seconds):
                response = await self._post(hook["clientConfig"], review)
            if response.get("uid") != uid:
                raise ValueError(f"expected response.uid {uid}, found {response.get('uid')!r}")
        except (aiohttp.ClientError, OSError, LookupError, ValueError, TypeError) as error:
            if hook.get("failurePolicy") == "Ignore":
                return {}
            late = f"no answer within {seconds} s"
            why = late if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise StatusError(
                500, "InternalError", f'failed calling webhook "{hook["name"]}": {why}'
            ) from error
        options.warnings += response.get("warnings") or ()
        if not response.get("allowed"):
            status = response.get("status") or {}
            why = f": {status['message']}" if status.get("message") else " without explanation"
            raise StatusError(
                int(status.get("code") or 403),
                status.get("reason") or "Forbidden",
                f'admission webhook "{hook["name"]}" denied the request{why}',
            )
        return response

    async def _post(self, config: Object, review: Object) -> Object:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        url, name = config.get("url"), None
        if url is None:
            service = config["service"]
            if self._service_address is None:
                raise ValueError(
                    "nothing here routes to Services: give the webhook's clientConfig a url, or "
                    "this API server --webhook-service-address"
                )
            name = f"{service['name']}.{service['namespace']}.svc"
            url = f"https://{self._service_address}{service.get('path') or '/'}"
        async with self._session.post(
            url, json=review, ssl=_trust(config.get("caBundle")), server_hostname=name
        ) as answer:
            if answer.status != 200:
                text = (await answer.text())[:200]
                raise ValueError(f"{url}: expected status 200, found {answer.status}: {text}")
            found = orjson.loads(await answer.read())
            if not isinstance(found, dict) or not isinstance(found.get("response"), dict):
                raise ValueError(f"{url}: expected an AdmissionReview with a response")
            response: Object = found["response"]
            return response


@functools.lru_cache(maxsize=8)
def _trust(bundle: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode() if bundle else None)


def _concerns(hook: Object, kind: Kind, operation: str) -> bool:
    return any(
        {operation, "*"} & set(rule.get("operations") or ())
        and {kind.group, "*"} & set(rule.get("apiGroups") or ())
        and {kind.version, "*"} & set(rule.get("apiVersions") or ())
        and {kind.plural, "*", "*/*"} & set(rule.get("resources") or ())
        and rule.get("scope", "*") in ("*", "Namespaced" if kind.namespaced else "Cluster")
        for rule in hook.get("rules") or ()
    )
