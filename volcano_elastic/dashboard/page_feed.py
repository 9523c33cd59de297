"""Hands the newest page to whoever looks: the latest wins, and nothing queues up for a slow one."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from volcano_elastic.dashboard.model.page import Page

MOST_FRAME = 512 * 1024
"""Bytes of a frame; more rows are left out until it fits."""


class PageFeed:
    """The newest page, encoded once for all viewers."""

    def __init__(self) -> None:
        self.page: Page | None = None
        self.version = 0
        """Grows with each frame that differs from the one before."""
        self.frame = b""
        self._content = b""
        self._changed = asyncio.Event()

    def show(self, page: Page) -> None:
        """Take a new page; one that says the same as the last one, but for the time, makes no new
        frame."""
        self.page = page
        overview = page.overview()
        time = overview.pop("time")
        content = fitting(overview)
        if content == self._content:
            return
        self._content = content
        self.version += 1
        head = orjson.dumps({"version": self.version, "time": time})
        self.frame = head[:-1] + b"," + content[1:]
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, version: int, seconds: float) -> bool:
        """Return once there is a newer frame than `version`; False if there is none in time."""
        if self.version > version:
            return True
        changed = self._changed
        try:
            await asyncio.wait_for(changed.wait(), seconds)
        except TimeoutError:
            return False
        return True


def fitting(overview: dict[str, Any]) -> bytes:
    """Return the overview as JSON, with fewer rows where it would be too large."""
    content = orjson.dumps(overview)
    while len(content) > MOST_FRAME and overview["queues"]:
        half = len(overview["queues"]) // 2
        overview["moreQueues"] += len(overview["queues"]) - half
        overview["queues"] = overview["queues"][:half]
        content = orjson.dumps(overview)
    return content
