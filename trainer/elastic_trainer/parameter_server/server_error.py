"""Tells workers that their servers can't go on."""

from __future__ import annotations


class ServerError(Exception):
    """The parameter servers refused, have lost rows, or can't be reached."""
