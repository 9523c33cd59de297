"""ShardClient: leases of a data set for workers that don't train in step. Needs no torch."""

from __future__ import annotations

import os
import queue
import time
import uuid
from types import TracebackType
from typing import Any

import grpc

from elastic_trainer.data.ledger import Lease, Ledger
from elastic_trainer.proto import leases_pb2
from elastic_trainer.proto.leases_pb2_grpc import LeasesStub
from elastic_trainer.protocol.auth import HEADER, TOKEN_VARIABLE
from elastic_trainer.protocol.forks import keep_garbage_from_forks
from elastic_trainer.protocol.keepalive import heartbeat_timeout, options
from elastic_trainer.retry import coordinator_policy
from elastic_trainer.shards.ranges import Ranges
from elastic_trainer.shards.shards import Shards
from elastic_trainer.succession.peers import PEERS_VARIABLE, read_peers
from elastic_trainer.succession.search import find_coordinator

JOB_VARIABLE = "VOLCANO_ELASTIC_JOB"
WAIT_SECONDS = 1.0
"""How long one request waits for leases; others of the same client wait behind it."""


class LeaseError(Exception):
    """The coordinator refused, or can't be reached."""


def _passes(error: BaseException) -> bool:
    code = error.code() if isinstance(error, grpc.Call) else None
    return isinstance(error, grpc.RpcError) and code in _PASSING


class ShardClient:
    """Fetches leases from the job's coordinator.

    A worker:

        with ShardClient("job-worker-0:23456", samples=10_000, epochs=3, size=64) as client:
            while leases := client.fetch(8):
                for lease in leases:
                    gradient of dataset[client.indices(lease)], sent with the lease to the owner

    The model's owner, a worker too or not, has a Ledger:

        client = ShardClient("job-worker-0:23456", ledger=ledger)
        ...
        client.commit(step)        # once model and ledger of `step` are saved together

    Leases of a worker that ends, is killed, stopped or cut off go back; of one that merely falls
    silent, after 8 s. If it comes back, it doesn't know that others have its leases now: two may
    send the same one's gradient, of which the owner applies the one that `Ledger.add` takes. A
    coordinator that falls silent for VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT (1 s), was restarted, or was
    taken over by another agent, is found again, by the endpoint or by the agents that
    VOLCANO_ELASTIC_PEERS names, and told what it had forgotten. For one thread.

    Args:
        endpoint: the coordinator's host:port, as at the job's beginning.
        ledger: of the model that this process saves.
        samples, epochs, size, seed: as the owner's ledger's; not with `ledger`.
        data: the data set's name, where the job has several.
        token: the job's; from VOLCANO_ELASTIC_TOKEN if None.
        patience: seconds to look for a coordinator that doesn't answer.

    Raises:
        LeaseError: by any method: it isn't found, or refuses this client, its data set or its
            model.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        ledger: Ledger | None = None,
        samples: int = 0,
        epochs: int = 1,
        size: int = 1,
        seed: int = 0,
        data: str = "train",
        token: str | None = None,
        patience: float = 60.0,
    ) -> None:
        keep_garbage_from_forks()
        self.client = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.ledger = ledger
        self.shards = ledger.shards if ledger else Shards(samples, epochs, size, seed)
        self._endpoint = endpoint
        self._moved_to: str | None = None
        """Where the coordinator is, if not there any more."""
        self._data = data
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self._patience = patience
        self._heartbeat_timeout = heartbeat_timeout(os.environ)
        self._life = ""
        """Life of the model that the leases held belong to, or that the coordinator was told."""
        self._held = Ranges()
        self._step = -1
        self._stream: _Stream | None = None

    def fetch(self, count: int = 1, *, timeout: float | None = None) -> list[Lease]:
        """Up to `count` leases, lowest first; waits for some, at most `timeout` seconds.

        [] to a worker: every sample is in a committed model, or the time is over. To the owner
        also: nobody else holds a lease, so it has all, and may commit.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if self.ledger is not None and self.ledger.complete:
                return []
            wait = WAIT_SECONDS if end is None else min(WAIT_SECONDS, end - time.monotonic())
            fetch = leases_pb2.Fetch(count=count, wait_seconds=max(0.0, wait))
            reply = self._ask(leases_pb2.LeaseRequest(fetch=fetch))
            if reply.life and reply.life != self._life:
                self._life, self._held = reply.life, Ranges()
            granted = Ranges(tuple(reply.leases.bounds))
            self._held = (self._held | granted) - Ranges.of(0, reply.below)
            if reply.life or (end is not None and time.monotonic() >= end):
                return [Lease(start, stop, reply.life) for start, stop in self.shards.cut(granted)]

    def indices(self, lease: Lease) -> list[int]:
        """The samples of a lease."""
        found: list[int] = self.shards.indices(lease.start, lease.stop).tolist()
        return found

    def commit(self, step: int) -> None:
        """By the owner: model and ledger are saved together, as they were after step `step`, and
        the ledger hasn't changed since."""
        ledger = self._owned()
        ledger.committed, self._step = ledger.consumed, step
        self._tell(committed=True)

    def tell(self) -> None:
        """By the owner, between commits: what is in the live model needn't be done again if its
        worker is lost."""
        self._owned()
        self._tell(committed=False)

    def close(self) -> None:
        """Leases that are not in the model go back."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> ShardClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _owned(self) -> Ledger:
        if self.ledger is None:
            raise LeaseError("this client has no ledger: only the model's owner knows what it has")
        return self.ledger

    def _tell(self, *, committed: bool) -> None:
        ledger = self._owned()
        tell = leases_pb2.Tell(
            life=ledger.life,
            consumed=_bounds(ledger.consumed),
            committed=committed,
            step=self._step,
        )
        self._ask(leases_pb2.LeaseRequest(tell=tell))
        self._held = self._held - ledger.consumed

    def _ask(self, request: Any) -> Any:
        """Opens where that is needed, however often the coordinator is lost meanwhile."""
        policy = coordinator_policy(self._patience)
        try:
            return policy.call(
                lambda: self._ask_once(request), transient=_passes, what=self._endpoint
            )
        except grpc.RpcError as error:
            raise LeaseError(
                f"the coordinator at {self._endpoint} didn't answer: "
                f"{error.details() if isinstance(error, grpc.Call) else error}"
            ) from error

    def _ask_once(self, request: Any) -> Any:
        try:
            if self._stream is None:
                where = self._moved_to or self._endpoint
                self._stream = _Stream(where, self._token, self._heartbeat_timeout)
                self._refused(self._stream.ask(self._hello(again=True)))
            elif self.ledger is not None and self.ledger.life != self._life:
                self._refused(self._stream.ask(self._hello(again=False)))
            return self._refused(self._stream.ask(request))
        except grpc.RpcError:
            self.close()
            self._moved_to = self._look_for_coordinator()
            raise

    def _look_for_coordinator(self) -> str | None:
        """Return where agents say that the coordinator is; None if none says so."""
        environment = os.environ
        _, _, port = self._endpoint.rpartition(":")
        if not port.isdecimal():
            return None
        known = f"{self._endpoint},{environment.get(PEERS_VARIABLE, '')}"
        places = read_peers(known, int(port))
        return find_coordinator(places, environment.get(JOB_VARIABLE, ""), self._token)

    def _refused(self, reply: Any) -> Any:
        if reply.refusal:
            self.close()
            raise LeaseError(reply.refusal)
        return reply

    def _hello(self, *, again: bool) -> Any:
        shards = leases_pb2.Shards(
            samples=self.shards.samples,
            epochs=self.shards.epochs,
            size=self.shards.size,
            seed=self.shards.seed,
        )
        common: dict[str, Any] = {"data": self._data, "client": self.client, "shards": shards}
        ledger = self.ledger
        if ledger is None:
            opened = leases_pb2.Open(life=self._life, held=_bounds(self._held), **common)
            return leases_pb2.LeaseRequest(open=opened)
        again = again and self._life == ledger.life
        if self._life != ledger.life:
            self._life, self._held = ledger.life, Ranges()
        own = leases_pb2.Own(
            life=ledger.life,
            held=_bounds(self._held),
            consumed=_bounds(ledger.consumed),
            committed=_bounds(ledger.committed),
            step=self._step,
            again=again,
            **common,
        )
        return leases_pb2.LeaseRequest(own=own)


_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, None)


class _Stream:
    """One connection; requests and replies in turns."""

    def __init__(self, endpoint: str, token: str, heartbeat_timeout: float) -> None:
        self._channel = grpc.insecure_channel(
            endpoint,
            options=[
                *options(heartbeat_timeout),
                # A machine that is gone answers no attempt to connect, and its successor may have
                # another address.
                ("grpc.min_reconnect_backoff_ms", int(heartbeat_timeout * 1000)),
                ("grpc.use_local_subchannel_pool", 1),  # else a retry waits for the last back-off
            ],
        )
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replies = LeasesStub(self._channel).Attend(  # type: ignore[no-untyped-call]
            iter(self._requests.get, None),
            metadata=((HEADER, token),) if token else (),
        )

    def ask(self, request: Any) -> Any:
        """Raises grpc.RpcError: the connection is over."""
        self._requests.put(request)
        try:
            return next(self._replies)
        except StopIteration:
            raise grpc.RpcError("the coordinator ended the stream") from None

    def close(self) -> None:
        self._requests.put(None)
        self._replies.cancel()
        self._channel.close()


def _bounds(ranges: Ranges) -> Any:
    return leases_pb2.Bounds(bounds=ranges.bounds)
