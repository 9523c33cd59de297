"""ServedTables: a worker's side of tables that parameter servers hold."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, cast

import grpc
import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.export import BASE, INCREMENT, begin, publish
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.owner_map import NOBODY
from elastic_trainer.embeddings.table import TableSettings
from elastic_trainer.parameter_server.dense import GIVER, DenseParameters
from elastic_trainer.parameter_server.gazer import Times, scalars
from elastic_trainer.parameter_server.holder import READS_ONLY
from elastic_trainer.parameter_server.served_state import ServedState
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.parameter_server.wire import (
    OPTIONS,
    SERVERS_VARIABLE,
    pack,
    pack_floats,
    read_floats,
    unpack,
    write_settings,
)
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub
from elastic_trainer.protocol.auth import HEADER, TOKEN_VARIABLE
from elastic_trainer.retry import RetryPolicy

if TYPE_CHECKING:
    from elastic_trainer.embeddings.exchange import Update
    from elastic_trainer.embeddings.row_optimizer import RowOptimizer
    from elastic_trainer.integrations.tensorboard import ScalarWriter

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


class _NotYetError(Exception):
    """Some of a request is still to be done."""


class ServedTables:
    """Has parameter servers hold the tables of ElasticEmbeddings, for workers at their own pace.

        tables = ServedTables([model.items, model.users], "127.0.0.1:29600", staleness=4)
        for batch in batches:
            loss(model(batch)).backward()
            optimizer.step()
            tables.step()

    Each worker does so by itself: a forward pass asks for the rows of its batch, each once, and
    `step` sends their gradients, which the servers apply as they come, each once however often it
    had to be sent. Nobody waits for who asks under torch.no_grad() alone. Servers that join, leave
    or hand buckets over are followed; a server that doesn't answer is asked again. For one thread.

    With `dense`, the model's other parameters are on the servers, too: each worker's gradients
    change them there, and a forward pass begins with the newest. Then no worker has an optimizer of
    its own, and all begin with the first one's values.

    Args:
        modules: ElasticEmbeddings; all workers' tables of one name have the same settings.
        servers: host:port of the first server; None: the job's, from
            VOLCANO_ELASTIC_PARAMETER_SERVERS.
        staleness: steps that this worker may be ahead of the slowest, which it then waits for;
            0: all keep pace; None: any number.
        patience: seconds that a forward pass or a step may take before it fails.
        token: the job's; from VOLCANO_ELASTIC_TOKEN if None.
        dense: the model, with or without the ElasticEmbeddings in it.
        dense_optimizer: of its parameters, one of row_optimizer.py.

    Raises:
        ServerError: by a forward pass or `step`: servers refuse, have lost rows, or don't answer.
        ValueError: one of the arguments can't be.
    """

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        servers: str | None = None,
        *,
        staleness: int | None = None,
        patience: float = 300.0,
        token: str | None = None,
        dense: torch.nn.Module | None = None,
        dense_optimizer: RowOptimizer | None = None,
    ) -> None:
        if staleness is not None and staleness < 0:
            raise ValueError(f"staleness is {staleness}: expected steps, 0 or more, or None")
        if (dense is None) != (dense_optimizer is None):
            raise ValueError("dense and dense_optimizer: expected both or none")
        self._embeddings = list(cast("Sequence[ElasticEmbedding]", modules))
        names = [one.name for one in self._embeddings]
        if len(set(names)) < len(names):
            raise ValueError(
                f"tables are named {', '.join(names)}: expected a name of its own each"
            )
        self.worker = _new_name()
        self.clock = 0
        """Steps pushed so far; a newcomer begins with the slowest worker's."""
        servers = os.environ.get(SERVERS_VARIABLE, "") if servers is None else servers
        self._first = servers.split(",")[0]
        if not self._first:
            raise ValueError(
                f"servers: expected host:port of the first one; {SERVERS_VARIABLE} isn't set, as "
                "it is in jobs with role PS"
            )
        self._staleness = -1 if staleness is None else staleness
        self._policy = RetryPolicy(
            "parameter servers", patience, first_wait=0.005, longest_wait=0.5
        )
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self._token = token
        self._metadata = ((HEADER, token),) if token else ()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[str, Any] = {}
        self._owners = messages.Owners()
        self._owner_of: NDArray[np.int64] = np.full(BUCKETS, NOBODY, dtype=np.int64)
        self._exact = False
        self._seconds = FIRST_ANSWER_SECONDS
        """For the next answer."""
        self._times = Times()
        self._why = "nobody was asked yet"
        """Why something couldn't be done at once."""
        for one in self._embeddings:
            one.rows = _ServedRows(self, one.table.settings)
            one.make_split_state = self._split_state
        self._settings = [one.table.settings for one in self._embeddings]
        self._has_dense = dense is not None
        if dense is not None and dense_optimizer is not None:
            parameters = DenseParameters(dense, dense_optimizer, self.pull, self._give_first)
            self._embeddings.append(cast("ElasticEmbedding", parameters))
            self._settings += [parameters.table.settings, parameters.first_settings]

    def step(self) -> None:
        """Send the gradients of all forward passes since the last one."""
        updates = []
        for one in self._embeddings:
            one.end_batch(counts=True)
            updates.append(one.push())
        self.push(updates, self.clock + 1)

    def push(self, updates: Sequence[Update], sequence: int) -> None:
        """Have the servers apply these updates, one for each table, as the step of this number.

        A bucket takes each of this worker's numbers once, and no smaller one after it.
        """
        left = [np.arange(len(one.ids)) for one in updates]
        told = False

        def attempt() -> None:
            nonlocal told
            asked = self._requests(sequence, updates, left, to_all=not told)
            told = True
            done = self._ask("Push", [(address, request) for address, request, _ in asked])
            for (_, _, parts), reply in zip(asked, done, strict=True):
                if reply is not None:
                    for number, part in enumerate(parts):
                        left[number] = _without(left[number], part)
            if any(map(len, left)):
                raise _NotYetError(self._why)

        began = time.monotonic()
        self._until_done(attempt)
        self._times.add("push_seconds", time.monotonic() - began)
        self.clock = sequence

    def pull(self, settings: TableSettings, ids: Ids) -> torch.Tensor:
        """Return a row for each id, no two alike and ascending."""
        rows = torch.empty(len(ids), settings.width, dtype=settings.dtype)
        where = buckets(ids)
        left = np.arange(len(ids))

        def attempt() -> None:
            nonlocal left
            if not len(left):
                return
            parts = self._split(where, left)
            requests = [
                (
                    address,
                    messages.PullRequest(
                        worker=self.worker,
                        table=settings.name,
                        ids=pack(ids[part]),
                        clock=self.clock if torch.is_grad_enabled() else READS_ONLY,
                        staleness=self._staleness,
                    ),
                )
                for address, part in parts
            ]
            for (_, part), reply in zip(parts, self._ask("Pull", requests), strict=True):
                if reply is not None:
                    rows.numpy()[part] = read_floats(reply.rows, settings.width, settings.dtype)
                    left = _without(left, part)
            if len(left):
                raise _NotYetError(self._why)

        began = time.monotonic()
        self._until_done(attempt)
        self._times.add("pull_seconds", time.monotonic() - began)
        return rows

    def save(
        self, place: str | os.PathLike[str], after: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Have the servers write all rows; return what a commit of the rest has to hold.

        The rows are of one moment if no worker pushes meanwhile: let them meet at a barrier, save,
        write the dense model with what this returns, and let them go on.

        Args:
            place: a new directory that all servers and this worker see. It may go once no
                commit names it.
            after: what the last `save` returned: then rows that changed since are enough, and those
                of buckets that have moved. The directories of that one and of those before it stay
                as long as this one. None: all rows.
        """
        os.makedirs(place)
        return self.write(place, after)

    def write(
        self, place: str | os.PathLike[str], after: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Save, as `save` does, to a directory that is there."""
        name = uuid.uuid4().hex[:16]
        request = messages.SaveRequest(
            place=os.path.abspath(place), save=name, after="" if after is None else after["save"]
        )
        saved = {**self._write(request), "save": name}
        if after is not None:
            earlier = {key: after[key] for key in ("place", "files")}
            saved["before"] = [*after.get("before", ()), earlier]
        return saved

    def export(self, folder: str | os.PathLike[str], step: int, *, base: bool = False) -> Path:
        """Have the servers write rows for ServingTables: a base where there is none yet or one is
        wanted, else what changed since the last export; return its directory.

        By one worker, at any time: it is as of some moment of each server's.

        Args:
            folder: which all servers and this worker see, for this job's exports alone.
            step: what readers are told.

        Raises:
            OSError, ServerError: it can't be written; the next export makes up for it.
        """
        place, number, only_base = begin(Path(os.path.abspath(folder)))
        request = messages.SaveRequest(
            place=str(place), export=str(place.parent), number=number, base=base or only_base
        )
        try:
            files = self._write(request)["files"]
            return publish(place, number, BASE if request.base else INCREMENT, step, files)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _write(self, request: Any) -> dict[str, Any]:
        files: dict[str, list[Any]] = {}

        def attempt() -> None:
            if not self._owners.epoch:
                raise _NotYetError(self._why)
            files.clear()
            saved: list[int] = []
            for reply in self._ask("Save", [(one, request) for one in self._owners.addresses]):
                if reply is not None and reply.name:
                    files[reply.name] = [reply.size, reply.digest]
                    saved += unpack(reply.buckets).tolist()
            if sorted(saved) != list(range(BUCKETS)):
                raise _NotYetError("buckets are on their way between servers")

        self._until_done(attempt)
        return {"place": request.place, "files": files}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Have the servers go back to saved rows, with their optimizer's state.

        Their number may be another one. By one worker; all others' ServedTables are made anew
        after it, as their next step would fail.

        Args:
            saved: what `save` returned.
        """
        saves = [*saved.get("before", ()), saved]
        request = messages.LoadRequest(
            files=[
                messages.SavedFile(path=os.path.join(one["place"], name), size=size, digest=digest)
                for one in saves
                for name, (size, digest) in one["files"].items()
            ],
            counts=[len(one["files"]) for one in saves],
        )
        if not request.files:
            raise ValueError("`saved` names no files: expected what `save` returned")
        self._load(request)

    def _load(self, request: messages.LoadRequest) -> None:
        def attempt() -> None:
            if self._ask("Load", [(self._first, request)])[0] is None:
                raise _NotYetError(self._why)

        self.begin_anew()
        self._policy.call(attempt, transient=lambda error: isinstance(error, _NotYetError))
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be another worker, of whatever tables the servers have now: once a worker has loaded."""
        for one in self._embeddings:
            one.forget_batches()
        self._owners = messages.Owners()
        self.worker, self.clock, self._exact = _new_name(), 0, False

    def act_as(self, worker: str, clock: int) -> None:
        """Be this worker, which has pushed so many steps. Several processes may be the same one,
        where they push the same. From now on a lost server's rows may not go on from a copy."""
        self.worker, self.clock, self._exact = worker, clock, True

    def stand_at(self, clock: int) -> bool:
        """Return whether the servers have the rows of this step: whether none were lost, and no
        process has pushed any part of a later one."""
        request = messages.OpenRequest(worker=self.worker, tables=self._described())
        newest = 0

        def attempt() -> None:
            nonlocal newest
            for reply in self._ask("Open", [(one, request) for one in self._owners.addresses]):
                if reply is None:
                    raise _NotYetError(self._why)
                newest = max(newest, reply.clock)

        try:
            self._until_done(self._find_owners)
            self._until_done(attempt)
        except ServerError:
            return False
        return newest <= clock

    def clear(self) -> None:
        """Have the servers begin with empty tables, whatever they hold, or have lost.

        For a job without a commit, whose dense model begins anew, too. By one worker, as `load`.
        """
        self._load(messages.LoadRequest())

    def observe(
        self,
        values: Mapping[str, float] = MappingProxyType({}),
        board: ScalarWriter | None = None,
        step: int | None = None,
    ) -> dict[str, Any]:
        """Tell the first server metrics of the training's own, such as {"auc": 0.78}; return what
        all servers and workers say, and write that to TensorBoard where there is one.

        How long this worker's pulls and pushes took goes along. Of a metric that several workers
        tell, their mean counts. Nothing fails where that server gives no answer in a second; then
        nothing is returned.

        Args:
            board: torch.utils.tensorboard's SummaryWriter.
            step: for `board`; None: steps pushed so far.

        Raises:
            ServerError: a value isn't finite, or they are too many.
        """
        request = messages.ObserveRequest(
            worker=self.worker, values={**self._times.means(), **values}
        )
        try:
            reply = self._stub(self._first).Observe(request, timeout=1.0, metadata=self._metadata)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise ServerError(error.details()) from error
            return {}
        told: dict[str, Any] = json.loads(reply.status)
        if board is not None:
            for tag, value in scalars(told).items():
                board.add_scalar(tag, value, self.clock if step is None else step)
        return told

    def close(self) -> None:
        """Be waited for no longer by other workers."""
        for address in self._owners.addresses:
            with_timeout = {"timeout": 1.0, "metadata": self._metadata}
            try:
                self._stub(address).Close(messages.CloseRequest(worker=self.worker), **with_timeout)
            except grpc.RpcError:
                continue
        for channel in self._channels.values():
            channel.close()
        self._channels, self._stubs = {}, {}

    def __enter__(self) -> ServedTables:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _give_first(self, settings: TableSettings, update: Update) -> None:
        """Push as the worker that all are at their beginning, and whose steps nobody waits for."""
        given = ElasticEmbedding(
            settings.name,
            settings.width,
            optimizer=settings.optimizer,
            bound=settings.bound,
            dtype=settings.dtype,
        )
        with ServedTables(
            [given], self._first, patience=self._policy.seconds, token=self._token
        ) as tables:
            tables.act_as(GIVER, 0)
            tables.push([update], 1)

    def _split_state(self, modules: Sequence[torch.nn.Module]) -> ServedState:
        """Return what keeps them in step with an ElasticLoop, which asks for it."""
        if self._has_dense:
            raise ValueError(
                "ServedTables has dense parameters, which ElasticLoop keeps in step itself: "
                "expected no `dense` where the tables are in its model"
            )
        if set(modules) != set(self._embeddings):
            raise ValueError(
                "ServedTables has tables that ElasticLoop's model hasn't: expected all of them in "
                "it, or none, whose gradients `step` then sends"
            )
        return ServedState(self, self._embeddings)

    # ---- requests

    def _requests(
        self, sequence: int, updates: Sequence[Update], left: Sequence[Ids], *, to_all: bool
    ) -> list[tuple[str, Any, list[Ids]]]:
        """Return what goes to each server, and which ids of each update that is.

        Args:
            to_all: also to holders for whom there is nothing, who count steps, too.
        """
        parts: dict[str, list[Ids]] = {}
        nothing = np.empty(0, dtype=np.int64)
        for owner in np.unique(self._owner_of[self._owner_of != NOBODY]) if to_all else ():
            parts[self._owners.addresses[owner]] = [nothing] * len(updates)
        for number, (update, rows) in enumerate(zip(updates, left, strict=True)):
            for address, part in self._split(buckets(update.ids), rows):
                parts.setdefault(address, [nothing] * len(updates))[number] = part
        found = []
        for address, of_updates in parts.items():
            gradients = [
                messages.Gradients(
                    table=one.name,
                    ids=pack(update.ids[part]),
                    seen=pack(update.seen[part]),
                    sums=pack_floats(_rows_of(update.gradients, part)),
                    lr=one.lr,
                )
                for one, update, part in zip(self._embeddings, updates, of_updates, strict=True)
            ]
            request = messages.PushRequest(
                worker=self.worker, sequence=sequence, gradients=gradients
            )
            found.append((address, request, of_updates))
        return found

    def _split(self, where: Ids, rows: Ids) -> list[tuple[str, Ids]]:
        """Return which of these rows, whose buckets are `where`, each server holds."""
        owner = self._owner_of[where[rows]]
        if (owner == NOBODY).any():
            self._why = "nobody holds some of the buckets"
        return [
            (self._owners.addresses[number], rows[owner == number])
            for number in np.flatnonzero(np.bincount(owner[owner != NOBODY]))
        ]

    def _ask(self, method: str, requests: Sequence[tuple[str, Any]]) -> list[Any]:
        """Ask all at once; return the reply of each, None where nothing was done."""
        seconds = FILE_SECONDS if method in ("Save", "Load") else self._seconds
        calls = [
            getattr(self._stub(address), method).future(
                request, timeout=seconds, metadata=self._metadata
            )
            for address, request in requests
        ]
        found: list[Any] = []
        for (address, _), call in zip(requests, calls, strict=True):
            try:
                reply = call.result()
            except grpc.RpcError as error:
                self._refused(address, error)
                found.append(None)
                continue
            if method in ("Save", "Open"):
                found.append(reply)
                continue
            if reply.verdict != messages.DONE:
                self._why = f"{address} says {messages.Verdict.Name(reply.verdict)}"
                if reply.verdict == messages.NOT_OPEN:
                    self._open(address)
            found.append(reply if reply.verdict == messages.DONE else None)
        return found

    def _described(self) -> list[str]:
        return [write_settings(one) for one in self._settings]

    def _open(self, address: str) -> None:
        request = messages.OpenRequest(
            worker=self.worker, tables=self._described(), clock=self.clock
        )
        try:
            reply = self._stub(address).Open(
                request, timeout=self._seconds, metadata=self._metadata
            )
        except grpc.RpcError as error:
            self._refused(address, error)
            return
        if not self.clock:
            self.clock = reply.clock

    def _find_owners(self) -> None:
        try:
            found = self._stub(self._first).FindOwners(
                messages.FindOwnersRequest(), timeout=self._seconds, metadata=self._metadata
            )
        except grpc.RpcError as error:
            self._refused(self._first, error)
            raise _NotYetError(self._why) from error
        if self._owners.epoch and found.epoch and found.epoch != self._owners.epoch:
            raise ServerError(
                f"the parameter servers of {self._first} began anew, without the rows that this "
                "worker has trained: start the workers anew, too"
            )
        if self._exact and self._owners.epoch and found.adopted != self._owners.adopted:
            raise ServerError(
                f"{self._first}: rows of a server that was lost go on from a copy, so that they "
                "are some steps behind: they have to go back to a commit with all others"
            )
        if found.lost:
            raise ServerError(f"{self._first}: {found.lost}")
        if not found.epoch:
            raise _NotYetError("the servers have only just begun")
        if found.version >= self._owners.version:
            self._owners = found
            self._owner_of = unpack(found.owners)

    def _until_done(self, attempt: Callable[[], None]) -> None:
        """Try with what is known of the servers, and with what they say now, until it is done."""
        tried = False
        self._seconds = FIRST_ANSWER_SECONDS

        def once() -> None:
            nonlocal tried
            if tried or not self._owners.epoch:
                self._find_owners()
            tried = True
            attempt()

        try:
            self._policy.call(once, transient=lambda error: isinstance(error, _NotYetError))
        except _NotYetError as error:
            raise ServerError(
                f"the parameter servers of {self._first} haven't done what was asked in "
                f"{self._policy.seconds:g} s: {error}"
            ) from error

    def _refused(self, address: str, error: grpc.RpcError) -> None:
        code = error.code() if isinstance(error, grpc.Call) else None
        details = error.details() if isinstance(error, grpc.Call) else ""
        if code in _REFUSED:
            raise ServerError(f"parameter server {address}: {details}") from error
        self._why = f"{address}: {details or code}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._seconds = min(2 * self._seconds, ANSWER_SECONDS)

    def _stub(self, address: str) -> Any:
        if address not in self._stubs:
            channel = grpc.insecure_channel(address, options=OPTIONS)
            self._channels[address] = channel
            self._stubs[address] = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
        return self._stubs[address]


def _without(rows: Ids, done: Ids) -> Ids:
    """Return the rows that aren't done yet."""
    if len(done) == len(rows):
        return rows[:0]
    return np.setdiff1d(rows, done, assume_unique=True)


def _rows_of(gradients: torch.Tensor, part: Ids) -> torch.Tensor:
    """Return these rows, without a copy where they are all."""
    return gradients if len(part) == len(gradients) else gradients[torch.from_numpy(part)]


def _new_name() -> str:
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class _ServedRows:
    """Rows of one table, for exchange.py's pull."""

    tables: ServedTables
    settings: TableSettings

    def pull(self, ids: Ids) -> torch.Tensor:
        return self.tables.pull(self.settings, ids)
