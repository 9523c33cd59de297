"""A list in pages: `limit` and `continue`."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self

import orjson

from volcano_elastic.local.apiserver.status import bad_request
from volcano_elastic.local.apiserver.store import Stored


@dataclass(frozen=True, slots=True)
class Place:
    """Where a list goes on: after this object, as things were at this revision."""

    revision: int
    namespace: str
    name: str

    @classmethod
    def of(cls, token: str) -> Self:
        """Raises StatusError, 400, for a token that this server didn't make."""
        try:
            revision, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
            return cls(int(revision), str(namespace), str(name))
        except (ValueError, TypeError, OverflowError) as error:
            raise bad_request(f"continue key is not valid: {error}") from error

    def token(self) -> str:
        place = orjson.dumps([self.revision, self.namespace, self.name])
        return base64.urlsafe_b64encode(place).decode()


def cut(found: list[Stored], limit: int, after: Place | None) -> tuple[list[Stored], int]:
    """The page of at most `limit` objects (0: all), and how many come after it."""
    if after:
        found = [one for one in found if one.place > (after.namespace, after.name)]
    page = found[: limit or None]
    return page, len(found) - len(page)
