"""Tokens that open the page: one made at the start, or those of a file that is read again when it
changes."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from volcano_elastic.api import moment

_log = logging.getLogger(__name__)
_LEAST = 16
"""Characters of a token; a shorter one could be guessed."""


class BadTokens(ValueError):
    """A file of tokens makes no sense; says which line."""


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    until: datetime | None = None
    """When it ends; None: never."""


def parse(content: str) -> list[Token]:
    """Return the tokens of a file: one a line, and behind it, if it ends, when: `s3cr… 2026-12-31`.

    Raises:
        BadTokens: says the line.
    """
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or len(words[0]) < _LEAST:
            raise BadTokens(
                f"line {number}: expected a token of at least {_LEAST} characters, and perhaps "
                f"when it ends, found {len(words)} words, the first of {len(words[0])} characters"
            )
        try:
            until = moment.parse(words[1]) if len(words) == 2 else None
        except ValueError:
            raise BadTokens(
                f"line {number}: expected a time such as 2026-12-31T12:00:00Z, found {words[1]!r}"
            ) from None
        found.append(Token(words[0], until))
    return found


def accepted(given: str, tokens: Sequence[Token], now: datetime) -> bool:
    """Return whether one of the tokens is the given one and has not ended. How long it takes says
    nothing of how much of it was right."""
    right = [hmac.compare_digest(given.encode(), token.text.encode()) for token in tokens]
    return any(
        same and (token.until is None or now < token.until)
        for same, token in zip(right, tokens, strict=True)
    )


class TokenList:
    """The tokens in force.

    Args:
        file: has them; without one a token is made, which `made` says.
        lifetime: of the one that is made; None: as long as this process.

    Raises:
        BadTokens, OSError: the file can't be used. Later on it only keeps everybody out.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        file: Path | None = None,
        lifetime: timedelta | None = None,
    ) -> None:
        self._clock, self._file = clock, file
        self.made: str | None = None
        self._seen: object = None
        self._tokens: Sequence[Token] = ()
        if file is None:
            self.made = secrets.token_urlsafe(32)
            until = None if lifetime is None else clock() + lifetime
            self._tokens = [Token(self.made, until)]
        else:
            self._seen = _mark(file)
            self._tokens = parse(file.read_text())

    def accepts(self, given: str) -> bool:
        """Return whether the token opens the page now."""
        self._read_again()
        return accepted(given, self._tokens, self._clock())

    def _read_again(self) -> None:
        if self._file is None:
            return
        try:
            mark = _mark(self._file)
            if mark != self._seen:
                self._tokens, self._seen = parse(self._file.read_text()), mark
        except (OSError, ValueError) as error:
            if self._tokens:
                _log.error("%s: %s; nobody is let in until it is mended", self._file, error)
            self._tokens, self._seen = (), None


def _mark(file: Path) -> object:
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
