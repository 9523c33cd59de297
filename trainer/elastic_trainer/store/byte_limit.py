"""Reads numbers of bytes from the environment."""

from __future__ import annotations

from collections.abc import Mapping


def read_byte_limit(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return the number of bytes that a variable says, `default` where it is unset or empty.

    Raises:
        ValueError: it says something else than a number.
    """
    text = environment.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"{name}: expected a number of bytes, found {text!r}; fix or unset it"
        ) from None
