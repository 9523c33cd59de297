"""The log of an HTTP server that others reach."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


def http_log(server: str) -> logging.Logger:
    """Return the log for aiohttp's server of this module, which leaves out requests that were no
    HTTP: whoever reaches the port could fill it with their tracebacks."""
    log = logging.getLogger(f"{server}.http")
    log.addFilter(_is_ours)
    return log


def _is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
