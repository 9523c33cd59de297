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
from dataclasses import replace

import aiohttp
import orjson

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import patch, selector
from volcano_elastic.local.apiserver.builtin import MUTATING, NAMESPACE, VALIDATING
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.options import Target, WriteOptions
from volcano_elastic.local.apiserver.rest import Rest
from volcano_elastic.local.apiserver.status import StatusError
from volcano_elastic.local.apiserver.store import Store, Stored

_VERSION = "admission.k8s.io/v1"
_SECONDS = 10
# Between asking and writing, others may write.
_ATTEMPTS = 5

Write = Callable[[WriteOptions], Stored]


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
        """What `write` does, as the webhooks would have it; `target` may not exist yet.

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
            operation = "UPDATE" if old else "CREATE"
            new, before = write(dry).copy(), old.obj if old else None
            for hook in self._matching(mutating, target, operation, new, before):
                response = await self._ask(hook, target, operation, new, before, options)
                if response.get("patch"):
                    changes = orjson.loads(base64.b64decode(response["patch"]))
                    new = self._stored(target, old, patch.json_patch(new, changes), dry).copy()
            for hook in self._matching(validating, target, operation, new, before):
                await self._ask(hook, target, operation, new, before, options)
            try:
                return self._stored(target, old, new, options)
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
        return self._rest.update(target, new, options, managed=new["metadata"].get("managedFields"))

    def _hooks(self, kind: Kind, target: Target) -> list[Object]:
        # As there, no webhook guards the webhooks, so that any of them can be taken away.
        if target.kind.key in (MUTATING.key, VALIDATING.key):
            return []
        found = sorted(self._store.all_of(kind.key), key=lambda s: s.obj["metadata"]["name"])
        return [hook for stored in found for hook in stored.obj.get("webhooks") or ()]

    def _matching(
        self,
        hooks: list[Object],
        target: Target,
        operation: str,
        new: Object,
        old: Object | None,
    ) -> list[Object]:
        # An object that is about to leave a selector is still guarded by it.
        either = [one["metadata"].get("labels") or {} for one in (new, old) if one]
        found = self._store.get(NAMESPACE.key, "", target.namespace)
        around = (found.obj["metadata"].get("labels") or {}) if found else None
        if target.kind.key == NAMESPACE.key:
            around = either[0]
        return [
            hook
            for hook in hooks
            if _concerns(hook, target.kind, operation)
            and any(selector.matches(hook.get("objectSelector"), labels) for labels in either)
            and (around is None or selector.matches(hook.get("namespaceSelector"), around))
        ]

    async def _ask(
        self,
        hook: Object,
        target: Target,
        operation: str,
        new: Object,
        old: Object | None,
        options: WriteOptions,
    ) -> Object:
        kind, uid = target.kind, str(uuid.uuid4())
        request = {
            "uid": uid,
            "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
            "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
            "name": new["metadata"].get("name", ""),
            "namespace": target.namespace,
            "operation": operation,
            "userInfo": {"username": options.field_manager},
            "object": new,
            "oldObject": old,
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
