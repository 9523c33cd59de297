"""The agent's end of the link: takes its own workers' connections, and nobody else's.

An abstract socket has no owner, and everybody in the network namespace reads its name in
/proc/net/unix; with `hostNetwork` that is every user of the machine. So the peer must be of the
agent's own user and descend from the agent, which the kernel tells and a process can't choose. What
it hands over is a descriptor: a path could name what only the agent may open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from elastic_trainer.link.message import (
    LINE_BYTES,
    Hello,
    MessageError,
    Refused,
    decode_from_worker,
    encode,
)
from elastic_trainer.link.peer import Peer, refusal_here
from elastic_trainer.link.progress import PageError, ProgressPage

HELLO_SECONDS = 10.0
"""For a connection to say who it is."""
EXHAUSTED_SECONDS = 1.0
"""Without a descriptor to accept one with, as asyncio's own servers do."""
_BACKLOG = 128

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accepted:
    """A worker's connection, past its Hello."""

    hello: Hello
    pid: int
    progress: ProgressPage
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Listener:
    """Listens on an abstract unix socket of a name that can't be guessed.

    Args:
        serve: called with each accepted worker, in a task of its own; the connection is closed once
            it returns, and refused with the words of a MessageError that it raises.
    """

    def __init__(self, serve: Callable[[Accepted], Awaitable[None]]) -> None:
        self.address = f"@volcano-elastic-{uuid.uuid4().hex}"
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        """Kinds of refusals that were logged."""

    async def start(self) -> None:
        """Begins to listen, on the running event loop. Raises OSError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listening.bind("\0" + self.address[1:])
        listening.listen(_BACKLOG)
        self._listen(listening)

    def _listen(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # gone again
        except OSError as error:
            log.warning("no further worker for %.0f s: %s", EXHAUSTED_SECONDS, error)
            loop.remove_reader(listening)
            loop.call_later(EXHAUSTED_SECONDS, self._listen, listening)
            return
        connection.setblocking(False)
        peer = Peer.of(connection)
        if (reason := refusal_here(peer)) is not None:
            with contextlib.suppress(OSError):
                connection.send(encode(Refused(reason)))
            connection.close()
            self._log(f"user {peer.uid}", reason)
            return
        task = asyncio.ensure_future(self._attend(connection, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, connection: socket.socket, peer: Peer) -> None:
        reader, writer = None, None
        try:
            hello, progress = await asyncio.wait_for(_hello(connection), HELLO_SECONDS)
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LINE_BYTES)
            await self._serve(Accepted(hello, peer.pid, progress, reader, writer))
        except (MessageError, PageError, TimeoutError) as error:
            reason = str(error) or f"expected Hello within {HELLO_SECONDS:.0f} s, found none"
            self._log(type(error).__name__, f"process {peer.pid}: {reason}")
            with contextlib.suppress(OSError):
                if writer is not None:
                    writer.write(encode(Refused(reason)))
                else:
                    connection.send(encode(Refused(reason)))
        except OSError as error:
            log.debug("the connection of process %d ended: %s", peer.pid, error)
        finally:
            if writer is not None:
                writer.close()
            else:
                connection.close()

    def _log(self, kind: str, reason: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning("refused a connection to the workers' socket: %s", reason)


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; empty at the end. Raises MessageError for one that is too long."""
    try:
        return await reader.readline()
    except ValueError as error:
        raise MessageError(f"expected {LINE_BYTES} bytes at most a line: {error}") from None


async def _hello(connection: socket.socket) -> tuple[Hello, ProgressPage]:
    """Return how a connection begins. Raises MessageError, PageError, OSError."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    # The kernel ends such a read behind the message that brought descriptors.
    line, descriptors, _, _ = socket.recv_fds(connection, LINE_BYTES, 1)
    try:
        hello = decode_from_worker(line)
        if not isinstance(hello, Hello):
            raise MessageError(f"expected Hello first, found {type(hello).__name__}")
        if not descriptors:
            raise MessageError("Hello: expected the progress page's descriptor with it, found none")
        return hello, ProgressPage.read_only(descriptors[0])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
