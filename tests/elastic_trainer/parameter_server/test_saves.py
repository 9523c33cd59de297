"""A base and what changed since are the rows as they were, wherever they were held meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.export import BASE, INCREMENT, begin, publish
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.row_optimizer import Adam
from elastic_trainer.embeddings.serving import ServingTables
from elastic_trainer.embeddings.table import TableSettings
from elastic_trainer.parameter_server import snapshot
from elastic_trainer.parameter_server.files import Saved, read_saves, write_file
from elastic_trainer.parameter_server.holder import Gradients, Holder, Verdict
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.parts import ids_in, pushes_in, rows_of
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.snapshot import Snapshot, TornError, read_in_parts
from elastic_trainer.parameter_server.wire import write_settings
from elastic_trainer.parameter_server.writer import Writer
from elastic_trainer.proto import parameter_server_pb2 as messages
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples

SETTINGS = TableSettings("items", 2, Adam(lr=0.1), admit_after=2, evict_idle=6, evict_every=4)
File = tuple[str, int, str]


class Servers:
    """Three holders, between which buckets move, and what they write."""

    def __init__(self, folder: Path) -> None:
        self.shares = [Share(Holder()) for _ in range(3)]
        self.holders = [one.holder for one in self.shares]
        self.holders[0].held[:] = True
        for one in self.holders:
            one.add_table(write_settings(SETTINGS))
            one.clocks.open("w", 0, 0.0)
        self.draw = np.random.default_rng(3)
        self.folder, self.step, self.count = folder, 0, 0
        self.pushes_between = False

    def push(self) -> None:
        self.step += 1
        ids = np.unique(self.draw.integers(0, 200, 40)) * 10**9
        for one in self.holders:
            mine = ids[one.held[buckets(ids)]]
            sums = torch.from_numpy(self.draw.normal(size=(len(mine), 2))).float()
            part = Gradients("items", mine, np.ones(len(mine), dtype=np.int64), sums, 0.1)
            assert one.push("w", self.step, [part], 0.0) is Verdict.DONE

    def move(self, source: int, target: int) -> None:
        giver, taker, move = self.holders[source], self.shares[target], f"m{self.count}"
        given = np.flatnonzero(giver.held)[::2]
        if source == target or not len(given):
            return
        self.count += 1
        assert taker.expect(move, given, "giver")
        for rows in rows_of(giver, ids_in(giver, given)):
            assert taker.receive(messages.ReceiveRequest(move=move, **rows))
        told = messages.TakeRequest(move=move, turn=self.count, **pushes_in(giver, given))
        assert taker.take(told)
        self.shares[source].gave("taker", given)
        self.shares[source].forget("taker", given, giver.turns[given])

    def hold_again(self, number: int) -> None:
        """Give buckets to who is lost with them, a step later."""
        share, given = self.shares[number], np.flatnonzero(self.holders[number].held)[::3]
        share.gave("lost", given)
        self.push()
        self.count += 1
        assert share.hold_again("lost", given, self.count) or not len(given)

    def adopt(self, source: int, target: int) -> None:
        """Have buckets go on as they were copied a step before."""
        lost, copy = self.holders[source], Share(Holder())
        given = np.flatnonzero(lost.held)[1::3]
        if source == target:
            return
        copy.adopt(lost, given)
        self.push()
        lost.held[given] = False
        lost.drop_rows(given)
        self.count += 1
        self.shares[target].adopt(copy.holder, given, self.count)

    def save(self, name: str, after: str) -> list[File]:
        files = []
        for number, one in enumerate(self.holders):
            held = np.flatnonzero(one.held)
            if len(held):
                since = self.shares[number].saves.begin(name, after, held)
                read = Snapshot(one.tables, held, since)
                for _ in read_in_parts(read.tables):
                    if self.pushes_between:
                        self.push()
                place = self.folder / name
                saved: Saved = write_file(str(place), str(number), read.contents())
                files.append((str(place / saved.name), saved.size, saved.digest))
        return files

    def rows(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for one in self.holders:
            found |= rows(one, np.flatnonzero(one.held))
        return found


def rows(holder: Holder, held: np.ndarray) -> dict[int, list[float]]:
    entries = holder.tables["items"].entries(held.tolist())
    columns = [entries.weights, entries.state, entries.seen, entries.last]
    found = {
        one: [number for part in parts for number in part.flatten().tolist()]
        for one, *parts in zip(entries.ids.tolist(), *columns, strict=True)
    }
    counts = [entries.candidates, entries.candidates_seen, entries.candidates_last]
    return found | {
        -one - 1: [seen, last]
        for one, seen, last in zip(*(part.tolist() for part in counts), strict=True)
    }


Event = st.one_of(
    st.just("push"),
    st.just("save"),
    st.just("lost save"),
    st.tuples(st.sampled_from(["move", "adopt", "again"]), st.integers(0, 2), st.integers(0, 2)),
)


@settings(max_examples=examples(40))
@given(st.lists(Event, max_size=25))
@example([("move", 0, 1), "push", "push", ("move", 1, 0), "push"])
@example(["push", ("again", 0, 0)])
@example([("adopt", 0, 1), "save", ("adopt", 1, 0)])
@example(["push", "lost save", "push", "save"])
def test_a_base_and_changes_are_the_rows_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, events: list[str | tuple[str, int, int]]
) -> None:
    servers = Servers(tmp_path_factory.mktemp("saves"))
    for _ in range(3):
        servers.push()
    saves, last = [servers.save("s0", "")], "s0"
    for number, event in enumerate([*events, "save"], 1):
        if event == "push":
            servers.push()
        elif event == "save":
            saves.append(servers.save(f"s{number}", last))
            last = f"s{number}"
        elif event == "lost save":
            # One that no commit came to name: the next one is after the same save again.
            servers.save(f"s{number}", last)
        else:
            assert isinstance(event, tuple)
            name, source, target = event
            if name == "again":
                servers.hold_again(source)
            else:
                (servers.move if name == "move" else servers.adopt)(source, target)
    found = read_saves(saves)
    assert found.held.all()
    assert rows(found, np.arange(BUCKETS)) == servers.rows()
    steps = [one.tables["items"].step for one in servers.holders if one.held.any()]
    assert found.tables["items"].step == max(steps)


def test_changes_are_small_and_refused_without_what_was_before(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    for _ in range(5):
        servers.push()
    base = servers.save("s0", "")
    nothing = servers.save("s1", "s0")
    assert nothing[0][1] < base[0][1] and rows(read_saves([base, nothing]), np.arange(BUCKETS))
    with pytest.raises(ValueError, match="has changes alone: expected the saves before it"):
        read_saves([nothing])
    unknown = servers.save("s2", "never heard of")
    assert rows(read_saves([unknown]), np.arange(BUCKETS)) == servers.rows(), "it has all rows"
    (file,) = base
    with pytest.raises(ValueError, match="is damaged: expected"):
        read_saves([[(file[0], file[1], "0" * 16)]])
    with pytest.raises(ValueError, match="that another file holds"):
        read_saves([[file, file]])


def test_a_save_that_is_asked_for_again_meanwhile_leaves_the_first_one_whole(
    tmp_path: Path,
) -> None:
    """Else a commit named a file that had become another's."""
    first, again = (write_file(str(tmp_path), "life", {"rows": number}) for number in range(2))
    for one, number in ((first, 0), (again, 1)):
        path = tmp_path / one.name
        assert path.stat().st_size == one.size and torch.load(path) == {"rows": number}
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("after", [False, True], ids=["base", "changes"])
def test_a_save_is_of_the_moment_it_began_though_pushes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Rows that are changed, admitted and evicted before their part is read, too."""
    monkeypatch.setattr(snapshot, "PART_ROWS", 16)
    servers = Servers(tmp_path)
    for _ in range(5):
        servers.push()
    saves = [servers.save("s0", "")] if after else []
    for _ in range(3 * after):
        servers.push()
    expected, step = servers.rows(), servers.step
    servers.pushes_between = True
    saves.append(servers.save("s1", "s0" if after else ""))
    assert servers.step > step + 5 and servers.rows() != expected
    assert rows(read_saves(saves), np.arange(BUCKETS)) == expected
    assert not servers.holders[0].tables["items"].watchers[2 + after :]
    servers.pushes_between = False
    saves.append(servers.save("s2", "s1"))  # what changed while the one before was read
    assert rows(read_saves(saves), np.arange(BUCKETS)) == servers.rows()


def test_a_save_whose_rows_went_to_another_server_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "PART_ROWS", 16)
    servers = Servers(tmp_path)
    for _ in range(5):
        servers.push()
    holder = servers.holders[0]
    read = Snapshot(holder.tables, np.flatnonzero(holder.held))
    parts = read_in_parts(read.tables)
    next(parts)
    servers.move(0, 1)
    with pytest.raises(TornError):
        list(parts)
    assert not holder.tables["items"].watchers


async def test_an_export_is_of_the_moment_it_began_though_pushes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "PART_ROWS", 16)
    servers, writer = Servers(tmp_path), Writer(Member("a:1"))
    for _ in range(5):
        servers.push()
    share, holder, folder = servers.shares[0], servers.holders[0], tmp_path / "exports"

    async def export(*, pushes: bool) -> ServingTables:
        place, number, base = begin(folder)
        request = messages.SaveRequest(
            place=str(place), export=str(folder), number=number, base=base
        )
        writing = asyncio.ensure_future(writer.write(request, share, holder.held.copy()))
        await asyncio.sleep(0)
        while pushes and not writing.done():
            servers.push()
            await asyncio.sleep(0)
        saved = await writing
        files = {saved.name: [saved.size, saved.digest]}
        publish(place, number, BASE if base else INCREMENT, servers.step, files)
        return ServingTables(folder)

    def weights() -> dict[int, list[float]]:
        found = holder.tables["items"].entries()
        return dict(zip(found.ids.tolist(), found.weights.tolist(), strict=True))

    def served(tables: ServingTables, ids: list[int]) -> dict[int, list[float]]:
        found = tables.rows("items", np.array(ids, dtype=np.int64))
        return dict(zip(ids, found.tolist(), strict=True))

    before, step = weights(), servers.step
    first = await export(pushes=True)
    assert servers.step > step + 5 and weights() != before
    assert served(first, list(before)) == before
    gone = [one for one in before if one not in weights()]
    second = await export(pushes=False)
    assert served(second, list(weights())) == weights(), "what changed meanwhile is in the next"
    assert gone, "some were evicted meanwhile"
    assert not holder.tables["items"].watchers[1:]
