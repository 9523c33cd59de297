"""Log lines, for people or for machines; never with a credential in them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Literal

import orjson

Format = Literal["text", "json"]


class _Text(logging.Formatter):
    def __init__(self, secrets: Collection[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return _without(super().format(record), self._secrets)


class _Json(logging.Formatter):
    """One object a line: time (RFC 3339), level, logger, message, and exception if there is one."""

    def __init__(self, secrets: Collection[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _without(record.getMessage(), self._secrets),
        }
        if record.exc_info:
            line["exception"] = _without(self.formatException(record.exc_info), self._secrets)
        return orjson.dumps(line).decode()


def configure(
    form: Format, *, verbose: bool = False, secrets: Collection[str] = ()
) -> logging.Handler:
    """To standard error, replacing what was configured before.

    Args:
        secrets: replaced by *** wherever they would appear, since an error's text may quote a URL.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((_Json if form == "json" else _Text)(secrets))
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # At DEBUG it tells only of its selector.
    logging.getLogger("asyncio").setLevel(logging.INFO)
    return handler


def _without(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
