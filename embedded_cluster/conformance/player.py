"""Plays a case on an API server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp

from embedded_cluster.conformance.case import Case, Step
from embedded_cluster.conformance.client_program import run
from volcano_elastic.kube.kubeconfig import Access, load

# For what a server does by itself after an answer: garbage collection, a new CRD's kind.
_PATIENCE_SECONDS = 180.0
_EVENT_SECONDS = 10.0
_ANSWER_SECONDS = 15.0
_KUBECTL_SECONDS = 90.0
_POLL_SECONDS = 0.1


@dataclass(slots=True)
class Answer:
    """`body` is what was decoded of JSON, or text; of a watch, its events."""

    step: Step
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


class Player:
    """`async with Player(access) as player`: any number of cases, one after the other."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig, self._access = kubeconfig, load(str(kubeconfig))

    async def __aenter__(self) -> Self:
        # kubectl's cache, apart from the user's own.
        self._home = tempfile.TemporaryDirectory(prefix="ve-kubectl-")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        self._home.cleanup()

    async def play(self, case: Case, namespace: str) -> list[Answer]:
        """Each step's answer; `namespace` is made for the case, and deleted after it."""
        await self._send(
            "POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}, "application/json", ""
        )
        answers: list[Answer] = []
        watches: list[_Watch] = []
        try:
            for step in case.steps:
                answers.append(await self._step(step, namespace, answers, watches))
        finally:
            for watch in watches:
                watch.close()
            path = f"/api/v1/namespaces/{namespace}"
            await self._send("DELETE", path, None, "application/json", "")
        return answers

    async def _step(
        self, step: Step, namespace: str, answers: list[Answer], watches: list[_Watch]
    ) -> Answer:
        path = str(_filled(step.path, namespace, answers))
        body = _filled(step.body, namespace, answers)
        answer = Answer(step)
        if step.verb == "WATCH":
            joint = "&" if "?" in path else "?"
            watch = _Watch(self._session, self._access, f"{path}{joint}watch=true", step.accept)
            watches.append(watch)
            answer.status, answer.headers = await watch.begun()
        elif step.verb == "EVENTS":
            answer.body = await watches[-1].events(int(step.path))
        elif step.verb == "KUBECTL":
            answer.status, answer.body = await self._kubectl(path, namespace, body)
        elif step.verb == "PROGRAM":
            answer.body = await run(*path.split(), str(self._kubeconfig), namespace)
        elif step.verb == "AWAIT":
            deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
            while answer.status != body and asyncio.get_running_loop().time() < deadline:
                answer.status, _, _ = await self._send("GET", path, None, "", step.accept)
                await asyncio.sleep(_POLL_SECONDS)
        else:
            try:
                answer.status, answer.headers, answer.body = await self._send(
                    step.verb, path, body, step.content_type, step.accept
                )
            except TimeoutError:
                answer.body = f"no end within {_ANSWER_SECONDS:.0f} s"
        return answer

    async def _kubectl(self, command: str, namespace: str, body: Any) -> tuple[int, Any]:
        process = await asyncio.create_subprocess_exec(
            *("kubectl", "--kubeconfig", str(self._kubeconfig), "--namespace", namespace),
            *shlex.split(command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": self._home.name},
        )
        try:
            async with asyncio.timeout(_KUBECTL_SECONDS):
                out, err = await process.communicate(json.dumps(body).encode() if body else b"")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, {"out": _lines(out), "err": _lines(err)}

    async def _send(
        self, verb: str, path: str, body: Any, content_type: str, accept: str
    ) -> tuple[int, dict[str, str], Any]:
        headers = {"Accept": accept or "application/json", "User-Agent": "conformance/1"}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = body if isinstance(body, str) else json.dumps(body)
        async with self._session.request(
            verb,
            self._access.server + path,
            data=data,
            headers={**headers, **self._access.headers},
            ssl=self._access.tls or False,
        ) as response:
            text = await response.text()
            return response.status, _headers(response), _decoded(text)


class _Watch:
    """Reads events from the moment it is made."""

    def __init__(
        self, session: aiohttp.ClientSession, access: Access, path: str, accept: str
    ) -> None:
        self._begun: asyncio.Future[tuple[int, dict[str, str]]] = asyncio.Future()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(session, access, path, accept))

    async def _read(
        self, session: aiohttp.ClientSession, access: Access, path: str, accept: str
    ) -> None:
        headers = {"Accept": accept, "User-Agent": "conformance/1", **access.headers}
        async with session.get(
            access.server + path,
            headers=headers,
            ssl=access.tls or False,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as response:
            self._begun.set_result((response.status, _headers(response)))
            async for line in response.content:
                self._lines.put_nowait(line)

    async def begun(self) -> tuple[int, dict[str, str]]:
        return await asyncio.wait_for(asyncio.shield(self._begun), _PATIENCE_SECONDS)

    async def events(self, count: int) -> list[Any]:
        """The next ones; fewer if they don't come in time."""
        found: list[Any] = []
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                while len(found) < count:
                    found.append(json.loads(await self._lines.get()))
        except TimeoutError:
            pass
        return found

    def close(self) -> None:
        self._task.cancel()


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Those that clients act on."""
    kept = {"content-type": response.headers.get("Content-Type", "")}
    for name in ("Warning", "Retry-After", "Allow"):
        if found := response.headers.getall(name, []):
            kept[name.lower()] = "\n".join(found)
    return kept


def _lines(out: bytes) -> list[str]:
    """Without the widths of columns, ages and revisions."""
    lines = [" ".join(line.split()) for line in out.decode().splitlines()]
    lines = [re.sub(r"(?<= )\d+(s|ms|m\d*s?)\b", "AGE", line) for line in lines if line]
    return [re.sub(r'resourceVersion: "\d+"', "resourceVersion: REVISION", line) for line in lines]


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        lines = text.splitlines()
        try:
            return [json.loads(line) for line in lines] if lines else text
        except ValueError:
            return text


def _filled(value: Any, namespace: str, answers: list[Answer]) -> Any:
    """`value` with $ns, $uid, $rv and $continue (of the last object answered) filled in."""
    if isinstance(value, dict):
        return {
            _filled(key, namespace, answers): _filled(one, namespace, answers)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_filled(one, namespace, answers) for one in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    value = value.replace("$ns", namespace)
    for mark, name in (("$uid", "uid"), ("$rv", "resourceVersion"), ("$continue", "continue")):
        if mark in value:
            value = value.replace(mark, _latest(answers, name))
    return value


def _latest(answers: list[Answer], name: str) -> str:
    for answer in reversed(answers):
        meta = answer.body.get("metadata") if isinstance(answer.body, dict) else None
        if isinstance(meta, dict) and meta.get(name):
            return str(meta[name])
    return "none"
