"""Parses what jobs' own programs tell, which their users' code may have written; pure."""

from __future__ import annotations

import json
from typing import Any


def parse(body: bytes) -> Any:
    """Return the JSON in a text; None where it is none.

    Halves of surrogate pairs become `?`: no API server takes them.
    """
    try:
        text = body.decode()
        found = json.loads(text)
        if "\\ud" in text.lower():
            whole = json.dumps(found, ensure_ascii=False).encode(errors="replace")
            found = json.loads(whole)
    except (ValueError, RecursionError):  # the latter of thousands of brackets
        return None
    return found
