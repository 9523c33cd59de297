"""Probes and preStop hooks, carried out: a command in the container, HTTP, TCP, or a sleep."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import aiohttp

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.kubelet.process import Process, ProcessRuntime, StartError

_KINDS = ("exec", "httpGet", "tcpSocket", "sleep")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


class HandlerFailed(Exception):
    """The answer was no, or none came; the message is for the event."""


def refusal(container: Object) -> str | None:
    """What the container asks for that can't be done here, or None."""
    if container.get("restartPolicy"):
        return "a container's own restartPolicy is not served here, so there are no sidecars"
    hooks = container.get("lifecycle") or {}
    if hooks.get("postStart"):
        return "lifecycle.postStart is not served here; do it in the container's command"
    wanted = {"lifecycle.preStop": hooks.get("preStop")}
    wanted |= {name: container.get(name) for name in _PROBES}
    for name, spec in wanted.items():
        if spec and not any(kind in spec for kind in _KINDS):
            return f"{name}: expected {', '.join(_KINDS)}, found {', '.join(spec)}"
    return None


async def carry_out(
    spec: Object,
    container: Object,
    process: Process,
    runtime: ProcessRuntime,
    address: str,
    seconds: float,
) -> None:
    """Until it succeeds.

    Raises:
        HandlerFailed: it did not, within `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            if "exec" in spec:
                code, output = await runtime.execute(process, spec["exec"]["command"], seconds)
                if code:
                    raise HandlerFailed(output or f"exit code {code}")
            elif "httpGet" in spec:
                await _get(spec["httpGet"], container, address)
            elif "tcpSocket" in spec:
                socket = spec["tcpSocket"]
                port = _port(socket["port"], container)
                _, writer = await asyncio.open_connection(socket.get("host") or address, port)
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            else:
                await asyncio.sleep(spec["sleep"].get("seconds") or 0)
    except TimeoutError:
        raise HandlerFailed(f"no answer within {seconds:g} s") from None
    except (StartError, aiohttp.ClientError, OSError, ssl.SSLError) as error:
        raise HandlerFailed(str(error) or type(error).__name__) from error


async def _get(request: Object, container: Object, address: str) -> None:
    port = _port(request["port"], container)
    scheme = str(request.get("scheme") or "HTTP").lower()
    path = str(request.get("path") or "/").removeprefix("/")
    url = f"{scheme}://{request.get('host') or address}:{port}/{path}"
    headers: dict[str, str] = {"User-Agent": "kube-probe/1.32"}
    headers |= {h["name"]: h["value"] for h in request.get("httpHeaders") or ()}
    # As a kubelet: whose certificate it is doesn't matter.
    arguments: dict[str, Any] = {"ssl": False, "headers": headers, "max_redirects": 10}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(url, **arguments) as answer,
    ):
        if not 200 <= answer.status < 400:
            raise HandlerFailed(f"HTTP probe failed with statuscode: {answer.status}")


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for known in container.get("ports") or ():
        if known.get("name") == port:
            return int(known["containerPort"])
    raise HandlerFailed(f"port {port!r}: no port of the container has this name")
