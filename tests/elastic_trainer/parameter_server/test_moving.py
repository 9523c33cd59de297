"""A move that breaks at each of its messages: no row is lost, doubled or updated twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.embeddings.table import Table, TableSettings
from elastic_trainer.parameter_server import changes, giving, parts
from elastic_trainer.parameter_server.giving import Giving
from elastic_trainer.parameter_server.holder import Gradients, Verdict
from elastic_trainer.parameter_server.moving import Order, give
from elastic_trainer.parameter_server.parts import pushes_in, rows_of
from elastic_trainer.parameter_server.server import ParameterServer
from elastic_trainer.parameter_server.wire import pack, unpack, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

from tests.elastic_trainer.parameter_server.servers import BrokenError, Direct, LocalServer

SETTINGS = TableSettings(
    "items", 4, Adagrad(lr=0.1), dtype=torch.float64, admit_after=2, evict_idle=7, evict_every=3
)
MOVED = np.arange(0, BUCKETS, 3)


async def given_to(
    taker: LocalServer,
    source: LocalServer,
    given: np.ndarray,
    stub: Direct | None = None,
    is_gone: Callable[[], bool] = lambda: False,
) -> bool:
    """Have buckets moved by turn 1."""
    to = stub or Direct(taker, lambda _: None)
    order = Order(given, source.life, taker.life, to, "e", 1, is_gone)
    return await give(source.share, order)


class Run:
    """Two servers of which the first gives to the second while pushes go on, and one table."""

    def __init__(self) -> None:
        self.source, self.target = (LocalServer(f"{one}:1") for one in "ab")
        self.source.holder.held[:] = True
        self.expected = Table(SETTINGS)
        self.draw = np.random.default_rng(5)
        self.sequence = 0
        for one in (self.source, self.target):
            one.holder.add_table(write_settings(SETTINGS))
            one.holder.clocks.open("w", 0, 0.0)

    def push(self, *, twice: bool = False) -> None:
        """Push to whoever holds what, as a worker does."""
        self.sequence += 1
        ids = np.unique(self.draw.integers(0, 300, 40)) * 10**9
        sums = torch.from_numpy(self.draw.normal(size=(len(ids), 4)))
        seen = np.ones(len(ids), dtype=np.int64)
        parts = []
        for one in (self.source, self.target):
            mine = one.holder.held[buckets(ids)]
            part = Gradients("items", ids[mine], seen[mine], sums[torch.from_numpy(mine)], 0.1)
            parts.append((one, part))
        for one, part in parts:
            verdicts = [one.holder.push("w", self.sequence, [part], 0.0) for _ in range(1 + twice)]
            assert verdicts == [Verdict.DONE] * (1 + twice)
        self.expected.update(ids, seen, sums, 0.1)

    async def move(self, breaks_at: int, *, pushes: bool = True) -> tuple[bool, int]:
        """Return whether it was given, and how many messages there were."""
        count = 0

        def at(event: str) -> None:
            nonlocal count
            count += 1
            if pushes and not self.source.holder.frozen.any():
                self.push(twice=count % 2 == 0)
            if count == breaks_at:
                raise BrokenError(event)

        stub = Direct(self.target, at)
        left = MOVED[self.source.holder.held[MOVED]]
        return await given_to(self.target, self.source, left, stub), count

    def check(self) -> None:
        held = self.source.holder.held.astype(int) + self.target.holder.held.astype(int)
        assert (held == 1).all(), "a bucket is held by none, or by two"
        assert not self.source.holder.frozen.any()
        found = {}
        for one in (self.source, self.target):
            mine = np.flatnonzero(one.holder.held).tolist()
            entries = one.holder.tables["items"].entries(mine)
            for number, row in enumerate(entries.ids.tolist()):
                assert row not in found
                found[row] = torch.cat([entries.weights[number], entries.state[number]])
        wanted = self.expected.entries()
        assert sorted(found) == wanted.ids.tolist()
        rows = torch.stack([found[one] for one in wanted.ids.tolist()])
        assert torch.equal(rows, torch.cat([wanted.weights, wanted.state], 1))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 64)
    monkeypatch.setattr(changes, "FEW_ROWS", 8)
    monkeypatch.setattr(giving, "HOT_ROWS", 8)
    monkeypatch.setattr(changes, "ROUNDS", 2)  # rows change until buckets are frozen


async def test_rows_that_went_on_from_a_copy_are_known_as_such_wherever_they_move() -> None:
    run = Run()
    for _ in range(5):
        run.push()
    of, ids = MOVED[::2], np.array(sorted(run.expected.entries().ids.tolist()))
    run.source.holder.adopted[of] = 3
    await run.move(0)
    holder = run.target.holder
    assert np.array_equal(np.flatnonzero(holder.adopted == 3), of)
    some, others = (ids[np.isin(buckets(ids), which)] for which in (of, np.setdiff1d(MOVED, of)))
    assert len(some) and len(others)

    def pull(ids: Ids, adopted: int) -> Verdict:
        return holder.pull("w", "items", ids, 0, -1, 0.0, adopted=adopted)[0]

    assert pull(some, 3) == pull(others, 2) == Verdict.DONE
    with pytest.raises(ValueError, match="go on from a copy"):
        pull(some, 2)
    part = Gradients("items", some, np.ones(len(some), dtype=np.int64), torch.ones(len(some), 4), 1)
    with pytest.raises(ValueError, match="go on from a copy"):
        holder.push("w", 99, [part], 0.0, adopted=2)
    run.check()


async def test_hot_rows_that_change_are_copied_once_their_buckets_are_frozen() -> None:
    run = Run()
    hot = np.arange(4000, 4400, dtype=np.int64)
    hot = hot[np.isin(buckets(hot), MOVED)][:6]
    others = np.arange(200, dtype=np.int64)
    others = others[np.isin(buckets(others), MOVED)]
    sent: list[tuple[bool, list[int]]] = []

    def push(ids: Ids) -> None:
        run.sequence += 1
        ones = np.ones(len(ids), dtype=np.int64)
        sums = torch.ones(len(ids), 4, dtype=torch.float64)
        part = Gradients("items", ids, ones, sums, 0.1)
        assert run.source.holder.push("w", run.sequence, [part], 0.0) == Verdict.DONE

    class Watched(Direct):
        async def Receive(self, request: Any, timeout: float) -> Any:  # noqa: N802
            if not run.source.holder.frozen.any():
                push(np.union1d(hot, others))
            sent.append((bool(run.source.holder.frozen.any()), unpack(request.ids).tolist()))
            return await self._answers.Receive(request, None)

    for _ in range(3):
        push(np.union1d(hot, np.arange(200, dtype=np.int64)))
        push(hot)
    stub = Watched(run.target, lambda event: None)
    assert await given_to(run.target, run.source, MOVED, stub)
    for one in hot.tolist():
        assert [frozen for frozen, ids in sent if one in ids] == [True]
    assert any(ids for frozen, ids in sent if not frozen)
    table = run.target.holder.tables["items"]
    assert set(hot.tolist()) <= set(table.entries().ids.tolist())


@pytest.mark.parametrize("large", [1, 1000])
async def test_rows_are_given_while_pushes_go_on(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`large`: rows of a bucket beyond which it doesn't go whole."""
    monkeypatch.setattr(parts, "LARGE_ROWS", large)
    run = Run()
    for _ in range(10):
        run.push()
    given, count = await run.move(0)
    assert given and count > 10
    for _ in range(10):
        run.push(twice=True)
    run.check()
    assert run.target.holder.held.sum() == len(MOVED)


@pytest.mark.parametrize("late", [False, True])
async def test_connection_breaks_at_each_message(late: bool) -> None:
    """`late`: at the Take's, too, whose answer alone says who holds the buckets."""
    probe = Run()
    for _ in range(10):
        probe.push()
    _, count = await probe.move(0)
    for breaks_at in range(count - 1, count + 1) if late else range(1, count - 1):
        run = Run()
        for _ in range(10):
            run.push()
        given, _ = await run.move(breaks_at)
        assert given is late
        for _ in range(5):
            run.push(twice=True)
        run.check()
        if not given:  # and once more, from the beginning
            assert (await run.move(0))[0]
            run.check()


async def test_giver_keeps_its_rows_where_the_taker_was_started_again() -> None:
    run = Run()
    for _ in range(3):
        run.push()
    restarted = LocalServer("b:1")

    async def move() -> bool:
        stub = Direct(restarted, lambda _: None)
        return await given_to(run.target, run.source, MOVED, stub)

    assert not await asyncio.wait_for(move(), 120)
    run.check()


async def test_push_to_a_frozen_bucket_is_put_off_and_one_to_a_given_one_refused() -> None:
    run = Run()
    run.push()
    ids = np.arange(300) * 10**9
    moved: Ids = ids[np.isin(buckets(ids), MOVED)][:1]
    ones = torch.ones(1, 4, dtype=torch.float64)
    part = Gradients("items", moved, np.ones(1, dtype=np.int64), ones, 0.1)
    seen = []

    def at(event: str) -> None:
        if event == "before Take":
            seen.append(run.source.holder.push("w", 100, [part], 0.0))

    stub = Direct(run.target, at)
    assert await given_to(run.target, run.source, MOVED, stub)
    assert seen == [Verdict.LATER]
    assert run.source.holder.push("w", 100, [part], 0.0) is Verdict.NOT_OWNER
    assert run.target.holder.push("w", 100, [part], 0.0) is Verdict.DONE
    before = run.target.holder.tables["items"].entries()
    assert run.target.holder.push("w", 100, [part], 0.0) is Verdict.DONE
    assert torch.equal(run.target.holder.tables["items"].entries().weights, before.weights)


async def test_push_that_the_giver_took_changes_nothing_in_the_taker() -> None:
    run = Run()
    for _ in range(3):
        run.push()
    entries = run.source.holder.tables["items"].entries(MOVED.tolist())
    ids = entries.ids.numpy()
    ones = torch.ones(len(ids), 4, dtype=torch.float64)
    part = Gradients("items", ids, np.ones(len(ids), dtype=np.int64), ones, 0.1)
    assert len(ids) and run.source.holder.push("w", 50, [part], 0.0) is Verdict.DONE
    assert (await run.move(0, pushes=False))[0]
    before = run.target.holder.tables["items"].entries()
    assert run.target.holder.push("w", 50, [part], 0.0) is Verdict.DONE
    assert torch.equal(run.target.holder.tables["items"].entries().weights, before.weights)
    assert run.target.holder.push("w", 51, [part], 0.0) is Verdict.DONE
    assert not torch.equal(run.target.holder.tables["items"].entries().weights, before.weights)


async def test_step_that_comes_in_two_parts_counts_once() -> None:
    run = Run()
    for _ in range(5):
        run.push()
    table = run.source.holder.tables["items"]
    ids, before = table.entries().ids.numpy(), table.step
    assert len(ids) > 9
    for part in (ids[:3], ids[3:9]):
        ones = torch.ones(len(part), 4, dtype=torch.float64)
        given = Gradients("items", part, np.ones(len(part), dtype=np.int64), ones, 0.1)
        assert run.source.holder.push("w", 77, [given], 0.0) is Verdict.DONE
    assert table.step == before + 1 and run.source.holder.steps == 6
    assert set(table.entries().last[:9].tolist()) == {before + 1}


async def test_rows_of_an_older_epoch_are_neither_given_nor_taken() -> None:
    """Else a move from before a load could bring a server back to what it was told to forget."""
    run = Run()
    for _ in range(3):
        run.push()
    run.target.share.epoch = "newer"
    assert not (await run.move(0))[0]
    run.check()
    request = messages.GiveRequest(buckets=pack(MOVED), epoch="newer")
    assert not (await run.source.moves.Give(request, None)).given
    run.check()


async def test_rows_that_come_back_before_they_are_forgotten_stay() -> None:
    run = Run()
    for _ in range(10):
        run.push()
    source, target = run.source.share, run.target.holder
    giving = Giving(source, MOVED)
    run.target.share.adopt(source.holder, MOVED)
    giving.end(taker="taker")
    back, comes = np.split(MOVED, 2)
    source.adopt(target, back)
    target.held[back] = False
    assert source.expect("back", comes, "taker")
    ids = target.tables["items"].entries(comes.tolist()).ids.numpy()
    for rows in rows_of(target, {"items": ids}):
        assert source.receive(messages.ReceiveRequest(move="back", **rows))
    source.forget("taker", MOVED, np.zeros(len(MOVED), dtype=np.int64))
    assert source.take(messages.TakeRequest(move="back", **pushes_in(target, comes)))
    target.held[comes] = False
    run.check()
    assert len(source.holder.tables["items"]) == len(run.expected)


async def test_rows_that_were_given_are_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that comes late may have the first server order what another one holds by now."""
    run = Run()
    for _ in range(3):
        run.push()
    assert (await run.move(0))[0]
    third = LocalServer("c:1")
    monkeypatch.setattr(run.source.member.stubs, "of", lambda _: Direct(third, lambda _: None))
    request = messages.GiveRequest(buckets=pack(MOVED), address="c:1", life=third.life, turn=2)
    assert not (await run.source.moves.Give(request, None)).given
    assert not third.holder.held.any()
    run.check()


async def test_who_has_taken_rows_since_its_last_word_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was sent SIGTERM while they were on their way, and had nothing when it said so."""
    run = Run()
    for _ in range(3):
        run.push()
    reports = taken = 0
    heard = asyncio.Event()

    class First:
        async def Report(self, report: Any, timeout: float) -> Any:  # noqa: N802
            nonlocal reports, taken
            reports += 1
            if reports == 2:
                heard.set()
            holds = np.frombuffer(report.held, dtype=np.int8).any()
            taken += (await run.move(0, pushes=False))[0]
            return messages.Owners(released=report.leaving and not holds)

    monkeypatch.setattr(run.target.member.stubs, "of", lambda _: First())
    run.target.member.leave()
    follows = asyncio.create_task(run.target.part.run())
    await heard.wait()  # until it says something again, after all that it does on an answer
    assert taken and not run.target.member.ended.is_set()
    run.check()
    follows.cancel()


async def test_why_the_first_server_hears_nothing_of_another_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as of one that was told to join another than the first."""
    server, enough = ParameterServer("c:1", "b:1", ""), asyncio.Event()
    refusals = 0

    class Second:
        async def Report(self, report: Any, timeout: float) -> Any:  # noqa: N802
            nonlocal refusals
            refusals += 1
            if refusals == 3:
                enough.set()
            nothing = grpc.aio.Metadata()
            code = grpc.StatusCode.FAILED_PRECONDITION
            raise grpc.aio.AioRpcError(code, nothing, nothing, "b:1 isn't the first server")

    monkeypatch.setattr(server.member.stubs, "of", lambda _: Second())
    follows = asyncio.create_task(server.part.run())
    await enough.wait()
    follows.cancel()
    said = [one.getMessage() for one in caplog.records]
    assert said == ["trying again to report to b:1: b:1 isn't the first server"]


async def test_who_ends_takes_nothing() -> None:
    run = Run()
    for _ in range(3):
        run.push()
    run.target.member.ended.set()
    assert not (await run.move(0))[0]
    run.check()


async def test_steps_of_a_table_go_on_where_none_of_its_rows_came() -> None:
    """Else its next rows there looked as if nobody had asked for them for long."""
    run, taker = Run(), LocalServer("c:1")
    for sequence in range(1, 6):
        assert run.source.holder.push("w", sequence, [nothing()], 0.0) is Verdict.DONE
    assert await given_to(taker, run.source, MOVED)
    assert taker.holder.tables["items"].step == run.source.holder.tables["items"].step == 5


def nothing() -> Gradients:
    """Return what a worker sends to a holder that has none of a step's rows."""
    none = np.empty(0, dtype=np.int64)
    return Gradients("items", none, none, torch.empty(0, 4, dtype=torch.float64), 0.1)
