"""A commit's file, read from storage by several nodes, each a part of it, which they then exchange.

Each part goes once around a ring of one rank of each node. So storage gives the file once, whatever
the number of nodes, and each of them at once an equal part of it; over each node's link it comes
less than once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest

import torch
import xxhash

from elastic_trainer.checkpoint.messages import Messages
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.commit import Commit
from elastic_trainer.store.content import Content, memory_of
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.storage import Storage

PIECE = 1 << 20
"""Bytes of one message."""

log = logging.getLogger(__name__)


def first_of_each(nodes: Sequence[str]) -> list[int]:
    """Return the lowest rank of each node.

    Args:
        nodes: by rank.
    """
    return sorted({node: rank for rank, node in reversed(list(enumerate(nodes)))}.values())


def parts(size: int, readers: int) -> list[tuple[int, int]]:
    """Return where each reader's part of so many bytes begins and ends."""
    return list(pairwise(size * place // readers for place in range(readers + 1)))


def read_split(
    storage: Storage,
    commit: Commit,
    name: str,
    readers: Sequence[int],
    group: ProcessGroup,
    moved: Callable[[int], None],
) -> Content | None:
    """Return a file of a commit, verified, on the ranks that read it, and None on others; None on
    all where one of them couldn't read its part, or the whole isn't what was committed: then one
    alone has to find out why. On all ranks.

    Args:
        readers: ranks.
        moved: called with the bytes of each message between ranks.

    Raises:
        RuntimeError: a rank was lost, or the round is over.
    """
    place = readers.index(group.rank) if group.rank in readers else None
    record = commit.files[name]
    spans = parts(record.size, len(readers))
    memory, content = memory_of(record.size if place is not None else 0), None
    problem = ""
    if place is not None:
        begin, end = spans[place]
        try:
            storage.read_span(commit, name, begin, memory[begin:end])
        except StorageError as error:
            problem = str(error)
    if _failed(group, problem):
        return None
    if place is not None:
        exchange = _Ring(readers, place, spans, moved)
        exchange.run(torch.frombuffer(memory, dtype=torch.uint8), group.over or _never)
        content = Content(memory, xxhash.xxh3_128_hexdigest(memory))
        if content.xxh3 != record.xxh3:
            problem = f"expected digest {record.xxh3}, found {content.xxh3}"
    return None if _failed(group, problem) else content


def _failed(group: ProcessGroup, problem: str) -> bool:
    """Return whether any rank has a problem; on all ranks."""
    found = [(rank, one) for rank, one in enumerate(group.gather(problem)) if one]
    if found:
        log.warning("rank 0 alone reads the commit, as rank %d can't read its part: %s", *found[0])
    return bool(found)


class _Ring:
    """One reader's way of exchanging parts: each hands on to the next what came last.

    Args:
        readers: ranks; this is the one at `place`.
        spans: where each one's part begins and ends.
    """

    def __init__(
        self,
        readers: Sequence[int],
        place: int,
        spans: Sequence[tuple[int, int]],
        moved: Callable[[int], None],
    ) -> None:
        self._readers, self._place, self._spans = readers, place, spans
        self._messages = Messages(moved)

    def run(self, content: torch.Tensor, over: Callable[[], bool]) -> None:
        """Fill the file's content (uint8), of which this one's part is there."""
        self._messages.run(lambda: self._exchange(content), over)

    def _exchange(self, content: torch.Tensor) -> None:
        count = len(self._readers)
        following = self._readers[(self._place + 1) % count]
        before = self._readers[self._place - 1]
        for turn in range(count - 1):
            given = self._pieces(content, self._place - turn)
            taken = self._pieces(content, self._place - turn - 1)
            for target, piece in zip_longest(taken, given):
                # Expected before it is sent: else all could wait for one another.
                if target is not None:
                    self._messages.expect(target, before)
                if piece is not None:
                    self._messages.send(piece, following)
            self._messages.flush()

    def _pieces(self, content: torch.Tensor, part: int) -> list[torch.Tensor]:
        begin, end = self._spans[part % len(self._spans)]
        return [content[at : min(at + PIECE, end)] for at in range(begin, end, PIECE)]


def _never() -> bool:
    return False
