"""Probes and preStop hooks, carried out: a command in the container, HTTP, TCP, or a sleep."""

from __future__ import annotations

import asyncio

import aiohttp

from embedded_cluster.kubelet.process import Process, ProcessRuntime
from embedded_cluster.kubelet.source import StartError
from volcano_elastic.kube.resource import Object

_KINDS = ("exec", "httpGet", "tcpSocket", "sleep")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def refusal(container: Object) -> str | None:
    """Return what the container asks for that can't be done here, or None."""
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
) -> str:
    """Why it failed, for the event; "" if it succeeded within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            if "exec" in spec:
                code, output = await runtime.execute(process, spec["exec"]["command"], seconds)
                return (output or f"exit code {code}") if code else ""
            if "httpGet" in spec:
                return await _get(spec["httpGet"], container, address)
            if "tcpSocket" in spec:
                host = spec["tcpSocket"].get("host") or address
                port = _port(spec["tcpSocket"]["port"], container)
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
            else:
                await asyncio.sleep(spec["sleep"].get("seconds") or 0)
            return ""
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except (StartError, aiohttp.ClientError, OSError, LookupError, ValueError) as error:
        return str(error) or type(error).__name__


async def _get(request: Object, container: Object, address: str) -> str:
    port = _port(request["port"], container)
    scheme = str(request.get("scheme") or "HTTP").lower()
    path = str(request.get("path") or "/").removeprefix("/")
    url = f"{scheme}://{request.get('host') or address}:{port}/{path}"
    headers = {"User-Agent": "kube-probe/1.32"}
    headers |= {h["name"]: h["value"] for h in request.get("httpHeaders") or ()}
    # As a kubelet: whose certificate it is doesn't matter.
    connector = aiohttp.TCPConnector(force_close=True, ssl=False)
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        session.get(url, max_redirects=10) as answer,
    ):
        fine = 200 <= answer.status < 400
        return "" if fine else f"HTTP probe failed with statuscode: {answer.status}"


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for known in container.get("ports") or ():
        if known.get("name") == port:
            return int(known["containerPort"])
    raise LookupError(f"port {port!r}: no port of the container has this name")
