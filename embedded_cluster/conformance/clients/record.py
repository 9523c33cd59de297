"""Records a client's view of a server, step by step, as JSON on standard output.

The programs beside this one import it, and are run by interpreters that have their clients.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client import ApiClient

# For what comes within seconds on a quiet machine.
_PATIENCE_SECONDS = 240.0
_POLL_SECONDS = 0.1


class Record:
    """Call it with a step's name and what is to be asked; `written` prints all answers."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._plain = ApiClient().sanitize_for_serialization

    def __call__(self, step: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what `ask` returns, or None where the client raised.

        Refusals by the server are recorded as what the client's exception says of them.
        """
        if step in self._seen:
            raise ValueError(f"expected each step once, found {step!r} again")
        try:
            found = ask(*arguments, **options)
        except Exception as error:
            self._seen[step] = {"raised": type(error).__name__, **_told(error)}
            return None
        shown = found.to_dict() if hasattr(found, "attributes") else found
        self._seen[step] = self._plain(shown)
        return found

    def until(self, step: str, holds: Callable[[], Any]) -> Any:
        """The first true answer of `holds`, recorded; else that it did not come in time."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (found := holds()):
            if time.monotonic() > deadline:
                found = f"not within {_PATIENCE_SECONDS:.0f} s"
                break
            time.sleep(_POLL_SECONDS)
        return self(step, lambda: found)

    def written(self) -> None:
        json.dump(self._seen, sys.stdout)


def _told(error: Exception) -> dict[str, Any]:
    status = getattr(error, "status", None)
    if status is None:
        # The SDK's own exceptions go on with all headers of the answer.
        return {"words": str(error).partition("\n")[0]}
    body: Any = getattr(error, "body", None) or ""
    try:
        body = json.loads(body)
    except (TypeError, ValueError):
        body = str(body)
    # An event of a watch that says why it ends has no body; its reason starts with one word.
    return {
        "status": status,
        "reason": str(getattr(error, "reason", "")).partition(":")[0],
        "body": body,
    }
