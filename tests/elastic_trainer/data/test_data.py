"""Every sample exactly once: the order, the cursor, and the dataset that follows them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from elastic_trainer.data.cursor import Cursor
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.shards.permutation import LARGEST, Permutation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.examples import examples

seeds = st.integers(-(2**40), 2**40)


class Numbers(Dataset[int]):
    """Sample i is i; collated to lists, so that batches show what was taken."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


def numbers(samples: int, *, rank: int = 0, world: int = 1, **given: int) -> ElasticDataset:
    return ElasticDataset(
        Numbers(samples),
        batch_size=given.get("batch_size", 4),
        epochs=given.get("epochs", 2),
        collate=list,
        group=ProcessGroup(rank, world),
    )


class TestPermutation:
    @given(samples=st.integers(1, 3000), seed=seeds, epoch=st.integers(0, 1000))
    def test_is_a_bijection(self, samples: int, seed: int, epoch: int) -> None:
        order = Permutation(samples, seed=seed, epoch=epoch).slice(0, samples)
        assert sorted(order.tolist()) == list(range(samples))

    @given(samples=st.integers(1, LARGEST), seed=seeds, data=st.data())
    def test_point_look_ups_agree_with_slices(
        self, samples: int, seed: int, data: st.DataObject
    ) -> None:
        order = Permutation(samples, seed=seed, epoch=3)
        start = data.draw(st.integers(0, samples - 1))
        stop = min(samples, start + 20)
        found = order.slice(start, stop).tolist()
        assert found == [order[position] for position in range(start, stop)]
        assert len(set(found)) == stop - start
        assert all(0 <= sample < samples for sample in found)

    def test_the_order_is_a_promise_to_old_commits(self) -> None:
        # A commit says "position 7 of epoch 1"; another order there would lose samples silently.
        order = Permutation(10, seed=1, epoch=2).slice(0, 10).tolist()
        assert order == [2, 4, 3, 0, 5, 9, 1, 7, 8, 6]
        assert Permutation(10**12, seed=0, epoch=0)[10**12 - 1] == 329358168157

    def test_epochs_and_seeds_have_their_own_order(self) -> None:
        orders = {
            tuple(Permutation(50, seed=seed, epoch=epoch).slice(0, 50).tolist())
            for seed in range(10)
            for epoch in range(10)
        }
        assert len(orders) == 100

    def test_looks_shuffled(self) -> None:
        samples = 100_000
        order = Permutation(samples, seed=5, epoch=0).slice(0, samples)
        assert abs(np.corrcoef(order, np.arange(samples))[0, 1]) < 0.02
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02
        halves = (order[: samples // 2] < samples // 2).mean()
        assert 0.49 < halves < 0.51

    def test_small_orders_are_all_equally_likely(self) -> None:
        counts: dict[tuple[int, ...], int] = {}
        for seed in range(6000):
            order = tuple(Permutation(3, seed=seed, epoch=0).slice(0, 3).tolist())
            counts[order] = counts.get(order, 0) + 1
        assert len(counts) == 6
        assert all(800 < count < 1200 for count in counts.values())

    @pytest.mark.parametrize("samples", [0, -1, LARGEST + 1])
    def test_an_impossible_size_is_refused(self, samples: int) -> None:
        with pytest.raises(ValueError, match=r"expected 1 to 2\*\*62"):
            Permutation(samples, seed=0, epoch=0)

    def test_a_position_outside_is_refused(self) -> None:
        order = Permutation(5, seed=0, epoch=0)
        with pytest.raises(IndexError):
            order[5]
        with pytest.raises(IndexError):
            order.slice(3, 6)


class TestCursor:
    @given(
        samples=st.integers(1, 500),
        batch=st.integers(1, 20),
        world=st.integers(1, 9),
        position=st.integers(0, 499),
    )
    def test_the_shares_of_a_step_are_the_step(
        self, samples: int, batch: int, world: int, position: int
    ) -> None:
        cursor = Cursor(0, position % samples, 7)
        split = {"samples": samples, "batch": batch * world}
        shares = [cursor.share(rank, world=world, **split) for rank in range(world)]
        taken = [position for share in shares for position in range(share.start, share.stop)]
        assert taken == list(range(cursor.position, cursor.position + cursor.taken(**split)))
        sizes = [share.samples for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= batch
        assert sum(share.weight for share in shares) == pytest.approx(world)

    @given(worlds=st.lists(st.integers(1, 8), min_size=1), samples=st.integers(1, 200))
    def test_any_sequence_of_worlds_passes_every_position_once(
        self, worlds: list[int], samples: int
    ) -> None:
        cursor, taken, turn = Cursor(), 0, 0
        while cursor.epoch < 2:
            world = worlds[turn % len(worlds)]
            taken += cursor.taken(samples=samples, batch=3 * world)
            cursor = cursor.advance(samples=samples, batch=3 * world)
            turn += 1
        assert (taken, cursor) == (2 * samples, Cursor(2, 0, turn))

    def test_bad_sizes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="batch is 0: expected at least 1"):
            Cursor().taken(samples=10, batch=0)
        with pytest.raises(ValueError, match="rank 2 in a world of 2"):
            Cursor().share(2, samples=10, batch=4, world=2)


class TestElasticDataset:
    def test_all_epochs_come_in_one_iteration(self) -> None:
        data = numbers(10, epochs=3)
        batches = [(batch, data.applied()) for batch in data]
        taken = [sample for batch, _ in batches for sample in batch]
        assert [sorted(taken[at : at + 10]) for at in (0, 10, 20)] == [list(range(10))] * 3
        assert (data.cursor, data.consumed) == (Cursor(3, 0, 9), 30)

    def test_a_rank_without_samples_takes_part_with_weight_zero(self) -> None:
        ranks = [numbers(9, rank=rank, world=4, batch_size=2, epochs=1) for rank in range(4)]
        steps = []
        for batches in zip(*ranks, strict=True):  # strict: all ranks make the same number of steps
            steps.append(
                [(len(batch), data.weight) for batch, data in zip(batches, ranks, strict=True)]
            )
            for data in ranks:
                data.applied()
        assert steps == [[(2, 1.0)] * 4, [(1, 4.0), (1, 0.0), (1, 0.0), (1, 0.0)]]
        assert all(data.consumed == 9 for data in ranks)

    @given(samples=st.integers(1, 40), world=st.integers(1, 5), batch=st.integers(1, 6))
    @settings(deadline=None, max_examples=examples(40))
    def test_the_averaged_gradient_is_the_global_batchs(
        self, samples: int, world: int, batch: int
    ) -> None:
        values = torch.arange(samples, dtype=torch.float64)
        ranks = [
            ElasticDataset(
                TensorDataset(values), batch_size=batch, epochs=1, group=ProcessGroup(rank, world)
            )
            for rank in range(world)
        ]
        order = values[Permutation(samples, seed=0, epoch=0).slice(0, samples)]
        position = 0
        for batches in zip(*ranks, strict=True):
            means = [
                rows[0].mean() * data.weight for rows, data in zip(batches, ranks, strict=True)
            ]
            taken = min(batch * world, samples - position)
            expected = order[position : position + taken].mean()
            torch.testing.assert_close(torch.stack(means).mean(), expected)
            position += taken
        assert position == samples

    def test_what_was_not_applied_is_handed_out_again(self) -> None:
        data = numbers(12)
        first = next(batches := iter(data))
        data.applied()
        lost = next(batches)
        again = numbers(12)
        again.load_state_dict(data.state_dict())
        assert next(iter(again)) == lost != first

    def test_a_saved_cursor_of_another_order_is_refused(self) -> None:
        state = numbers(12).state_dict()
        with pytest.raises(ValueError, match="saved cursor is for samples=12, this dataset has"):
            numbers(13).load_state_dict(state)

    def test_a_step_without_a_batch_is_refused(self) -> None:
        data = numbers(12)
        with pytest.raises(RuntimeError, match="no batch was taken since the last step"):
            data.applied()

    def test_works_in_a_data_loader(self) -> None:
        data = ElasticDataset(TensorDataset(torch.arange(10)), batch_size=4, epochs=1)
        loader = DataLoader(data, batch_size=None)
        assert sorted(torch.cat([rows[0] for rows in loader]).tolist()) == list(range(10))

    def test_worker_processes_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("elastic_trainer.data.dataset.get_worker_info", lambda: object())
        with pytest.raises(RuntimeError, match="num_workers=0"):
            next(iter(numbers(4)))

    def test_unconnected_ranks_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(RuntimeError, match="init_process_group"):
            ProcessGroup.current()

    @pytest.mark.parametrize(("name", "given"), [("batch_size", 0), ("epochs", 0)])
    def test_bad_sizes_are_refused(self, name: str, given: int) -> None:
        with pytest.raises(ValueError, match=f"{name} is 0: expected at least 1"):
            numbers(4, **{name: given})
