"""Which buckets leave a server that has far more to do than the others, or is slow."""

from __future__ import annotations

import numpy as np
import pytest
from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.parameter_server import balance
from elastic_trainer.parameter_server.balance import HOT, Holder, relief, slowness
from elastic_trainer.parameter_server.load import OperationLoad, ServerLoad
from elastic_trainer.parameter_server.placement import Server, next_relief, slow
from hypothesis import given
from hypothesis import strategies as st


def load(seconds: float = 1e-3, rows: float = 1e4) -> ServerLoad:
    return ServerLoad(
        operations={
            "update": OperationLoad(
                calls_per_second=100.0, rows_per_second=rows, p50_seconds=seconds
            )
        }
    )


def spread(rates: np.ndarray, holders: int, slow_ones: list[float]) -> list[Holder]:
    return [
        Holder(np.arange(one, BUCKETS, holders), rates[one::holders], slow_ones[one])
        for one in range(holders)
    ]


def moved(holders: list[Holder], rates: np.ndarray, found: balance.Relief) -> list[Holder]:
    source, target = holders[found.source], holders[found.target]
    left = np.setdiff1d(source.buckets, found.buckets)
    got = np.union1d(target.buckets, found.buckets)
    after = list(holders)
    after[found.source] = Holder(left, rates[left], source.slowness)
    after[found.target] = Holder(got, rates[got], target.slowness)
    return after


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 6),
    st.floats(0.2, 3.0),
    st.lists(st.sampled_from([1.0, 1.0, 1.0, 2.5, 6.0]), min_size=6, max_size=6),
)
def test_moves_end_lower_the_most_work_and_lose_no_bucket(
    seed: int, count: int, tail: float, slow_ones: list[float]
) -> None:
    rates = np.random.default_rng(seed).pareto(tail, BUCKETS).clip(max=1e6) * 100
    holders = spread(rates, count, slow_ones)
    even = BUCKETS / count
    for _ in range(100):
        work = [one.work for one in holders]
        found = relief(holders)
        if found is None:
            break
        after = moved(holders, rates, found)
        assert max(one.work for one in after) <= max(work) * (1 + 1e-9)
        mean = sum(work) / count
        assert after[found.target].work <= mean * (1 + 1e-9)
        assert work[found.source] > HOT * mean
        assert all(even / 2 <= len(one.buckets) <= even * 3 / 2 for one in after)
        held = np.concatenate([one.buckets for one in after])
        assert sorted(held) == list(range(BUCKETS))
        holders = after
    else:
        raise AssertionError("it does not come to rest")


def test_a_hot_server_gives_what_the_idle_one_can_take() -> None:
    rates = np.full(BUCKETS, 1.0)
    rates[:256] = 40.0  # all of the first server's
    holders = [Holder(np.arange(s, s + 256), rates[s : s + 256]) for s in range(0, BUCKETS, 256)]
    found = relief(holders)
    assert found is not None and found.source == 0
    after = holders
    while (found := relief(after)) is not None:
        after = moved(after, rates, found)
    assert after[0].work == holders[0].work / 2, "it keeps half of its share, as memory does"
    assert max(one.work for one in after) == after[0].work
    calm = [Holder(one.buckets, one.rates / 1000) for one in holders]
    assert relief(calm) is None, "nothing is worth a pause where there is nothing to do"


def test_one_bucket_that_nobody_could_bear_stays() -> None:
    rates = np.full(BUCKETS, 1.0)
    rates[0] = 1e6
    assert relief(spread(rates, 4, [1.0] * 4)) is None


def test_who_takes_far_longer_for_a_row_is_slow_and_gives_some_away() -> None:
    assert slowness([load(1e-3), load(1.9e-3), load(1e-3)]) == [1.0, 1.0, 1.0]
    assert slowness([load(1e-3), load(4e-3), load(1e-3)])[1] == pytest.approx(4.0)
    assert slowness([load(1e-3), load(9e-3)]) == [1.0, 1.0], "nobody can tell which"
    assert slowness([ServerLoad(), load(1e-3), load(9e-3)]) == [1.0, 1.0, 1.0]
    servers = []
    for place in range(4):
        held = np.zeros(BUCKETS, dtype=np.int8)
        held[place::4] = 1
        rates = np.where(held == 1, 20.0, 0.0)
        told = load(5e-3 if place == 2 else 1e-3)
        server = Server(f"s{place}:1", f"l{place}", held, 0.0, load=told, rates=rates)
        servers.append(server)
    assert slow(servers) == ["s2:1"]
    move = next_relief(servers)
    assert move is not None and move.source.address == "s2:1"
    assert set(move.buckets) <= set(range(2, BUCKETS, 4))
    servers[0] = Server("s0:1", "l0", servers[0].held, 0.0)
    assert next_relief(servers) is None, "one that says nothing yet is waited for"
