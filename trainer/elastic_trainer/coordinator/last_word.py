"""Leaves what the coordinator knows at the end of training in its container's termination message.

Nobody can be asked any more then, and the operator asks only each ten seconds: else the rounds of a
short job, and any job's last ones, would be known to nobody.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_trainer.failures.termination_log import TERMINATION_BYTES, TERMINATION_LOG

_KEPT = ("job", "round", "progress", "metrics", "goodput")
_KEPT_OF_ROUNDS = (
    "round",
    "world",
    "time",
    "reason",
    "first_step",
    "last_step",
    "lost",
    "pause_seconds",
)
_MOST_ROUNDS = 10


def last_word(told: Mapping[str, Any]) -> str:
    """Return a part of `/status`, as JSON, that a termination message has room for: the older
    rounds are left out, and the script's figures where even that is not enough."""
    kept = {name: told[name] for name in _KEPT}
    rounds = [{name: one[name] for name in _KEPT_OF_ROUNDS} for one in told["rounds"]]
    rounds = rounds[-_MOST_ROUNDS:]
    while True:
        text = json.dumps({**kept, "rounds": rounds}, separators=(",", ":"))
        if len(text.encode()) <= TERMINATION_BYTES or not (rounds or kept["metrics"]):
            return text
        if rounds:
            del rounds[0]
        else:
            kept["metrics"] = {}


def leave_last_word(told: Mapping[str, Any], path: Path = TERMINATION_LOG) -> None:
    """Writes it where Kubernetes looks for it, if there is such a file and nobody has written to
    it."""
    with contextlib.suppress(OSError):
        if path.is_file() and not path.stat().st_size:
            path.write_text(last_word(told))
