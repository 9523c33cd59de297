"""The lines that a worker prints."""

from __future__ import annotations

import contextlib
import sys


def complain(text: str) -> None:
    """Say something to who reads the worker's log."""
    print(f"volcano-elastic: {text}", file=sys.stderr, flush=True)


def flush() -> None:
    """Have all that was printed written, whatever becomes of it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
