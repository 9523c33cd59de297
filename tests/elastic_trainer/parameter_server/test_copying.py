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
from elastic_trainer.parameter_server import changes, copy_log, parts
from elastic_trainer.parameter_server.copies import MemoryCopy
from elastic_trainer.parameter_server.copy_log import CopyLog
from elastic_trainer.parameter_server.copying import Copier, Served
from elastic_trainer.parameter_server.holder import Gradients, Holder, Verdict
from elastic_trainer.parameter_server.placement import Server, next_adoption, outdated
from elastic_trainer.parameter_server.reports import copy_message
from elastic_trainer.parameter_server.wire import pack, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

from tests.elastic_trainer.parameter_server.servers import BrokenError, Direct, LocalServer
from tests.elastic_trainer.parameter_server.test_moving import given_to, nothing

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
            LocalServer(f"{one}:1", copy_folder=self.folder) for one in "ab"
        )
        for one in (self.source, self.keeper):
            one.member.service.leased_until = float("inf")
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
            life=self.keeper.life,
            source=self.source.life,
            buckets=pack(given),
            epoch="e",
            turn=9,
            number=2,
        )
        reply = await self.keeper.backups.Adopt(request, None)
        if not reply.adopted:
            return None
        assert (self.keeper.holder.adopted[given] == 2).all()
        return self.keeper.holder


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
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    monkeypatch.setattr(changes, "FEW_ROWS", 8)
    monkeypatch.setattr(changes, "ROUNDS", 2)  # rows change until a moment is read


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


async def test_copy_has_what_its_server_gave_away_until_it_is_outdated() -> None:
    """Its taker may be lost before it has a copy of its own."""
    run = Run()
    for _ in range(10):
        run.push()
    run.pushes = False
    await run.copier.copy()
    taker, source = LocalServer("c:1"), run.source.holder
    before = rows(source)
    assert await given_to(taker, run.source, HALF)
    assert run.source.share.given()[taker.life].tolist() == HALF.tolist()
    for _ in range(3):
        run.push()
        await run.copier.copy()
    copy = run.keeper.backups.copies._whole[run.source.life]
    assert copy.held.all()
    found = rows(copy.holder())
    assert {one: state for one, state in found.items() if where(one) in HALF} == {
        one: state for one, state in before.items() if where(one) in HALF
    }
    run.keeper.backups.copies.drop(run.source.life, HALF, source.turns[HALF] + 1)
    assert copy.held.all(), "another turn's"
    run.keeper.backups.copies.drop(run.source.life, HALF, source.turns[HALF])
    rest = np.setdiff1d(np.arange(BUCKETS), HALF)
    assert np.array_equal(np.flatnonzero(copy.held), rest)
    assert await run.adopted(HALF) is None
    run.source.share.forget(taker.life, HALF, source.turns[HALF])
    holder = await run.adopted(rest)
    assert holder is not None and rows(holder) == rows(source)


async def test_rows_that_were_given_are_evicted_by_who_took_them_alone() -> None:
    run = Run()
    for _ in range(10):
        run.push()
    run.pushes = False
    taker, source = LocalServer("c:1"), run.source.holder
    assert await given_to(taker, run.source, HALF)
    before = {one: row for one, row in rows(source).items() if where(one) in HALF}
    for _ in range(30):
        run.push()
    assert run.source.share.hold_again(taker.life, HALF, 5, 3)
    assert (source.adopted == np.where(np.isin(np.arange(BUCKETS), HALF), 3, 0)).all()
    # They were seen as many steps ago as when they were given, else the next eviction had them.
    steps = source.tables["items"].step - 10
    ages = {one: [*row[:-1], row[-1] + steps] for one, row in before.items()}
    assert {one: row for one, row in rows(source).items() if where(one) in HALF} == ages
    for _ in range(12):
        run.push()
    assert {one for one in rows(source) if where(one) in HALF} != set(before), "as any other row"


async def test_copy_has_anew_what_went_away_and_came_back() -> None:
    run = Run()
    for _ in range(10):
        run.push()
    run.pushes = False
    await run.copier.copy()
    taker, source = LocalServer("c:1"), run.source.holder
    assert await given_to(taker, run.source, HALF)
    table = taker.holder.tables["items"]
    gone = table.entries().ids.numpy()[::2]
    table._rows.remove(gone)  # evicted there
    assert await given_to(run.source, taker, HALF)
    assert source.held.all() and set(gone.tolist()).isdisjoint(rows(source))
    assert run.copier.uncopied()[HALF].all() and run.copier.uncopied().sum() == len(HALF)
    await run.copier.copy()
    assert not run.copier.uncopied().any()
    holder = await run.adopted(np.arange(BUCKETS))
    assert holder is not None and rows(holder) == rows(source)


async def test_rows_that_come_to_a_copied_server_wait_for_no_moment_to_end() -> None:
    """Else the keeper stood still for millions of them."""
    run = Run()
    run.pushes = False
    for _ in range(10):
        run.push()
    giver, source = LocalServer("c:1"), run.source
    assert await given_to(giver, source, HALF)
    await run.copier.copy()
    assert await given_to(source, giver, HALF)
    kept = MemoryCopy("name", "e")
    rest, ones = np.setdiff1d(np.arange(BUCKETS), HALF), np.ones(BUCKETS, np.int64)
    kept.keep(messages.KeepRequest(last=True, buckets=pack(rest), turns=pack(ones[rest])))
    for some in parts.rows_of(source.holder, parts.ids_in(source.holder, HALF)):
        kept.keep(messages.KeepRequest(rows=[messages.Rows(**some)]))
    assert not kept._waiting and not kept.held[HALF].any()
    every = pack(np.arange(BUCKETS))
    kept.keep(messages.KeepRequest(last=True, buckets=every, turns=pack(ones)))
    entries = source.holder.tables["items"].entries(HALF.tolist())
    assert len(kept.holder().tables["items"]) == len(entries.ids) > 0
    await run.copier.copy()
    holder = await run.adopted(np.arange(BUCKETS))
    assert holder is not None and rows(holder) == rows(source.holder)


async def test_rows_that_came_back_are_kept_though_older_ones_are_dropped_meanwhile() -> None:
    """The keeper may hear late, at any message of the next moment, that its rows are outdated."""

    async def messages_of_a_moment(heard_at: int) -> int:
        run = Run()
        run.pushes = False
        for _ in range(10):
            run.push()
        await run.copier.copy()
        turns, taker = run.source.holder.turns[HALF].copy(), LocalServer("c:1")
        assert await given_to(taker, run.source, HALF)
        assert await given_to(run.source, taker, HALF)
        run.push()
        sent = 0

        def told(event: str) -> None:
            nonlocal sent
            sent += event == "after Keep"
            if event == "after Keep" and sent == heard_at:
                run.keeper.backups.copies.drop(run.source.life, HALF, turns)

        run.copier._stub = lambda _: Direct(run.keeper, told)
        await run.copier.copy()
        holder = await run.adopted(np.arange(BUCKETS))
        assert holder is not None and rows(holder) == rows(run.source.holder)
        return sent

    count = await messages_of_a_moment(0)
    assert count > 2
    for heard_at in range(1, count + 1):
        await messages_of_a_moment(heard_at)


async def test_copy_has_the_steps_of_a_table_without_rows() -> None:
    run = Run()
    run.pushes = False
    for sequence in range(1, 6):
        assert run.source.holder.push("w", sequence, [nothing()], 0.0) is Verdict.DONE
    await run.copier.copy()
    holder = await run.adopted(np.arange(BUCKETS))
    assert holder is not None and holder.tables["items"].step == 5


async def test_copy_at_a_new_keeper_follows_the_old_one_once_it_is_whole() -> None:
    run = Run()
    for _ in range(10):
        run.push()
    await run.copier.copy()
    other = LocalServer("d:1", copy_folder=f"{run.folder}/d" if run.folder else "")
    whole: list[bool] = []

    def told(_: str) -> None:
        whole.append(bool(run.keeper.backups.copies.kept() or other.backups.copies.kept()))

    run.copier._served = lambda: Served(run.source.holder, "e", "d:1", other.life)
    run.copier._stub = lambda address: Direct(other if address == "d:1" else run.keeper, told)
    await run.copier.copy()
    assert whole and all(whole), "there was no copy for a while"
    assert not run.keeper.backups.copies.kept() and len(other.backups.copies.kept()) == 1


def where(one: int) -> int:
    """Return the bucket of what `rows` calls so."""
    return int(buckets(np.array([one if one >= 0 else -one - 1]))[0])


class DiedError(Exception):
    """A server was killed here."""


class Three:
    """A server that gives half of its rows away, its keeper, and who takes them; its keeper is the
    giver. What is left when one of them is killed at a message is recovered as the first server
    does it."""

    def __init__(self, folder: str) -> None:
        self.run = Run()
        self.giver, self.keeper = self.run.source, self.run.keeper
        self.taker = LocalServer("c:1", copy_folder=f"{folder}/c" if folder else "")
        self.events: list[str] = []
        self.at, self.dies = 0, list[LocalServer]()
        self.dead: list[LocalServer] = []
        self.giver.backups.copier = self._copier_of(self.giver, self.keeper)
        self.taker.backups.copier = self._copier_of(self.taker, self.giver)
        self.giver.member.owners.keeper, self.taker.member.owners.keeper = "b:1", "a:1"
        for one in (self.giver, self.keeper, self.taker):
            one.share.epoch, one.member.service.leased_until = "e", float("inf")

    def _copier_of(self, one: LocalServer, keeper: LocalServer) -> Copier:
        return Copier(
            one.life,
            lambda: Served(one.holder, "e", keeper.member.address, keeper.life),
            lambda _: self._stub(one, keeper),
        )

    def _stub(self, caller: LocalServer, called: LocalServer) -> Direct:
        def told(event: str) -> None:
            self.events.append(event)
            if len(self.events) == self.at:
                self.dead = self.dies
            if caller in self.dead:
                raise DiedError(event)
            if called in self.dead:
                raise BrokenError(event)

        return Direct(called, told)

    async def train(self, dies: str = "", at: int = 0) -> State:
        """Push, copy, move and copy again, while some die at a message; return all rows as they
        were."""
        for _ in range(10):
            self.run.push()
        assert self.giver.backups.copier is not None and self.taker.backups.copier is not None
        await self.giver.backups.copier.copy()
        self.events, self.at = [], at
        self.dies = [getattr(self, one) for one in dies.split(" and ") if one]
        held = rows(self.giver.holder)
        with contextlib.suppress(DiedError):
            await self.giver.backups.copier.copy()
            stub = self._stub(self.giver, self.taker)
            await given_to(self.taker, self.giver, HALF, stub, lambda: self.taker in self.dead)
            await self.taker.backups.copier.copy()
            await self.giver.backups.copier.copy()
            await self.heed()
        return held

    async def heed(self) -> None:
        for one in (self.giver, self.keeper, self.taker):
            found = outdated(self._present([self.giver, self.keeper, self.taker]), one.life)
            await one.backups.heed(messages.Owners(outdated=[copy_message(kept) for kept in found]))

    def _present(self, living: list[LocalServer]) -> list[Server]:
        return [one.itself() for one in living]

    async def recover(self) -> State:
        """Have the living adopt what the dead held; return all rows then."""
        living = [one for one in (self.giver, self.keeper, self.taker) if one not in self.dies]
        over = {one.life: 0.0 for one in self.dies}
        for one in living:
            await one.backups.heed(messages.Owners(gone=list(over)))
        turn = 10
        while (found := next_adoption(self._present(living), over, {})) is not None:
            assert found.may_begin
            keeper = next(one for one in living if one.life == found.keeper.life)
            turn += 1
            request = messages.AdoptRequest(
                life=keeper.life,
                source=found.kept.life,
                buckets=pack(found.kept.buckets),
                given=found.kept.given,
                epoch="e",
                turn=turn,
            )
            assert (await keeper.backups.Adopt(request, None)).adopted
        held = sum(one.holder.held.astype(int) for one in living)
        assert (held == 1).all(), "a bucket is held by none, or by two"
        state: State = {}
        for one in living:
            if "items" in one.holder.tables:
                mine = rows(one.holder)
                state |= {key: row for key, row in mine.items() if one.holder.held[where(key)]}
        return state


@pytest.mark.parametrize("lost", ["giver", "taker", "keeper", "giver and taker"])
async def test_no_row_is_lost_where_servers_are_killed_at_each_message_of_a_move(
    lost: str,
) -> None:
    whole = Three(Run.folder)
    held = await whole.train()
    assert whole.events.count("after Take") == 1 and whole.events.count("after Keep") > 4
    assert not whole.giver.share.given(), "what has a copy elsewhere isn't kept"
    for at in range(1, len(whole.events) + 1):
        three = Three(Run.folder)
        held = await three.train(lost, at)
        assert await three.recover() == held, whole.events[at - 1]


async def test_order_that_comes_late_is_not_obeyed() -> None:
    """The first server may have given it to another one, as this one was silent."""
    run = Run()
    run.push()
    await run.copier.copy()
    run.keeper.member.service.leased_until = 0.0
    assert await run.adopted(np.arange(BUCKETS)) is None and not run.keeper.holder.held.any()
    run.keeper.member.service.leased_until = float("inf")
    assert await run.adopted(np.arange(BUCKETS)) is not None


async def test_rows_of_an_older_epoch_are_not_copied() -> None:
    run = Run()
    run.push()
    run.keeper.share.epoch = "newer"
    await run.copier.copy()
    assert run.keeper.backups.copies.kept() == []


async def test_copy_on_a_full_disk_is_none_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "folder", str(tmp_path))
    run = Run()
    run.push()
    await run.copier.copy()
    (log,) = run.keeper.backups.copies._whole.values()
    assert isinstance(log, CopyLog)
    log._file.close()
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(log, "_file", full)
        run.push()
        await run.copier.copy()
        assert run.keeper.backups.copies.kept() == [], "it might have a part of a moment"
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
    assert not list(tmp_path.glob("x")) and LocalServer("c:1", copy_folder=str(tmp_path))
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
    assert run.keeper.backups.copies.kept() == [] and not run.keeper.holder.held.any()


def test_rows_want_a_copy_until_it_is_told_that_nobody_keeps_one() -> None:
    holder = LocalServer("a:1").holder
    holder.held[:3] = True
    copier = Copier("life", lambda: Served(holder, "e", "", "", is_told), lambda _: None)
    is_told = False
    assert np.flatnonzero(copier.uncopied()).tolist() == [0, 1, 2]
    is_told = True
    assert not copier.uncopied().any()
