"""A copy of a server's rows that breaks off at each of its messages is always of one moment."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.embeddings.table import TableSettings
from elastic_trainer.parameter_server import copy_log, copying
from elastic_trainer.parameter_server.copy_log import CopyLog
from elastic_trainer.parameter_server.copying import Copier, Served
from elastic_trainer.parameter_server.holder import Gradients, Holder, Verdict
from elastic_trainer.parameter_server.moving import give
from elastic_trainer.parameter_server.service import Service
from elastic_trainer.parameter_server.wire import pack, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

from tests.elastic_trainer.parameter_server.servers import BrokenError, Direct

SETTINGS = TableSettings(
    "items", 4, Adagrad(lr=0.1), dtype=torch.float64, admit_after=2, evict_idle=7, evict_every=3
)
HALF = np.arange(0, BUCKETS, 2)

State = dict[int, list[float]]


class Run:
    """A server that takes pushes, and one that keeps a copy of its rows."""

    folder = ""
    """The folder of copies; empty: they are kept in memory."""

    def __init__(self) -> None:
        self.source, self.keeper = (
            Service(f"{one}:1", "first", "", copy_folder=self.folder) for one in "ab"
        )
        self.source.holder.held[:] = True
        self.source.holder.add_table(write_settings(SETTINGS))
        self.source.holder.clocks.open("w", 0, 0.0)
        self.draw = np.random.default_rng(5)
        self.moments: list[State] = [{}]
        """The source's rows after each push."""
        self.taken = [np.zeros(BUCKETS, dtype=np.int64)]
        """The newest push that each of its buckets had taken then."""
        self.count, self.breaks_at = 0, 0
        self.pushes = True
        self.copier = Copier(
            self.source.life,
            lambda: Served(self.source.holder, "e", "b:1", self.keeper.life),
            lambda _: Direct(self.keeper, self._at),
        )

    def _at(self, event: str) -> None:
        self.count += 1
        if self.pushes and self.count % 2:
            self.push()
        if self.count == self.breaks_at:
            raise BrokenError(event)

    def push(self) -> None:
        ids = np.unique(self.draw.integers(0, 300, 40)) * 10**9
        ids = ids[self.source.holder.held[buckets(ids)]]
        sums = torch.from_numpy(self.draw.normal(size=(len(ids), 4)))
        part = Gradients("items", ids, np.ones(len(ids), dtype=np.int64), sums, 0.1)
        verdict = self.source.holder.push("w", len(self.moments), [part], 0.0)
        assert verdict is Verdict.DONE
        self.moments.append(rows(self.source.holder))
        self.taken.append(self.source.holder._applied["w"].copy())

    async def adopted(self, given: np.ndarray) -> Holder | None:
        """Return what a server holds that adopted these buckets; None if it couldn't."""
        request = messages.AdoptRequest(
            life=self.keeper.life, source=self.source.life, buckets=pack(given), epoch="e"
        )
        reply = await self.keeper.Adopt(request, None)
        return self.keeper.holder if reply.adopted else None


def rows(holder: Holder) -> State:
    entries = holder.tables["items"].entries()
    found = {
        one: [*weights.tolist(), *state.tolist(), int(seen), int(last)]
        for one, weights, state, seen, last in zip(
            entries.ids.tolist(),
            entries.weights,
            entries.state,
            entries.seen,
            entries.last,
            strict=True,
        )
    }
    candidates = zip(
        entries.candidates.tolist(),
        entries.candidates_seen.tolist(),
        entries.candidates_last.tolist(),
        strict=True,
    )
    return found | {-one - 1: [seen, last] for one, seen, last in candidates}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART_ROWS", 64)
    monkeypatch.setattr(copying, "FEW_ROWS", 8)
    monkeypatch.setattr(copying, "ROUNDS", 2)  # rows change until a moment is read


@pytest.fixture(autouse=True, params=["memory", "disk"])
def _kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "folder", str(tmp_path) if request.param == "disk" else "")


async def copied(breaks_at: int) -> tuple[Run, int, int]:
    """Copy twice; return the run, which moment the first copy is of, and how many messages there
    were until then."""
    run = Run()
    for _ in range(10):
        run.push()
    await run.copier.copy()
    first, count = len(run.moments), run.count
    for _ in range(3):
        run.push()
    run.breaks_at = breaks_at
    await run.copier.copy()
    return run, first, count


async def test_copy_that_breaks_off_at_each_message_is_of_one_moment() -> None:
    whole, first, begins = await copied(0)
    assert first > 11 and whole.count > begins + 4
    found = set()
    for breaks_at in range(begins + 1, whole.count + 1):
        run, first, _ = await copied(breaks_at)
        holder = await run.adopted(np.arange(BUCKETS))
        assert holder is not None and holder.held.all()
        state = rows(holder)
        moment = next(number for number, one in enumerate(run.moments) if one == state)
        found.add(moment)
        assert np.array_equal(holder._applied["w"], run.taken[moment]), "pushes count twice"
    assert len(found) > 1, "no copy came to the second moment"


async def test_first_copy_that_breaks_off_is_none() -> None:
    whole, _, count = await copied(0)
    assert whole.count > count > 6
    for breaks_at in range(1, count - 1):
        run = Run()
        for _ in range(10):
            run.push()
        run.breaks_at = breaks_at
        await run.copier.copy()
        assert await run.adopted(np.arange(BUCKETS)) is None
        run.breaks_at = 0
        await run.copier.copy()
        holder = await run.adopted(np.arange(BUCKETS))
        assert holder is not None and rows(holder) in run.moments


async def test_copy_never_has_what_its_server_gave_away() -> None:
    """Else a server that is lost later would be followed by rows of long ago."""
    run = Run()
    for _ in range(10):
        run.push()
    await run.copier.copy()
    taker, source = Service("c:1", "first", ""), run.source.holder

    def at(event: str) -> None:
        if event == "before Take":
            held = run.keeper._copies.buckets()[run.source.life]
            going = np.flatnonzero(source.frozen | taker.holder.held)
            assert len(going) and not np.isin(held, going).any()

    stub = Direct(taker, at)
    assert await give(source, HALF, stub, taker.life, "e", lambda: False, run.copier)
    assert await run.adopted(HALF) is None
    run.pushes = False
    await run.copier.copy()
    rest = np.setdiff1d(np.arange(BUCKETS), HALF)
    assert np.array_equal(run.keeper._copies.buckets()[run.source.life], rest)
    holder = await run.adopted(rest)
    assert holder is not None and rows(holder) == rows(source)


class DiedError(Exception):
    """The giver was killed here."""


async def dies_giving(at: int) -> tuple[Run, Service, State, list[str]]:
    """Give half of the rows away; return who is left when the giver dies at a message, what it held
    then, and the messages until then."""
    run, events = Run(), list[str]()
    for _ in range(10):
        run.push()
    await run.copier.copy()
    run.pushes = False
    await run.copier.copy()
    taker, source = Service("c:1", "first", ""), run.source.holder
    held = rows(source)

    def told(event: str) -> None:
        events.append(event)
        if len(events) == at:
            raise DiedError(event)

    run.copier._stub = lambda _: Direct(run.keeper, told)
    with contextlib.suppress(DiedError):
        await give(source, HALF, Direct(taker, told), taker.life, "e", lambda: False, run.copier)
    return run, taker, held, events


async def test_giver_killed_at_each_message_leaves_each_bucket_to_one_or_lost() -> None:
    _, _, _, events = await dies_giving(0)
    assert events.count("after Take") == 1 and events.count("after Keep") == 1
    lost = []
    for at, event in enumerate(events, 1):
        run, taker, held, _ = await dies_giving(at)
        there = taker.holder.held
        assert there.sum() in (0, len(HALF))
        nobodys = np.flatnonzero(~there)
        keeper = await run.adopted(nobodys)
        if keeper is None:
            # Taken out of the copy, and not yet the receiver's: the director says so.
            lost.append(event)
            nobodys = np.setdiff1d(nobodys, HALF)
            keeper = await run.adopted(nobodys)
        assert keeper is not None and not (keeper.held & there).any()
        found = rows(keeper)
        if there.any():
            found |= rows(taker.holder)
        where = {one: one if one >= 0 else -one - 1 for one in held}
        known = {
            one: state
            for one, state in held.items()
            if (keeper.held | there)[buckets(np.array([where[one]]))[0]]
        }
        assert found == known, event
    assert lost and set(lost) <= {"after Keep", "before Receive", "after Receive", "before Take"}
    window = events[events.index("after Keep") : events.index("before Take") + 1]
    assert len(lost) == len(window), "between the copy and the receiver, and nowhere else"


async def test_copy_has_them_again_where_they_were_not_taken() -> None:
    run = Run()
    run.push()
    await run.copier.copy()
    stub = Direct(Service("c:1", "first", ""), lambda _: None)
    assert not await give(run.source.holder, HALF, stub, "other", "e", lambda: False, run.copier)
    run.pushes = False
    await run.copier.copy()
    holder = await run.adopted(np.arange(BUCKETS))
    assert holder is not None and rows(holder) == rows(run.source.holder)


async def test_move_waits_for_a_keeper_that_does_not_answer() -> None:
    run = Run()
    run.push()
    await run.copier.copy()
    run.breaks_at = run.count + 1
    taker = Service("c:1", "first", "")
    stub = Direct(taker, lambda _: None)
    assert not await give(run.source.holder, HALF, stub, taker.life, "e", lambda: False, run.copier)
    assert run.source.holder.held.all() and not taker.holder.held.any()
    assert await give(run.source.holder, HALF, stub, taker.life, "e", lambda: False, run.copier)


async def test_rows_of_an_older_epoch_are_not_copied() -> None:
    run = Run()
    run.push()
    run.keeper._epoch = "newer"
    await run.copier.copy()
    assert run.keeper._copies.buckets() == {}


async def test_copy_on_a_full_disk_is_none_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "folder", str(tmp_path))
    run = Run()
    run.push()
    await run.copier.copy()
    (log,) = run.keeper._copies._whole.values()
    assert isinstance(log, CopyLog)
    log._file.close()
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(log, "_file", full)
        run.push()
        await run.copier.copy()
        assert run.keeper._copies.buckets() == {}, "it might have a part of a moment"
        full.close = lambda: None  # type: ignore[method-assign]
    assert await run.adopted(np.arange(BUCKETS)) is None
    run.pushes = False
    await run.copier.copy()
    holder = await run.adopted(np.arange(BUCKETS))
    assert holder is not None and rows(holder) == run.moments[-1]


async def test_copy_whose_log_is_long_is_begun_anew_and_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "folder", str(tmp_path))
    monkeypatch.setattr(copy_log, "AT_LEAST_BYTES", 0)
    run = Run()
    sizes, names = [], set()
    for _ in range(30):
        run.push()
        await run.copier.copy()
        files = list(tmp_path.glob("*.copy"))
        names |= {file.name for file in files}
        sizes.append(sum(file.stat().st_size for file in files))
        assert len(files) <= 2
    assert len(names) > 2 and sizes[-1] < max(sizes) * 2
    run.pushes = False
    await run.copier.copy()
    await run.copier.copy()
    holder = await run.adopted(np.arange(BUCKETS))
    assert holder is not None and rows(holder) == run.moments[-1]
    assert not list(tmp_path.glob("x")) and Service("c:1", "first", "", copy_folder=str(tmp_path))
    assert not list(tmp_path.glob("*.copy")), "those of an earlier process are of no use"


async def test_damaged_copy_is_not_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "folder", str(tmp_path))
    run = Run()
    run.push()
    await run.copier.copy()
    (file,) = tmp_path.glob("*.copy")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert await run.adopted(np.arange(BUCKETS)) is None
    assert run.keeper._copies.buckets() == {} and not run.keeper.holder.held.any()
