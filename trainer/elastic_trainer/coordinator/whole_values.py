"""The rounds and electorates that agents name by their digests, asked for once of one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from elastic_trainer.protocol.abridgement import digest_of
from elastic_trainer.protocol.encoding import decode_value, encode_value
from elastic_trainer.protocol.message import AgentMessage, AskWhole, Electorate, Hello, Round, Whole

ASK_SECONDS = 0.5
"""For the agent that was asked to answer; then the next one that waits is asked too."""
MOST_EARLY = 1000
"""Messages that an agent may send before it answers."""
_MOST_KNOWN = 8

_Name = tuple[str, bytes]
"""Hello's field, and the digest of its value."""


class MismatchError(Exception):
    """An agent did not tell what it named."""


class WholeValues:
    """All on one event loop.

    Args:
        own: returns those that the coordinator has itself, at each call.
    """

    def __init__(self, own: Callable[[], Iterable[Round | Electorate]]) -> None:
        self._own = own
        self._own_digests: dict[int, tuple[Round | Electorate, bytes]] = {}
        """By id, of those that `own` returned last."""
        self._known: dict[_Name, Round | Electorate] = {}
        self._asked: dict[_Name, float] = {}
        """When an agent was asked, in the event loop's seconds."""
        self._arrived = asyncio.Event()

    async def complete(
        self,
        hello: Hello,
        write: Callable[[AskWhole], Awaitable[None]],
        read: Callable[[], Awaitable[Any]],
    ) -> tuple[Hello, list[AgentMessage]]:
        """Return a Hello with the values whose digests it has, and what its agent said meanwhile.

        Args:
            write: sends a question to its agent.
            read: returns its agent's next message.

        Raises:
            MismatchError: the agent did not tell what it named.
        """
        early: list[AgentMessage] = []
        while missing := self._missing(hello):
            now = asyncio.get_running_loop().time()
            self._asked = {at: when for at, when in self._asked.items() if now < when + ASK_SECONDS}
            asked = [self._asked[name] for name in missing & self._asked.keys()]
            if asked:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(max(asked) + ASK_SECONDS):
                        await self._arrived.wait()
                continue
            self._asked.update(dict.fromkeys(missing, now))
            await write(AskWhole())
            while not isinstance(message := await read(), Whole):
                if message is not None:
                    early.append(message)
                if len(early) > MOST_EARLY:
                    raise MismatchError(
                        f"expected a Whole, which was asked for, found {len(early)} other messages"
                    )
            self._take(message)
            if self._missing(hello):
                raise MismatchError(
                    "expected a Whole with what Hello has digests of, found another: run the same "
                    "version of volcano-elastic in all pods of a job"
                )
        values: dict[str, Any] = {name: self._known[name, told] for name, told in _named(hello)}
        return replace(hello, **values, round_digest=b"", electorate_digest=b""), early

    def _missing(self, hello: Hello) -> set[_Name]:
        named = set(_named(hello))
        if named - self._known.keys():
            self._remember_own()
        return named - self._known.keys()

    def _remember_own(self) -> None:
        before, self._own_digests = self._own_digests, {}
        for value in self._own():
            known = before.get(id(value)) or (value, digest_of(encode_value(value)))
            self._own_digests[id(value)] = known
            self._remember(known[1], value)

    def _take(self, told: Whole) -> None:
        for kind, encoded in (
            ("Round", told.encoded_round),
            ("Electorate", told.encoded_electorate),
        ):
            if encoded:
                self._remember(digest_of(encoded), decode_value(kind, encoded))
        self._arrived.set()
        self._arrived = asyncio.Event()

    def _remember(self, digest: bytes, value: Round | Electorate) -> None:
        name = type(value).__name__.lower(), digest
        self._known.pop(name, None)
        self._known[name] = value
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _named(hello: Hello) -> list[_Name]:
    named = (("round", hello.round_digest), ("electorate", hello.electorate_digest))
    return [(name, digest) for name, digest in named if digest]
