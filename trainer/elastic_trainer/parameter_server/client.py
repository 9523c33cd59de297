"""ServedTables: a worker's side of tables that parameter servers hold."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.export import BASE, INCREMENT, begin, publish
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.split_table import check_modules
from elastic_trainer.embeddings.table import TableSettings
from elastic_trainer.parameter_server.dense import GIVER, DenseParameters
from elastic_trainer.parameter_server.gazer import Times, scalars
from elastic_trainer.parameter_server.holder import READS_ONLY
from elastic_trainer.parameter_server.known_servers import KnownServers, NotYetError
from elastic_trainer.parameter_server.served_state import ServedState
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.parameter_server.wire import (
    SERVERS_VARIABLE,
    pack,
    pack_floats,
    read_floats,
    unpack,
    write_settings,
)
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.protocol.auth import TOKEN_VARIABLE

if TYPE_CHECKING:
    from elastic_trainer.embeddings.exchange import Update
    from elastic_trainer.embeddings.row_optimizer import RowOptimizer
    from elastic_trainer.integrations.tensorboard import ScalarWriter

Mask = NDArray[np.bool_]


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
        ValueError, TypeError: one of the arguments can't be.
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
        self._embeddings = cast("list[ElasticEmbedding]", check_modules(modules))
        self.worker = _new_name()
        self.clock = 0
        """Steps pushed so far; a newcomer begins with the slowest worker's."""
        servers = os.environ.get(SERVERS_VARIABLE, "") if servers is None else servers
        first = servers.split(",")[0]
        if not first:
            raise ValueError(
                f"servers: expected host:port of the first one; {SERVERS_VARIABLE} isn't set, as "
                "it is in jobs with role PS"
            )
        self._staleness = -1 if staleness is None else staleness
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self._servers = KnownServers(first, token, patience, self._described, self._opened)
        self._times = Times()
        for one in self._embeddings:
            one.rows = _ServedRows(self, one.table.settings)
            one.make_split_state = self._split_state
        self._settings = [one.table.settings for one in self._embeddings]
        self.dense: DenseParameters | None = None
        """Those of `dense`; their learning rate is `dense.lr`, to be set where it changes."""
        if dense is not None and dense_optimizer is not None:
            self.dense = DenseParameters(dense, dense_optimizer, self.pull, self._give_first)
            self._embeddings.append(cast("ElasticEmbedding", self.dense))
            self._settings += [self.dense.table.settings, self.dense.first_settings]

    def step(self) -> None:
        """Send the gradients of all forward passes since the last one."""
        updates = []
        for one in self._embeddings:
            one.end_batch(counts=True)
            updates.append(one.push())
        self.push(updates, self.clock + 1)

    def forget(self) -> None:
        """Drop the gradients of all forward passes since the last step, as of a lease that another
        worker has pushed."""
        for one in self._embeddings:
            one.forget_batches()

    def push(self, updates: Sequence[Update], sequence: int) -> None:
        """Have the servers apply these updates, one for each table, as the step of this number.

        A bucket takes each of this worker's numbers once, and no smaller one after it.
        """
        left = [np.ones(len(one.ids), dtype=bool) for one in updates]
        told = False

        def attempt() -> None:
            nonlocal told
            asked = self._requests(sequence, updates, left, to_all=not told)
            told = True
            done = self._servers.ask("Push", [(address, request) for address, request, _ in asked])
            for (_, _, parts), reply in zip(asked, done, strict=True):
                if reply is not None:
                    for number, part in enumerate(parts):
                        left[number][part] = False
            if any(map(np.any, left)):
                raise NotYetError(self._servers.why)

        began = time.monotonic()
        self._servers.until_done(attempt)
        self._times.add("push_seconds", time.monotonic() - began)
        self.clock = sequence

    def pull(self, settings: TableSettings, ids: Ids) -> torch.Tensor:
        """Return a row for each id, no two alike and ascending."""
        rows = torch.empty(len(ids), settings.width, dtype=settings.dtype)
        where = buckets(ids)
        left = np.ones(len(ids), dtype=bool)

        def attempt() -> None:
            if not left.any():
                return
            parts = self._servers.split(where, np.flatnonzero(left))
            requests = [
                (
                    address,
                    messages.PullRequest(
                        worker=self.worker,
                        table=settings.name,
                        ids=pack(ids[part]),
                        clock=self.clock if torch.is_grad_enabled() else READS_ONLY,
                        staleness=self._staleness,
                        history=self._servers.history,
                    ),
                )
                for address, part in parts
            ]
            for (_, part), reply in zip(parts, self._servers.ask("Pull", requests), strict=True):
                if reply is not None:
                    rows.numpy()[part] = read_floats(reply.rows, settings.width, settings.dtype)
                    left[part] = False
            if left.any():
                raise NotYetError(self._servers.why)

        began = time.monotonic()
        self._servers.until_done(attempt)
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
            if not self._servers.owners.epoch:
                raise NotYetError(self._servers.why)
            files.clear()
            request.history.CopyFrom(self._servers.history)
            saved: list[int] = []
            asked = [(one, request) for one in self._servers.owners.addresses]
            for reply in self._servers.ask("Save", asked):
                if reply is not None and reply.name:
                    files[reply.name] = [reply.size, reply.digest]
                    saved += unpack(reply.buckets).tolist()
            if sorted(saved) != list(range(BUCKETS)):
                raise NotYetError("buckets are on their way between servers")

        self._servers.until_done(attempt)
        return {"place": request.place, "files": files}

    def load(self, saved: Mapping[str, Any]) -> messages.History:
        """Have the servers go back to saved rows, with their optimizer's state; return which rows
        these are.

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
        return self._load(request)

    def _load(self, request: messages.LoadRequest) -> messages.History:
        def attempt() -> messages.History:
            reply = self._servers.ask("Load", [(self._servers.first, request)])[0]
            if reply is None:
                raise NotYetError(self._servers.why)
            history: messages.History = reply.history
            return history

        self.begin_anew()
        history = self._servers.policy.call(
            attempt, transient=lambda error: isinstance(error, NotYetError)
        )
        self.begin_anew()
        return history

    def begin_anew(self) -> None:
        """Be another worker, of whatever tables the servers have now: once a worker has loaded."""
        for one in self._embeddings:
            one.forget_batches()
        self._servers.forget()
        self.worker, self.clock = _new_name(), 0

    def act_as(self, worker: str, clock: int, history: messages.History | None = None) -> None:
        """Be this worker, which has pushed so many steps. Several processes may be the same one,
        where they push the same.

        Args:
            history: which rows it goes on from: a lost server's may not go on from a copy, then.
        """
        self.worker, self.clock, self._servers.goes_on_from = worker, clock, history

    @property
    def goes_on_from(self) -> messages.History | None:
        """Return which rows this worker goes on from; None: any."""
        return self._servers.goes_on_from

    def stand_at(self, clock: int) -> bool:
        """Return whether the servers have the rows of this step: whether none were lost, and no
        process has pushed any part of a later one."""
        newest = 0

        def attempt() -> None:
            nonlocal newest
            request = messages.OpenRequest(worker=self.worker, tables=self._texts())
            asked = [(one, request) for one in self._servers.owners.addresses]
            for reply in self._servers.ask("Open", asked):
                if reply is None:
                    raise NotYetError(self._servers.why)
                newest = max(newest, reply.clock)

        try:
            self._servers.until_done(self._servers.find_owners)
            self._servers.until_done(attempt)
        except ServerError:
            return False
        return newest <= clock

    def clear(self) -> messages.History:
        """Have the servers begin with empty tables, whatever they hold, or have lost; return which
        rows these are.

        For a job without a commit, whose dense model begins anew, too. By one worker, as `load`.
        """
        return self._load(messages.LoadRequest())

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
            ServerError: it refuses them: a value isn't finite, or they are too many.
        """
        request = messages.ObserveRequest(
            worker=self.worker, values={**self._times.means(), **values}
        )
        reply = self._servers.ask_one("Observe", self._servers.first, request, 1.0)
        if reply is None:
            return {}
        told: dict[str, Any] = json.loads(reply.status)
        if board is not None:
            for tag, value in scalars(told).items():
                board.add_scalar(tag, value, self.clock if step is None else step)
        return told

    def close(self) -> None:
        """Be waited for no longer by other workers."""
        self._servers.close(self.worker)

    def __enter__(self) -> ServedTables:
        return self

    def __exit__(self, *error: object) -> None:
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
        servers = self._servers
        with ServedTables(
            [given], servers.first, patience=servers.policy.seconds, token=servers.token
        ) as tables:
            tables.act_as(GIVER, 0)
            tables.push([update], 1)

    def _split_state(self, modules: Sequence[torch.nn.Module]) -> ServedState:
        """Return what keeps them in step with an ElasticLoop, which asks for it."""
        if self.dense is not None:
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
        self, sequence: int, updates: Sequence[Update], left: Sequence[Mask], *, to_all: bool
    ) -> list[tuple[str, Any, list[Ids]]]:
        """Return what goes to each server, and which ids of each update that is.

        Args:
            to_all: also to holders for whom there is nothing, who count steps, too.
        """
        parts: dict[str, list[Ids]] = {}
        nothing = np.empty(0, dtype=np.int64)
        for address in self._servers.holders() if to_all else ():
            parts[address] = [nothing] * len(updates)
        for number, (update, rows) in enumerate(zip(updates, left, strict=True)):
            for address, part in self._servers.split(buckets(update.ids), np.flatnonzero(rows)):
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
                worker=self.worker,
                sequence=sequence,
                gradients=gradients,
                history=self._servers.history,
            )
            found.append((address, request, of_updates))
        return found

    def _texts(self) -> list[str]:
        return [write_settings(one) for one in self._settings]

    def _described(self) -> messages.OpenRequest:
        return messages.OpenRequest(
            worker=self.worker,
            tables=self._texts(),
            clock=self.clock,
            epoch=self._servers.owners.epoch,
        )

    def _opened(self, reply: messages.OpenReply) -> None:
        if not self.clock:
            self.clock = reply.clock


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
