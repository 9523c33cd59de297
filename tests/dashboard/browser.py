"""Headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60.0


class NotInstalled(Exception):
    """There is no Chromium on this machine."""


class Interrupted(Exception):
    """The browser did not answer what was asked: the page went away meanwhile, say."""


class Tab:
    """One tab. What its page says of errors is in `errors`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.errors: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(Interrupted(told["error"]))
                else:
                    answer.set_result(told["result"])
            elif told["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["params"]["exceptionDetails"])[:2000])
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.errors.append(str(told["params"]["entry"]))

    async def send(self, method: str, **parameters: Any) -> asyncio.Future[Any]:
        """Return what will have the answer."""
        self._number += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        asked = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(asked)
        return answer

    async def call(self, method: str, **parameters: Any) -> Any:
        answer = await self.send(method, **parameters)
        async with asyncio.timeout(_SECONDS):
            return await answer

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page, awaited if it is a promise."""
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str, what: str) -> None:
        """Wait until the expression is true in the page."""
        try:
            async with asyncio.timeout(_SECONDS):
                while True:
                    try:
                        await self._wait_in_page(script)
                        return
                    except Interrupted:
                        # It is being loaded anew.
                        await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"not within {_SECONDS:g} s: {what}\n{text}") from None

    async def _wait_in_page(self, script: str) -> None:
        await self.evaluate(
            "new Promise((done) => { const look = () => { let found; "
            f"try {{ found = ({script}); }} catch {{}} "
            "if (found) done(true); else setTimeout(look, 50); }; look(); })"
        )

    async def open(self, address: str) -> None:
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=address)

    async def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and which colours its user prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, file: Path) -> None:
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """Yields a tab of a browser of its own, of which nothing is left afterwards.

    Raises:
        NotInstalled: none of PROGRAMS is there.
    """
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        raise NotInstalled(f"none of {', '.join(PROGRAMS)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = await asyncio.create_subprocess_exec(
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={home}"),
            *("--disable-background-networking", "--disable-component-update", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession() as session:
                port = await _port(Path(home), process)
                url = await _first_tab(session, port)
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    listening = asyncio.create_task(tab.listen())
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    yield tab
                    # It may be gone before it has answered.
                    await tab.send("Browser.close")
                    listening.cancel()
        finally:
            if process.returncode is None:
                try:
                    await asyncio.wait_for(process.wait(), 10)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _first_tab(session: aiohttp.ClientSession, port: int) -> str:
    async with asyncio.timeout(_SECONDS):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = await answer.json()
            urls = [str(t["webSocketDebuggerUrl"]) for t in tabs if t["type"] == "page"]
            if urls:
                return urls[0]
            await asyncio.sleep(0.05)


async def _port(home: Path, process: asyncio.subprocess.Process) -> int:
    file = home / "DevToolsActivePort"
    async with asyncio.timeout(_SECONDS):
        while not (file.exists() and file.read_text().count("\n")):
            assert process.returncode is None, f"the browser ended with {process.returncode}"
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
