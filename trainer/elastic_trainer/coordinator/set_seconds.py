"""Reads a time that the job's environment sets, where 0 turns something off; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping


def set_seconds(environment: Mapping[str, str], name: str, default: float, zero: str) -> float:
    """Return the seconds of this variable; the default where it isn't set.

    Args:
        zero: says what 0 stands for.

    Raises:
        ValueError: it is no number, negative or infinite.
    """
    text = environment.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(
            f"{name}: expected seconds, or 0 for {zero}, found {text!r}; fix or unset it"
        )
    return seconds
