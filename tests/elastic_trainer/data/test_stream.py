"""A stream's samples exactly once an epoch, whatever worlds read it and wherever they stop."""

from __future__ import annotations

import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.data.step_budget import Packing
from elastic_trainer.data.stream import ElasticStream
from elastic_trainer.data.stream_cursor import OpenUnit, StreamCursor
from elastic_trainer.data.unit_reader import ShardError
from elastic_trainer.ranks.process_group import ProcessGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.operation_count import operations

Taken = tuple[int, str, int]
"""Epoch, shard and index of a sample."""


class Ranks:
    """Ranks in threads of one process, who tell one another what real ones would."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)
        self.said: list[Any] = [None] * world
        self.world = world

    def run(self, body: Callable[[ProcessGroup], Any]) -> list[Any]:
        found: list[Any] = [None] * self.world

        def one(rank: int) -> None:
            try:
                found[rank] = body(ThreadGroup(rank, self.world, ranks=self))
            except BaseException as error:
                found[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
            raise error
        return found


class ThreadGroup(ProcessGroup):
    def __init__(self, rank: int, world: int, *, ranks: Ranks) -> None:
        super().__init__(rank, world)
        object.__setattr__(self, "ranks", ranks)

    def gather(self, value: Any) -> list[Any]:
        ranks: Ranks = self.ranks  # type: ignore[attr-defined]
        ranks.said[self.rank] = value
        ranks.barrier.wait()
        said = list(ranks.said)
        ranks.barrier.wait()
        return said

    def from_rank(self, source: int, value: Any) -> Any:
        return self.gather(value)[source]


def read(counts: Mapping[str, int]) -> Callable[[str], Iterator[tuple[str, int]]]:
    return lambda shard: ((shard, index) for index in range(counts[shard]))


def steps(
    counts: Mapping[str, int],
    world: int,
    state: Mapping[str, Any] | None,
    most: int | None,
    **given: Any,
) -> tuple[list[list[list[Taken]]], dict[str, Any]]:
    """Return what each rank took in each of `most` steps of this world, and the state after."""

    def body(group: ProcessGroup) -> Any:
        options = {"epochs": 2, "batch_size": 3, "shuffle": 5, **given}
        shards = options.pop("shards", list(counts))
        data = ElasticStream(shards, read=read(counts), collate=list, group=group, **options)
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        found: list[list[Taken]] = []
        own: list[Taken] = []
        if most == 0:
            return found, data.state_dict()
        for batch in data:
            if data.batch_samples:
                own += [(data.cursor.epoch, *sample) for sample in batch]
            if data.last:
                found.append(own)
                own = []
                data.applied()
                if len(found) == most:
                    break
        return found, data.state_dict()

    ranks = Ranks(world).run(body)
    assert all(state == ranks[0][1] for _, state in ranks), "ranks have different cursors"
    assert len({len(found) for found, _ in ranks}) == 1, "ranks made different numbers of steps"
    return [list(step) for step in zip(*(found for found, _ in ranks), strict=True)], ranks[0][1]


def all_of(counts: Mapping[str, int], epochs: int = 2) -> Counter[Taken]:
    return Counter(
        (epoch, shard, index)
        for epoch in range(epochs)
        for shard, count in counts.items()
        for index in range(count)
    )


def flat(taken: Sequence[Sequence[Sequence[Taken]]]) -> list[Taken]:
    return [sample for step in taken for rank in step for sample in rank]


counts_of = st.lists(st.integers(0, 23), min_size=1, max_size=7).filter(any)
lives = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=4)


class TestExactlyOnce:
    @settings(max_examples=examples(40))
    @given(
        counts=counts_of,
        lives=lives,
        last=st.integers(1, 4),
        shuffle=st.sampled_from([0, 1, 4, 100]),
        interleave=st.integers(1, 3),
        counted=st.booleans(),
        unit=st.sampled_from([None, 5]),
        size=st.sampled_from([{"batch_size": 3}, {"global_batch": 7, "batch_size": 2}]),
    )
    def test_each_sample_once_an_epoch_over_changes_of_the_world(
        self,
        counts: list[int],
        lives: list[tuple[int, int]],
        last: int,
        shuffle: int,
        interleave: int,
        counted: bool,
        unit: int | None,
        size: dict[str, int],
    ) -> None:
        named = {f"shard-{n}": count for n, count in enumerate(counts)}
        given_ = {
            "shards": named if counted else list(named),
            "shuffle": shuffle,
            "interleave": interleave,
            "unit": unit if counted else None,
            **size,
        }
        state: Mapping[str, Any] | None = None
        taken: list[Taken] = []
        for world, most in lives:
            found, state = steps(named, world, state, most, **given_)
            taken += flat(found)
        found, state = steps(named, last, state, None, **given_)
        assert Counter(taken + flat(found)) == all_of(named)
        assert state["epoch"] == 2
        assert state["samples"] == 2 * sum(counts)

    def test_a_resumed_run_in_the_same_world_is_the_same_run(self) -> None:
        counts = {"a": 31, "b": 0, "c": 7, "d": 18, "e": 1}
        whole, end = steps(counts, 3, None, None, interleave=2)
        for stop in range(1, len(whole)):
            before, state = steps(counts, 3, None, stop, interleave=2)
            after, final = steps(counts, 3, state, None, interleave=2)
            assert before + after == whole
            assert final == end

    def test_the_last_step_of_an_epoch_is_known_as_such(self) -> None:
        # Or a commit after it would call the epoch unfinished, with nothing left to train on.
        found, state = steps({"a": 6, "b": 0, "c": 0}, 2, None, None, epochs=1, shuffle=0)
        _, at = steps({"a": 6, "b": 0, "c": 0}, 2, None, len(found), epochs=1, shuffle=0)
        assert at == state
        assert (at["epoch"], at["open"]) == (1, [])

    def test_few_shards_of_known_counts_give_every_rank_something(self) -> None:
        counts = {"a": 40}
        found, _ = steps(counts, 4, None, 1, shards=counts, unit=10, epochs=1, shuffle=0)
        assert [len(rank) for rank in found[0]] == [3, 3, 3, 3]

    def test_shards_are_shuffled_and_so_are_their_samples(self) -> None:
        counts = {f"{n}": 10 for n in range(10)}
        epochs = [flat(steps(counts, 1, None, None, seed=seed)[0]) for seed in (1, 2)]
        plain = flat(steps(counts, 1, None, None, shuffle=0)[0])
        assert plain == sorted(plain)
        first = [sample[1:] for sample in epochs[0] if sample[0] == 0]
        second = [sample[1:] for sample in epochs[0] if sample[0] == 1]
        assert len({tuple(first), tuple(second), tuple(s[1:] for s in epochs[1][:100])}) == 3


class TestCursor:
    @given(
        units=st.integers(0, 12),
        owners=st.lists(st.integers(0, 3), max_size=6),
        world=st.integers(1, 5),
        each=st.integers(1, 3),
    )
    def test_units_are_handed_out_once_and_dealt_evenly(
        self, units: int, owners: list[int], world: int, each: int
    ) -> None:
        opened = tuple(OpenUnit(n, owner, taken=n + 1) for n, owner in enumerate(owners[:units]))
        cursor = StreamCursor(next=len(opened), open=opened, world=4).regrouped(world)
        after = cursor.granted(units, each)
        assert [one.number for one in after.open] == list(range(after.next))
        assert {one.number: one.taken for one in after.open[: len(opened)]} == {
            one.number: one.taken for one in opened
        }
        held = [sum(one.owner == rank for one in after.open) for rank in range(world)]
        assert all(0 <= one.owner < world for one in after.open)
        if after.next < units:
            assert min(held) >= each
        elif len(after.open) >= world:
            assert min(held) > 0
        assert after.granted(units, each) == after

    def test_what_it_costs_grows_no_faster_than_the_world(self) -> None:
        def begin(world: int) -> None:
            cursor = StreamCursor(world=world).granted(5 * world, 2)
            assert cursor.next == 2 * world

        def end(world: int) -> None:
            held = tuple(OpenUnit(number, number % (world // 2)) for number in range(world))
            cursor = StreamCursor(world=world, next=world, open=held).granted(world, 2)
            assert sorted(one.owner for one in cursor.open) == list(range(world))

        for moment in (begin, end):
            few, many = (operations(partial(moment, world)) for world in (40, 400))
            assert many < 15 * few

    def test_a_world_of_the_same_size_keeps_its_shards(self) -> None:
        cursor = StreamCursor(open=(OpenUnit(0, 1, 5),), next=1, world=2)
        assert cursor.regrouped(2) is cursor
        assert cursor.regrouped(1).open == (OpenUnit(0, 0, 5),)

    def test_a_cursor_survives_being_saved(self) -> None:
        counts = {"a": 9, "b": 9}
        _, state = steps(counts, 2, None, 2, shards=counts)
        cursor = StreamCursor.from_state(json.loads(json.dumps(state)))
        assert cursor.to_state() == {name: state[name] for name in cursor.to_state()}
        assert replace(cursor, step=0) != cursor


class TestGrowth:
    def test_an_epoch_keeps_its_list_and_the_next_one_has_the_new_shards(self) -> None:
        counts = {"a": 8, "b": 8}
        there = ["a"]
        _, state = steps(counts, 2, None, 1, shards=lambda: list(there), batch_size=2)
        there.append("b")  # in the midst of epoch 0
        found, _ = steps(counts, 3, state, None, shards=lambda: list(there), batch_size=2)
        rest = Counter(flat(found))
        assert {shard for epoch, shard, _ in rest if epoch == 0} == {"a"}
        assert {shard for epoch, shard, _ in rest if epoch == 1} == {"a", "b"}
        assert sum(rest.values()) == 8 - 2 + 16

    def test_rank_0_alone_looks(self) -> None:
        asked: list[int] = []

        def body(group: ProcessGroup) -> list[Any]:
            def look() -> list[str]:
                asked.append(group.rank)
                return ["a"] if group.rank == 0 else ["a", "another"]

            data = ElasticStream(
                look, read=read({"a": 4}), batch_size=2, epochs=1, collate=list, group=group
            )
            return [batch for batch in data if data.batch_samples]

        found = Ranks(2).run(body)
        assert asked == [0]
        assert sorted(sample for rank in found for batch in rank for sample in batch) == [
            ("a", 0), ("a", 1), ("a", 2), ("a", 3),
        ]  # fmt: skip


class TestWeights:
    def test_a_step_counts_every_sample_equally(self) -> None:
        counts = {"a": 10, "b": 3}

        def body(group: ProcessGroup) -> list[float]:
            data = ElasticStream(
                list(counts), read=read(counts), batch_size=2, global_batch=5, epochs=1,
                shuffle=0, collate=list, group=group,
            )  # fmt: skip
            found = []
            for batch in data:
                found += [data.weight / max(1, data.batch_samples)] * data.batch_samples
                assert batch, "a rank without samples takes part with a spare one"
                if data.last:
                    data.applied()
            return found

        found = [weight for rank in Ranks(2).run(body) for weight in rank]
        assert len(found) == 13
        assert sum(found) == pytest.approx(2 * 3)  # steps of 5, 5 and 3, each averaged over 2 ranks

    def test_random_numbers_belong_to_the_sample(self) -> None:
        def draws(world: int) -> dict[Any, float]:
            def body(group: ProcessGroup) -> list[Any]:
                data = ElasticStream(
                    ["a", "b"], read=read({"a": 5, "b": 5}), batch_size=2, epochs=1, collate=list,
                    transform=lambda sample: (sample, torch.rand(()).item()), group=group,
                )  # fmt: skip
                return [sample for batch in data if data.batch_samples for sample in batch]

            return dict(sample for rank in Ranks(world).run(body) for sample in rank)

        state = torch.get_rng_state()
        assert draws(1) == draws(1)
        assert torch.equal(state, torch.get_rng_state())


class TestWaiting:
    def test_a_rank_that_waits_for_another_one_waits_for_no_data(self) -> None:
        # Or all ranks would be slow in reading where one is.
        def body(group: ProcessGroup) -> float:
            def slow(shard: str) -> Iterator[int]:
                time.sleep(0.3 if shard == "b" else 0)
                yield from range(4)

            data = ElasticStream(
                ["a", "b"], read=slow, batch_size=2, epochs=1, shuffle=0, group=group
            )
            next(iter(data))
            return data.waited()

        first, second = Ranks(2).run(body)
        assert first < 0.3 <= second


class TestShardsThatFail:
    def failing(self, times: int, error: Exception) -> Callable[[str], Iterator[Any]]:
        left = [times]

        def opened(shard: str) -> Iterator[Any]:
            for index in range(10):
                if index == 4 and left[0]:
                    left[0] -= 1
                    raise error
                yield shard, index

        return opened

    def stream(self, read: Any, **given: Any) -> ElasticStream:
        options = {"batch_size": 2, "epochs": 1, "collate": list, "shuffle": 0, **given}
        return ElasticStream(options.pop("shards", ["a"]), read=read, **options)

    def test_an_error_that_passes_costs_no_sample(self) -> None:
        data = self.stream(self.failing(2, OSError(5, "Input/output error")))
        assert [index for batch in data for _, index in batch] == list(range(10))

    def test_one_that_stays_is_said_in_words_and_nothing_is_passed_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS", "0.2")
        data = self.stream(self.failing(10**6, OSError(5, "Input/output error")))
        with pytest.raises(ShardError, match=r"shard 'a' can't be read from sample 0 .*0\.2 s"):
            list(data)
        assert data.cursor.samples == 0

    def test_an_error_of_the_content_is_not_tried_again(self) -> None:
        data = self.stream(self.failing(1, ValueError("no JSON")))
        with pytest.raises(ShardError, match=r"shard 'a' .*ValueError: no JSON"):
            list(data)

    @pytest.mark.parametrize(
        ("count", "message"), [(11, "ended after 10 .*expected 11"), (9, "more than 9 samples")]
    )
    def test_a_count_that_is_wrong_is_said(self, count: int, message: str) -> None:
        data = self.stream(read({"a": 10}), shards={"a": count}, unit=4)
        with pytest.raises(ShardError, match=message):
            list(data)

    def test_a_shard_that_was_cut_meanwhile_is_said(self) -> None:
        _, state = steps({"a": 200}, 1, None, 60, shuffle=0)
        with pytest.raises(ShardError, match="has 70 samples: expected more than 128"):
            steps({"a": 70}, 1, state, None, shuffle=0)

    def test_an_epoch_without_samples_is_refused(self) -> None:
        with pytest.raises(ValueError, match="epoch 0 has no sample in its 2 shards"):
            steps({"a": 0, "b": 0}, 2, None, None)


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({}, "expected one kind of step"),
            ({"batch_size": 1, "max_tokens": 5}, "expected one kind of step"),
            ({"batch_size": 0}, "expected at least 1"),
            ({"batch_size": 1, "shuffle": -1}, "shuffle is -1"),
            ({"batch_size": 1, "shards": ["a", "a"]}, "1 shards are listed twice, such as 'a'"),
        ],
    )
    def test_what_makes_no_stream(self, given: dict[str, Any], error: str) -> None:
        with pytest.raises(ValueError, match=error):
            ElasticStream(given.pop("shards", ["a"]), read=read({}), epochs=1, **given)

    def test_a_single_name(self) -> None:
        with pytest.raises(TypeError, match=r"one name, 'a\.tar': expected a list"):
            ElasticStream("a.tar", read=read({}), epochs=1, batch_size=1)

    def test_a_state_of_another_order(self) -> None:
        counts = {"a": 20}
        _, state = steps(counts, 1, None, 1)
        for change in ({"seed": 3}, {"shuffle": 7}):
            with pytest.raises(ValueError, match="samples would be lost or repeated"):
                steps(counts, 1, state, 0, **change)
        with pytest.raises(ValueError, match="is an ElasticDataset's"):
            steps(counts, 1, {"epoch": 0, "position": 3, "step": 1, "seed": 0}, 0)


class HalfMesh:
    """Two ranks to each coordinate, as far as a stream asks a mesh."""

    def __init__(self, group: ProcessGroup) -> None:
        self.shape = (group.world // 2,)
        self._place = [group.rank // 2]

    def size(self) -> int:
        return self.shape[0]

    def get_coordinate(self) -> list[int]:
        return self._place


def test_ranks_of_one_coordinate_that_read_unlike_samples_are_told_so() -> None:
    def body(group: ProcessGroup) -> list[Any]:
        lengths = [3, 4] if group.rank == 3 else [4, 3]
        data = ElasticStream(
            ["a", "b"], read=lambda _: [[1] * length for length in lengths], max_tokens=6,
            epochs=1, group=group, mesh=lambda: HalfMesh(group),  # type: ignore[arg-type]
        )  # fmt: skip
        return list(data)

    with pytest.raises(ValueError, match="rank 3 has read something else than rank 2"):
        Ranks(4).run(body)


class TestTokens:
    """Documents whose tokens are all different: what was consumed is known to the token."""

    @settings(max_examples=examples(30))
    @given(
        counts=counts_of,
        lives=lives,
        last=st.integers(1, 4),
        pack=st.sampled_from([Packing(2, 7), Packing(1, 30), Packing(2, 13, cut=False)]),
        interleave=st.integers(1, 2),
    )
    def test_each_token_once_over_changes_of_the_world(
        self,
        counts: list[int],
        lives: list[tuple[int, int]],
        last: int,
        pack: Packing,
        interleave: int,
    ) -> None:
        documents: dict[str, list[list[int]]] = {}
        token = 1
        for shard, count in enumerate(counts):
            documents[str(shard)] = []
            for number in range(count):
                length = 1 + (5 * number + shard) % 13
                documents[str(shard)].append(list(range(token, token + length)))
                token += length
        state: Mapping[str, Any] | None = None
        seen: list[int] = []

        def body(group: ProcessGroup, most: int | None) -> Any:
            data = ElasticStream(
                list(documents), read=documents.__getitem__, pack=pack, epochs=1, shuffle=4,
                interleave=interleave, group=group,
            )  # fmt: skip
            if state is not None:
                data.load_state_dict(json.loads(json.dumps(state)))
            found: list[int] = []
            made = weights = 0.0
            for batch in data if most != 0 else ():
                if data.batch_samples or data.weight:
                    found += batch["input_ids"][batch["document_ids"] > 0].tolist()
                weights += data.weight
                made += 1
                data.applied()
                if made == most:
                    break
            return found, data.state_dict(), (made, weights)

        for world, most in [*lives, (last, None)]:
            ranks = Ranks(world).run(partial(body, most=most))
            seen += [token for found, _, _ in ranks for token in found]
            state = ranks[0][1]
            made = ranks[0][2][0]
            assert sum(one[2][1] for one in ranks) <= world * made + 1e-9
        assert sorted(seen) == list(range(1, token))

    def test_rows_of_a_resumed_run_are_those_of_the_whole_one(self) -> None:
        def rows(state: Any, most: int) -> Any:
            data = ElasticStream(
                ["a", "b", "c"], read=lambda name: [[ord(name)] * (n + 2) for n in range(9)],
                pack=Packing(2, 8), epochs=1, shuffle=3,
            )  # fmt: skip
            if state is not None:
                data.load_state_dict(state)
            found = []
            for batch in data:
                found.append(batch["input_ids"].tolist())
                data.applied()
                if len(found) == most:
                    break
            return found, data.state_dict()

        whole, end = rows(None, 100)
        for stop in range(1, len(whole)):
            before, state = rows(None, stop)
            after, final = rows(state, 100)
            assert (before + after, final) == (whole, end)

    def test_a_cut_document_is_not_left_to_data_that_cannot_go_on_with_it(self) -> None:
        def stream(**step: Any) -> ElasticStream:
            return ElasticStream(["a"], read=lambda _: [[1] * 50], epochs=1, **step)

        data = stream(pack=Packing(1, 8))
        next(iter(data))
        data.applied()
        with pytest.raises(ValueError, match="within samples that were cut"):
            stream(max_tokens=100).load_state_dict(data.state_dict())


class TestChangedInPlace:
    """A script may change the samples it gets: steps that are done again have what was read."""

    @staticmethod
    def documents(_: str) -> list[dict[str, Any]]:
        return [{"text": "x" * length, "more": {"seen": []}} for length in (5, 5, 5, 2)]

    def test_a_sample_that_waits_for_the_next_step_is_transformed_from_the_beginning(self) -> None:
        def count(sample: dict[str, Any]) -> list[int]:
            sample["more"]["seen"].append(1)
            return [len(sample["more"]["seen"])] * len(sample.pop("text"))

        data = ElasticStream(
            ["a"], read=self.documents, transform=count, max_tokens=7, epochs=1, shuffle=0
        )
        found = [sample for batch in data for sample in batch]
        assert found == [[1] * 5, [1] * 5, [1] * 5, [1] * 2]

    @pytest.mark.parametrize("step", [{"max_tokens": 9, "tokens": len}, {"batch_size": 3}])
    def test_a_step_that_is_done_again_has_the_samples_that_were_read(
        self, step: dict[str, Any]
    ) -> None:
        data = ElasticStream(["a"], read=self.documents, collate=list, epochs=1, shuffle=0, **step)
        (batch, again) = next(iter(data)), next(iter(data))
        assert batch == again and batch[0] is not again[0]
        batch[0]["text"] += "!"
        batch[0]["more"]["seen"].append(1)
        assert next(iter(data)) == again

    def test_so_has_the_sample_that_a_rank_without_one_takes_part_with(self) -> None:
        def body(group: ProcessGroup) -> list[Any]:
            data = ElasticStream(
                ["a"], read=self.documents, collate=list, epochs=1, batch_size=1, shuffle=0,
                group=group,
            )  # fmt: skip
            found = []
            for batch in data:
                found.append(batch[0]["text"])
                batch[0]["text"] += "!"
                data.applied()
            return found

        assert Ranks(2).run(body) == [["xxxxx", "xxxxx", "xxxxx", "xx"], ["xxxxx"] * 4]

    def test_what_cannot_be_copied_is_given_as_it_is(self) -> None:
        lock = threading.Lock()
        data = ElasticStream(
            ["a"], read=lambda _: [(lock, torch.ones(2), {1}, io.BytesIO(b"x"))], collate=list,
            epochs=1, batch_size=1,
        )  # fmt: skip
        ((found, ones, _, file),) = next(iter(data))
        ones.zero_()
        assert found is lock and file.read() == b"x"
        ((_, ones, _, file),) = next(iter(data))
        assert ones.eq(1).all() and file.read() == b"x"

    def test_what_only_leads_to_something_is_given_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "tokens").write_bytes(bytes(range(8)))
        mapped = np.memmap(tmp_path / "tokens", mode="r")
        grown = torch.ones(2, requires_grad=True) * 2
        read = [mapped, Owner(), Decoder(), Holder(grown)]
        data = ElasticStream(["a"], read=lambda _: [read], collate=list, epochs=1, batch_size=1)
        (found,) = next(iter(data))
        assert [id(one) for one in found] == [id(one) for one in read]


class Owner:
    """Ends with what it leads to, as a reader of videos closes its file."""

    def __del__(self) -> None:
        pass


class Decoder:
    """Has its decoder's address in a tensor, as torchcodec's, which Hugging Face's streams give."""

    __module__ = "torchcodec.decoders._audio_decoder"

    def __init__(self) -> None:
        self._decoder = torch.zeros(8, dtype=torch.int64)


@dataclass
class Holder:
    """Can't be copied with some tensors, of which torch says so by a RuntimeError."""

    held: torch.Tensor
