"""Containers' logs for a kube-apiserver, which asks its nodes for them: HTTPS on loopback."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from embedded_cluster.apiserver import log
from embedded_cluster.apiserver.status import StatusError
from embedded_cluster.kubelet.pod_status import HOST_IP
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object


def _only_for(certificate: Path, key: Path, client_ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    return context


@asynccontextmanager
async def serving(
    pods: Informer, certificate: Path, key: Path, client_ca: Path
) -> AsyncIterator[int]:
    """The port, while it serves `/containerLogs/NAMESPACE/POD/CONTAINER` as a kubelet does, to who
    shows a certificate signed by `client_ca`. All are PEM files.

    Raises:
        OSError: a file can't be used (ssl.SSLError is one).
    """
    context = _only_for(certificate, key, client_ca)

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = request.match_info
        name = f"{asked['namespace']}/{asked['pod']}"
        pod = pods.get(name)
        if pod is None:
            return web.Response(status=404, text=f"pod {name} is not known here")
        uid = pod["metadata"]["uid"]

        def current() -> Object | None:
            now = pods.get(name)
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
        site = web.TCPSite(runner, HOST_IP, 0, ssl_context=context, shutdown_timeout=1)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
