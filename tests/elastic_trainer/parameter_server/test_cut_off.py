"""Servers that are killed and cut off: rows go on from the newest that are left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.hashing import Ids, buckets
from elastic_trainer.embeddings.row_optimizer import SGD
from elastic_trainer.embeddings.table import Table, TableSettings
from elastic_trainer.parameter_server import changes, moving, parts
from elastic_trainer.parameter_server.copying import Copier
from elastic_trainer.parameter_server.holder import Gradients, Verdict
from elastic_trainer.parameter_server.moving import Order
from elastic_trainer.parameter_server.placement import (
    NEVER_COPIED,
    Server,
    keeper,
    newest_copied,
    next_adoption,
    outdated,
)
from elastic_trainer.parameter_server.reports import copy_message
from elastic_trainer.parameter_server.wire import pack, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.parameter_server.servers import BrokenError, Direct, LocalServer
from tests.examples import examples

SETTINGS = TableSettings("items", 1, SGD(lr=1.0), dtype=torch.float64)
IDS: Ids = np.arange(40, dtype=np.int64) * 10**9
COUNT = 4
"""Servers."""

Counts = dict[int, int]
"""By id, how many pushes its row has."""


class DiedError(Exception):
    """Ends what a killed server was doing."""


class World:
    """Servers in one process, of which the first one holds all rows, and what connects them. The
    first server's part is done by `tick`, which hears all that live."""

    def __init__(self) -> None:
        self.servers: list[LocalServer] = [self._started(place) for place in range(COUNT)]
        self.dead: dict[str, float] = {}
        self.cuts: dict[tuple[str, str], str] = {}
        """By both addresses, what is lost: a request ("before") or its answer ("after")."""
        self.turn, self.pushes = 10, 0
        self.keepers: dict[str, str] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.floor: Counts = {}
        """Pushes left of each row when a server was killed last."""
        self.copied = NEVER_COPIED
        self.servers[0].holder.held[:] = True
        self.servers[0].holder.turns[:] = 1

    def _started(self, place: int) -> LocalServer:
        one = LocalServer(f"s{place}:1")
        one.holder.add_table(write_settings(SETTINGS))
        one.holder.clocks.open("w", 0, 0.0)
        one.share.epoch, one.member.service.leased_until = "e", float("inf")
        one.backups.copier = Copier(
            one.life,
            one.backups.served,
            lambda address: self._stub(one, address),
        )
        return one

    def _stub(self, caller: LocalServer, address: str) -> Direct:
        called = next(one for one in self.servers if one.member.address == address)

        def told(event: str) -> None:
            if caller.life in self.dead:
                raise DiedError(event)
            lost = self.cuts.get((caller.member.address, address), "")
            if called.life in self.dead or (lost and event.startswith(lost)):
                raise BrokenError(event)

        return Direct(called, told)

    def present(self) -> list[Server]:
        return [one.itself() for one in self.servers]

    # ---- what happens

    def push(self) -> None:
        self.pushes += 1
        for one in self.servers:
            mine = IDS[one.holder.held[buckets(IDS)] & ~one.holder.frozen[buckets(IDS)]]
            part = Gradients(
                "items", mine, np.ones(len(mine), np.int64), torch.ones(len(mine), 1).double(), 0.1
            )
            assert one.holder.push("w", self.pushes, [part], 0.0) is Verdict.DONE

    def copy(self, place: int) -> None:
        copier = self.servers[place].backups.copier
        assert copier is not None
        self._begin(copier.copy())

    def move(self, source: int, target: int) -> None:
        """Have half of the source's buckets moved, where the first server would."""
        gives, takes = self.servers[source], self.servers[target]
        present = self.present()
        of = np.flatnonzero(gives.holder.held)[::2]
        waits = gives.moves.giving or np.isin(of, present[source].uncopied).any()
        if source == target or waits or any(one.giving for one in present) or not len(of):
            return
        self.turn += 1
        order = Order(
            of,
            gives.life,
            takes.life,
            _AtAddress(lambda: self._stub(gives, takes.member.address)),
            "e",
            self.turn,
            lambda: takes.life in gives.member.owners.gone,
        )
        move = gives.moves.begin(order)
        self._begin(move)

    def cut(self, source: int, target: int, lost: str) -> None:
        self.cuts[f"s{source}:1", f"s{target}:1"] = lost

    def heal(self) -> None:
        self.cuts.clear()

    def restart(self, place: int) -> None:
        """Kill a server, and start another one at its address."""
        self.dead[self.servers[place].life] = 0.0
        self.servers[place] = self._started(place)
        self.floor = self.left()

    def hear(self) -> None:
        """Have the first server hear all, before it says anything to them."""
        self.copied = newest_copied(self.present(), self.copied)

    async def tick(self) -> None:
        """Do what the first server does, once."""
        self.hear()
        present = self.present()
        for one in self.servers:
            keeps = keeper(present, one.life, self.keepers.get(one.life, ""))
            assert keeps is not None
            self.keepers[one.life] = keeps.life
            one.member.owners = messages.Owners(
                gone=list(self.dead),
                keeper=keeps.address,
                keeper_life=keeps.life,
                outdated=[copy_message(kept) for kept in outdated(present, one.life)],
            )
            await one.backups.heed(one.member.owners)
        present = self.present()
        found = next_adoption(present, self.dead, self.keepers, self.copied)
        if found is None or not found.may_begin or any(one.giving for one in present):
            return
        self.turn += 1
        adopts = next(one for one in self.servers if one.life == found.keeper.life)
        request = messages.AdoptRequest(
            life=adopts.life,
            source=found.kept.life,
            buckets=pack(found.kept.buckets),
            given=found.kept.given,
            epoch="e",
            turn=self.turn,
        )
        assert (await adopts.backups.Adopt(request, None)).adopted

    def _begin(self, doing: Any) -> asyncio.Task[Any]:
        async def done() -> Any:
            with contextlib.suppress(DiedError):
                return await doing

        self.tasks.append(asyncio.get_running_loop().create_task(done()))
        return self.tasks[-1]

    async def goes_on(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def recover(self) -> None:
        """Let what was begun come to its end, and all rows be held."""
        self.heal()
        for _ in range(30):
            await self.goes_on(20)
            await self.tick()
        await asyncio.gather(*self.tasks)
        await self.tick()

    # ---- what is so

    def held(self) -> Counts:
        """Return the rows that are held; by whom has to be one each."""
        serving = [one.holder.held & ~one.holder.frozen for one in self.servers]
        assert np.sum(serving, axis=0).max() <= 1, "a bucket has two holders"
        found: Counts = {}
        for one in self.servers:
            found |= _counts(one.holder.tables["items"], one.holder.held & ~one.holder.frozen)
        return found

    def left(self) -> Counts:
        """Return the newest rows that are in the memory of any server, where it answers for
        them, and they aren't too old to go on from."""
        found: Counts = {}
        for one in self.servers:
            # Frozen ones may have been taken, and copied, by who was lost with its copy since.
            uncertain = one.holder.frozen.copy()
            for of in one.share.given().values():
                uncertain[of] = True
            new = uncertain & (one.holder.turns >= self.copied)
            certain = one.holder.held & ~one.holder.frozen
            _newest(found, _counts(one.holder.tables["items"], certain | new))
            for _, copy in one.backups.copies._all():
                if "items" in copy.holder().tables:
                    new = copy.held & (copy.turns >= self.copied)
                    _newest(found, _counts(copy.holder().tables["items"], new))
        return found


class _AtAddress:
    """A stub of whichever server is at an address when it is called."""

    def __init__(self, stub: Callable[[], Direct]) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        return lambda request, timeout=None: getattr(self._stub(), name)(request, timeout)


def _counts(table: Table, of: np.ndarray) -> Counts:
    entries = table.entries(np.flatnonzero(of).tolist())
    return dict(zip(entries.ids.tolist(), entries.seen.tolist(), strict=True))


def _newest(found: Counts, others: Counts) -> None:
    for one, count in others.items():
        found[one] = max(count, found.get(one, 0))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with _small():
        yield


@contextlib.contextmanager
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_ROWS", 8)
        patch.setattr(changes, "FEW_ROWS", 2)
        patch.setattr(changes, "ROUNDS", 2)
        patch.setattr(moving, "RETRY_SECONDS", 0.0)
        yield


@pytest.mark.parametrize("restarted", [False, True])
async def test_giver_that_was_cut_off_holds_no_old_rows_once_the_taker_is_lost(
    restarted: bool,
) -> None:
    """The taker had taken them, others have pushed since, and there is a copy of that."""
    world = World()
    await world.tick()
    for _ in range(3):
        world.push()
    world.copy(0)
    await world.goes_on(100)
    world.cut(0, 2, "after Take")
    world.move(0, 2)
    await world.goes_on(100)
    assert world.servers[2].holder.held.any() and world.servers[0].holder.frozen.any()
    for _ in range(4):
        world.push()
    world.copy(2)
    await world.goes_on(100)
    world.restart(2)
    if not restarted:
        world.cut(0, 2, "before")
    await world.recover()
    moved = set(world.held().values())
    assert moved == {3 + 4} and len(world.held()) == len(IDS)


async def test_rows_older_than_a_lost_copy_are_not_gone_on_from() -> None:
    """Their giver still has them, as it hasn't heard that there was a copy of later ones."""
    world = World()
    await world.tick()
    for _ in range(3):
        world.push()
    world.copy(0)
    await world.goes_on(100)
    world.move(0, 2)
    await world.goes_on(100)
    for _ in range(4):
        world.push()
    world.copy(2)
    await world.goes_on(100)
    world.hear()
    assert world.servers[0].share.given() and not len(world.present()[2].uncopied)
    for place in (2, 3):  # who took them, and who had the copy
        world.restart(place)
    await world.recover()
    assert set(world.held().values()) == {3 + 4} and 0 < len(world.held()) < len(IDS)


PLACES = st.integers(0, COUNT - 1)
SOME = st.integers(1, 30)
LONG = st.sampled_from([5, 20, 100])
Event = tuple[Any, ...]


@st.composite
def episodes(draw: st.DrawFn) -> list[Event]:
    """A move that something happens to, in the order in which it can matter."""
    source, target = draw(st.sampled_from([(a, b) for a in range(4) for b in range(4) if a != b]))
    lost = draw(st.sampled_from(["", "before", "after", "before Take", "after Take"]))
    found: list[Event] = [("push",)] * draw(st.integers(0, 2))
    found += draw(st.sampled_from([[], [("copy", source), ("goes_on", 40)]]))
    move: list[Event] = [("move", source, target), ("goes_on", draw(LONG))]
    if lost:  # while it is on its way, or from the beginning
        move.insert(draw(st.integers(0, 2)), ("cut", source, target, lost))
    found += [*move, ("goes_on", draw(SOME))]
    found += [("push",)] * draw(st.integers(0, 3))
    found += draw(st.sampled_from([[], [("copy", target), ("goes_on", draw(LONG))]]))
    found += draw(st.sampled_from([[], [("hear",)], [("tick",)], [("push",)]]))
    dies = draw(st.sampled_from([[], [target], [source], [target, (target + 1) % COUNT]]))
    found += [("restart", place) for place in dies]
    found += draw(st.sampled_from([[], [("heal",)], [("tick",)], [("heal",), ("tick",)]]))
    return [*found, ("goes_on", draw(LONG))]


EVENTS = st.one_of(
    st.tuples(st.just("push")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("heal")),
    st.tuples(st.just("copy"), PLACES),
    st.tuples(st.just("restart"), PLACES),
    st.tuples(st.just("goes_on"), SOME),
)
ORDERS = st.lists(st.one_of(episodes(), st.lists(EVENTS, max_size=3)), min_size=1, max_size=5).map(
    lambda parts: [event for part in parts for event in part]
)


# A server that has taken rows, and is killed before it knows who is to keep a copy of them.
KILLED_UNKNOWING: list[Event] = [
    ("restart", 2),
    ("goes_on", 5),
    ("move", 0, 2),
    ("goes_on", 5),
    ("cut", 0, 2, "after"),
    ("goes_on", 1),
    ("hear",),
    ("restart", 2),
    ("goes_on", 5),
]

# A giver that never hears that its rows were taken, and copied: taker and keeper are lost.
TAKEN_UNHEARD: list[Event] = [
    ("move", 0, 1),
    ("goes_on", 5),
    ("cut", 0, 1, "after"),
    ("goes_on", 1),
    ("copy", 1),
    ("goes_on", 5),
    ("hear",),
    ("restart", 1),
    ("restart", 2),
    ("goes_on", 5),
]


@given(ORDERS)
@example(KILLED_UNKNOWING)
@example(TAKEN_UNHEARD)
@settings(max_examples=examples(200), deadline=None)
def test_rows_go_on_from_the_newest_that_are_left(events: list[Event]) -> None:
    async def run() -> None:
        world = World()
        await world.tick()
        world.push()
        for name, *places in events:
            happened = getattr(world, name)(*places)
            if happened is not None:
                await happened
            held = world.held()
            for one, count in held.items():
                assert world.floor.get(one, 0) <= count <= world.pushes, (name, places)
        await world.recover()
        held = world.held()
        assert {one: count for one, count in world.floor.items() if held.get(one, 0) < count} == {}

    with _small():
        asyncio.run(run())
