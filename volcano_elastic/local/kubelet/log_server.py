"""Containers' logs for a kube-apiserver, which asks its nodes for them: HTTPS on loopback."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import log
from volcano_elastic.local.apiserver.status import StatusError
from volcano_elastic.local.kubelet.pod_status import HOST_IP


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. Only who shows a certificate signed by `client_ca` is answered."""

    certificate: Path
    key: Path
    client_ca: Path

    def context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError is one) if a file can't be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate, self.key)
        return context


@asynccontextmanager
async def serving(pods: Informer, tls: Tls) -> AsyncIterator[int]:
    """The port, while it serves `/containerLogs/NAMESPACE/POD/CONTAINER` as a kubelet does.

    Raises:
        OSError: a file of `tls` can't be used.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = request.match_info
        key = f"{asked['namespace']}/{asked['pod']}"
        pod = pods.get(key)
        if pod is None:
            return web.Response(status=404, text=f"pod {key} is not known here")
        uid = pod["metadata"]["uid"]

        def current() -> Object | None:
            now = pods.get(key)
            return now if now is not None and now["metadata"]["uid"] == uid else None

        try:
            wanted = log.options(request.query, asked["pod"])
            file = log.file_of(pod, asked["container"])
        except StatusError as error:
            return web.Response(status=error.code, text=error.message)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for chunk in log.read(file, wanted, current):
            await response.write(chunk)
        return response

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST_IP, 0, ssl_context=tls.context(), shutdown_timeout=1)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
