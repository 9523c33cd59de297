"""The server that the API server asks about new and changed objects, and its certificates.

Every replica serves. Unless certificates are given as files, the leader keeps them: in a Secret
that all replicas watch, and their authority in the webhook configurations.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from volcano_elastic.kube import retry
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.http_log import http_log
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import (
    MUTATINGWEBHOOKCONFIGURATIONS,
    SECRETS,
    VALIDATINGWEBHOOKCONFIGURATIONS,
    Object,
)
from volcano_elastic.operator import admission
from volcano_elastic.operator.certificate import Certificates, renewed

_log = logging.getLogger(__name__)
NAME = "volcano-elastic-webhook"
# A review holds an object and what it was before; etcd takes 1.5 MiB of each.
_BODY_LIMIT = 8 * 1024 * 1024
_BODY_SECONDS = 10.0
# Larger reviews are looked at beside the event loop, which leads and is probed meanwhile.
_QUICK_BYTES = 64 * 1024
# Certificates last for weeks, so that their ends need not be met to the minute.
_LOOK_SECONDS = 60.0
_FILE_SECONDS = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AddressTaken(Exception):
    """The webhooks cannot listen on their address; names the address and the reason."""


@dataclass(frozen=True, slots=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 0
    """0 chooses a free one and logs it."""
    name: str = NAME
    """Name of the Service, the Secret and the two webhook configurations."""
    certificate: Path | None = None
    key: Path | None = None
    """Both are set or neither; without them the operator makes certificates itself."""


def add_arguments(
    parser: argparse.ArgumentParser, address: Callable[[str], tuple[str, int] | None]
) -> None:
    group = parser.add_argument_group(
        "webhooks", "validation and defaulting at admission; the operator checks again anyway"
    )
    group.add_argument(
        "--webhook-address",
        metavar="HOST:PORT",
        type=address,
        default=None,
        help="where the API server finds them (HTTPS), or none; default none",
    )
    group.add_argument(
        "--webhook-name",
        metavar="NAME",
        default=NAME,
        help="of the Service, of the Secret with the certificates, and of the Validating- and "
        f"MutatingWebhookConfiguration; default {NAME}",
    )
    group.add_argument(
        "--webhook-cert",
        metavar="FILE",
        type=Path,
        help="PEM, reloaded when it changes; without it the operator makes certificates itself, "
        "and enters their authority in the webhook configurations",
    )
    group.add_argument("--webhook-key", metavar="FILE", type=Path, help="of --webhook-cert")


def options_of(arguments: argparse.Namespace) -> Options | None:
    """Return what the command line asks for; None where it asks for no webhooks.

    Raises:
        ValueError: only one of certificate and key is given, or they can't be used.
    """
    certificate, key = arguments.webhook_cert, arguments.webhook_key
    if (certificate is None) != (key is None):
        raise ValueError("expected --webhook-cert and --webhook-key together, found one of them")
    if arguments.webhook_address is None:
        return None
    if certificate is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except OSError as error:
            raise ValueError(
                f"--webhook-cert {certificate}, --webhook-key {key}: expected a certificate in PEM "
                f"and its key, found: {error}"
            ) from error
    host, port = arguments.webhook_address
    return Options(host, port, arguments.webhook_name, certificate, key)


class WebhookServer:
    """Serves the webhooks (`serve`, on every replica), and keeps their certificates and
    configurations in order (`lead`, on the leader).

    Raises:
        AddressTaken: on creation.
    """

    def __init__(
        self,
        client: Client,
        options: Options,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client, self._options, self._clock = client, options, clock
        self._namespace = client.access.namespace
        # Now, so that an address in use is told at the start; `serve` listens.
        self._socket = _bound(options.host, options.port)
        self.port = int(self._socket.getsockname()[1])
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.listening = asyncio.Event()
        self._changed = asyncio.Event()
        """Set when the Secret or a configuration, which `lead` keeps in order, has changed."""
        named = f"metadata.name={options.name}"
        self._secrets = Informer(client, SECRETS, namespace=self._namespace, field_selector=named)
        self._configurations = [
            Informer(client, resource, field_selector=named)
            for resource in (VALIDATINGWEBHOOKCONFIGURATIONS, MUTATINGWEBHOOKCONFIGURATIONS)
        ]
        for informer in (self._secrets, *self._configurations):
            informer.on_change(lambda old, new: self._changed.set())

    @property
    def _own(self) -> bool:
        """True if the operator makes the certificates itself."""
        return self._options.certificate is None

    async def serve(self) -> None:
        """Answer reviews until cancelled, from when there are certificates."""
        async with asyncio.TaskGroup() as group:
            loaded = asyncio.Event()
            if self._own:
                self._secrets.on_change(lambda old, new: self._load_secret(new, loaded))
                group.create_task(self._secrets.run())
            else:
                group.create_task(self._watch_files(loaded))
            await loaded.wait()
            await self._listen()

    async def lead(self) -> None:
        """Keep the Secret and the webhook configurations in order until cancelled."""
        if not self._own:
            return
        async with asyncio.TaskGroup() as group:
            for informer in self._configurations:
                group.create_task(informer.run())
            # `serve` runs its informer already.
            for informer in (self._secrets, *self._configurations):
                await informer.synced.wait()
            while True:
                await retry.WEBHOOKS.call(self._keep_once, what="webhook certificates")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._changed.wait()

    async def _keep_once(self) -> None:
        """Write what the Secret and the configurations lack.

        Raises:
            retry.Interrupted: the API server refused, or did not answer.
        """
        self._changed.clear()
        try:
            await self._keep()
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            raise retry.Interrupted(str(error) or type(error).__name__) from error

    async def _keep(self) -> None:
        name = self._options.name
        secret = self._secrets.get(f"{self._namespace}/{name}")
        current = Certificates.of_secret(secret.get("data") or {}) if secret else None
        new = renewed(current, names_of(name, self._namespace), self._clock())
        if new is not None:
            _log.info("new webhook certificates, kept in Secret %s/%s", self._namespace, name)
            self._secrets.note_write(await self._write(secret, new))
            # The next step only once this one is known to the API server.
            self._changed.set()
        current = new or current
        assert current is not None
        bundle = base64.b64encode(current.authorities).decode()
        for informer in self._configurations:
            for configuration in informer:
                patch = believing(configuration, bundle)
                if patch:
                    informer.note_write(
                        await self._client.patch(
                            informer.resource, name, None, patch, patch_type="json"
                        )
                    )

    async def _write(self, secret: Object | None, new: Certificates) -> Object:
        data = new.secret_data()
        meta = {"name": self._options.name, "namespace": self._namespace}
        if secret is None:
            body = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta}
            return await self._client.create(SECRETS, body | {"data": data})
        version = {"resourceVersion": secret["metadata"]["resourceVersion"]}
        return await self._client.patch(
            SECRETS, self._options.name, self._namespace, {"metadata": version, "data": data}
        )

    def _load_secret(self, secret: Object | None, loaded: asyncio.Event) -> None:
        found = Certificates.of_secret((secret or {}).get("data") or {})
        if found is None:
            # The leader mends it; what was loaded before serves until then.
            return
        self._load(found.server, found.server_key)
        loaded.set()

    def _load(self, certificate: bytes, key: bytes) -> None:
        """Use this certificate for connections from now on.

        Raises:
            ssl.SSLError: they don't fit each other; the old ones stay.
        """
        # load_cert_chain takes files only, and a key had better not be on a disk.
        with open(os.memfd_create("webhook"), "wb") as both:
            both.write(certificate + b"\n" + key)
            both.flush()
            # One that fails leaves a context without a key, so a spare one goes first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls):
                context.load_cert_chain(f"/proc/self/fd/{both.fileno()}")

    async def _watch_files(self, loaded: asyncio.Event) -> None:
        certificate, key = self._options.certificate, self._options.key
        assert certificate is not None and key is not None
        seen: tuple[bytes, bytes] | None = None
        while True:
            try:
                found = (certificate.read_bytes(), key.read_bytes())
                if found != seen:
                    self._load(*found)
                    seen = found
                    loaded.set()
            except OSError as error:
                # Seen half written: one of the two is new already.
                _log.warning("webhook certificate %s: %s; the old one serves", certificate, error)
            await asyncio.sleep(_FILE_SECONDS)

    async def _listen(self) -> None:
        app = web.Application(client_max_size=_BODY_LIMIT)
        for path, webhook in admission.WEBHOOKS.items():
            app.router.add_post(path, _handler(webhook))
        runner = web.AppRunner(app, access_log=None, logger=http_log(__name__), shutdown_timeout=1)
        await runner.setup()
        try:
            await web.SockSite(runner, self._socket, ssl_context=self._tls).start()
            _log.info("webhooks on https://%s:%d", self._options.host, self.port)
            self.listening.set()
            await asyncio.Event().wait()
        finally:
            self.listening.clear()
            await runner.cleanup()


def names_of(service: str, namespace: str) -> Sequence[str]:
    """Return the names that certificates are for: those of the Service, and of loopback for an API
    server on the same machine."""
    full = f"{service}.{namespace}.svc"
    return (full, f"{full}.cluster.local", "localhost", "127.0.0.1")


def believing(configuration: Object, bundle: str) -> list[Object]:
    """Return a JSON patch by which each webhook trusts the authorities in `bundle` (base64 of PEM);
    empty if all do."""
    operations: list[Object] = []
    for i, webhook in enumerate(configuration.get("webhooks") or ()):
        if (webhook.get("clientConfig") or {}).get("caBundle") != bundle:
            # Others may reorder the list between our read and this write.
            operations += [
                {"op": "test", "path": f"/webhooks/{i}/name", "value": webhook["name"]},
                {"op": "add", "path": f"/webhooks/{i}/clientConfig/caBundle", "value": bundle},
            ]
    return operations


def _bound(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise AddressTaken(f"--webhook-address {host}:{port}: {error.strerror}") from error
    return found


def _handler(webhook: admission.Webhook) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return _text(408, f"expected the whole body within {_BODY_SECONDS:.0f} s")
        if len(body) > _QUICK_BYTES:
            return await asyncio.to_thread(_reviewed, webhook, request.path, body)
        return _reviewed(webhook, request.path, body)

    return handle


def _reviewed(webhook: admission.Webhook, path: str, body: bytes) -> web.Response:
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _text(400, f"expected an AdmissionReview in JSON, found: {error}")
    try:
        found = admission.answer(webhook, review)
    except admission.BadReview as error:
        return _text(400, str(error))
    except Exception:
        _log.exception("%s: an object could not be checked", path)
        found = admission.unchecked(review)
    return web.Response(body=orjson.dumps(found), content_type="application/json")


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text)
