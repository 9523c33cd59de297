"""KnownServers: who holds what as far as a worker knows, and how it asks them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS, Ids
from elastic_trainer.embeddings.owner_map import NOBODY
from elastic_trainer.parameter_server.holder import BEHIND
from elastic_trainer.parameter_server.pull_reply import SERVICE, read_reply
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.parameter_server.wire import OPTIONS, unpack
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub
from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.protocol.forks import keep_garbage_from_forks
from elastic_trainer.retry import RetryPolicy

FIRST_ANSWER_SECONDS = 2.0
"""For one answer; then owners are found anew, in case that server hangs, and it is asked for again,
with twice the time, in case it was slow."""
ANSWER_SECONDS = 30.0
"""The most for one answer."""
FILE_SECONDS = 600.0
"""For all rows of a server to be written or read."""
_REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)


class NotYetError(Exception):
    """Some of a request is still to be done."""


class KnownServers:
    """The owners of all buckets, as the first server told them last, and channels to them.

    Args:
        first: address of the first server.
        token: the job's.
        patience: seconds until something has to be done.
        describe: makes the request that tells a server of this worker and its tables.
        opened: called with the reply.
    """

    def __init__(
        self,
        first: str,
        token: str,
        patience: float,
        describe: Callable[[], Any],
        opened: Callable[[Any], None],
    ) -> None:
        keep_garbage_from_forks()
        self.first, self.token = first, token
        self.policy = RetryPolicy("parameter servers", patience, first_wait=0.005, longest_wait=0.5)
        self.owners = messages.Owners()
        self.owner_of: NDArray[np.int64] = np.full(BUCKETS, NOBODY, dtype=np.int64)
        """By bucket, the place of its holder's address."""
        self.goes_on_from: messages.History | None = None
        """Which rows; None: any, a lost server's from a copy, too."""
        self._map_is_old = False
        """One that was asked says that others hold some of it."""
        self.why = "nobody was asked yet"
        """Why something couldn't be done at once."""
        self.metadata = ((HEADER, token),) if token else ()
        self._describe, self._opened = describe, opened
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[str, Any] = {}
        self._seconds = FIRST_ANSWER_SECONDS
        """For the next answer."""

    def forget(self) -> None:
        """Know nothing of who holds what; they may have other tables now."""
        self.owners, self.goes_on_from = messages.Owners(), None

    @property
    def history(self) -> messages.History:
        """Return which rows are asked for."""
        return self.goes_on_from or messages.History(epoch=self.owners.epoch)

    def holders(self) -> list[str]:
        """Return the addresses of servers that hold something."""
        held = np.unique(self.owner_of[self.owner_of != NOBODY])
        return [self.owners.addresses[owner] for owner in held]

    def close(self, worker: str) -> None:
        """Be waited for no longer by other workers."""
        for address in self.owners.addresses:
            with contextlib.suppress(grpc.RpcError):
                self.stub(address).Close(
                    messages.CloseRequest(worker=worker), timeout=1.0, metadata=self.metadata
                )
        for channel in self._channels.values():
            channel.close()
        self._channels, self._stubs = {}, {}

    def split(self, where: Ids, rows: Ids) -> list[tuple[str, Ids]]:
        """Return which of these rows, whose buckets are `where`, each server holds."""
        owner = self.owner_of[where[rows]]
        if (owner == NOBODY).any():
            self.why = "nobody holds some of the buckets"
        return [
            (self.owners.addresses[number], rows[owner == number])
            for number in np.flatnonzero(np.bincount(owner[owner != NOBODY]))
        ]

    def ask(self, method: str, requests: Sequence[tuple[str, Any]]) -> list[Any]:
        """Ask all at once; return the reply of each, None where nothing was done. A server that
        doesn't know this worker is told of it, and asked again."""
        seconds = FILE_SECONDS if method in ("Save", "Load") else self._seconds
        calls = [self._begin(method, *one, seconds) for one in requests]
        found: list[Any] = []
        for (address, request), call in zip(requests, calls, strict=True):
            reply = self._answer(address, call)
            if reply is not None and method not in ("Save", "Open"):
                if reply.verdict == messages.NOT_OPEN:
                    opened = self.ask_one("Open", address, self._describe(), seconds)
                    if opened is not None:
                        self._opened(opened)
                        reply = self.ask_one(method, address, request, seconds)
                if reply is not None and reply.verdict != messages.DONE:
                    self._map_is_old |= reply.verdict == messages.NOT_OWNER
                    self.why = f"{address} says {messages.Verdict.Name(reply.verdict)}"
                    reply = None
            found.append(reply)
        return found

    def ask_one(self, method: str, address: str, request: Any, seconds: float) -> Any:
        """Return the reply; None, with `why`, where there is none. Raises ServerError."""
        return self._answer(address, self._begin(method, address, request, seconds))

    def _begin(self, method: str, address: str, request: Any, seconds: float) -> Any:
        call = getattr(self.stub(address), method)
        return call.future(request, timeout=seconds, metadata=self.metadata)

    def _answer(self, address: str, call: Any) -> Any:
        try:
            return call.result()
        except grpc.RpcError as error:
            self._refused(address, error)
            return None

    def find_owners(self) -> None:
        """Hear who holds what. Raises NotYetError, and ServerError where rows are lost."""
        found = self.ask_one("FindOwners", self.first, messages.FindOwnersRequest(), self._seconds)
        if found is None:
            raise NotYetError(self.why)
        history = self.history
        if history.epoch and found.epoch and found.epoch != history.epoch:
            raise ServerError(
                f"the parameter servers of {self.first} began anew, without the rows that this "
                "worker has trained: start the workers anew, too"
            )
        if found.epoch and history.HasField("adopted") and found.adopted != history.adopted:
            raise ServerError(f"{self.first}: {BEHIND}")
        if found.lost:
            raise ServerError(f"{self.first}: {found.lost}")
        if not found.epoch:
            raise NotYetError("the servers have only just begun")
        if found.version >= self.owners.version:
            self.owners = found
            self.owner_of = unpack(found.owners)

    def until_done(self, attempt: Callable[[], None]) -> None:
        """Try with what is known of the servers, and with what they say now, until it is done."""
        tried = False
        self._seconds = FIRST_ANSWER_SECONDS

        def once() -> None:
            nonlocal tried
            if tried or not self.owners.epoch:
                self.find_owners()
            tried, self._map_is_old = True, False
            try:
                attempt()
            except NotYetError:
                if not self._map_is_old:
                    raise
                self.find_owners()  # as always when buckets have moved
                attempt()

        try:
            self.policy.call(once, transient=lambda error: isinstance(error, NotYetError))
        except NotYetError as error:
            raise ServerError(
                f"the parameter servers of {self.first} haven't done what was asked in "
                f"{self.policy.seconds:g} s: {error}"
            ) from error

    def _refused(self, address: str, error: grpc.RpcError) -> None:
        code = error.code() if isinstance(error, grpc.Call) else None
        details = error.details() if isinstance(error, grpc.Call) else ""
        if code in _REFUSED:
            raise ServerError(f"parameter server {address}: {details}") from error
        self.why = f"{address}: {details or code}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._seconds = min(2 * self._seconds, ANSWER_SECONDS)

    def stub(self, address: str) -> Any:
        """Return a stub of this server's."""
        if address not in self._stubs:
            channel = grpc.insecure_channel(address, options=OPTIONS)
            self._channels[address] = channel
            stub: Any = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
            stub.Pull = channel.unary_unary(
                f"/{SERVICE}/Pull", messages.PullRequest.SerializeToString, read_reply
            )
            self._stubs[address] = stub
        return self._stubs[address]
