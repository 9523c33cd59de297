"""Ranks that are slower by themselves than the others are named, and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat
from statistics import median

import pytest
from elastic_trainer.coordinator.__main__ import deadlines
from elastic_trainer.coordinator.status import metrics, status
from elastic_trainer.coordinator.straggler import (
    CONFIRMED,
    NEGLIGIBLE,
    NOISE,
    NORMAL,
    SCORE,
    Pace,
    stragglers,
)
from elastic_trainer.protocol.message import Progress
from hypothesis import given
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.world import Job

SECONDS = st.floats(0.001, 100.0)
PACES = st.lists(
    st.builds(
        Pace, SECONDS, st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.integers(1, 9).map(float)
    ),
    max_size=9,
)
COLUMNS = ("compute", "waited", "network", "batches", "batch_samples")


def score(own: float, others: Sequence[float], negligible: float) -> float:
    """Return by how many of the others' deviations one is above their median, as defined."""
    usual = median(others)
    deviation = NORMAL * median(abs(other - usual) for other in others)
    return (own - usual) / max(deviation, NOISE * usual, negligible, 1e-9)


@given(PACES)
def test_each_rank_is_compared_with_the_others_alone(paces: list[Pace]) -> None:
    found = stragglers(dict(enumerate(paces)))
    if len(paces) < 2:
        assert not found
        return
    own = median(p.compute for p in paces) + median(p.input for p in paces)
    negligible = NEGLIGIBLE * (own + median(p.network for p in paces))
    batch = median(p.samples for p in paces)
    for rank, pace in enumerate(paces):
        others = [p for i, p in enumerate(paces) if i != rank]
        by_batch = score(pace.own, [p.own for p in others], negligible)
        by_sample = score(
            pace.own / pace.samples, [p.own / p.samples for p in others], negligible / batch
        )
        least = min(by_batch, by_sample)
        if abs(least - SCORE) > 1e-6:
            assert (rank in found) == (least > SCORE), (least, found)
        if rank in found:
            assert found[rank].score == pytest.approx(least)
    assert 2 * len(found) <= len(paces)


@given(st.integers(2, 64), SECONDS, st.floats(1.4, 100.0), st.integers(0, 63))
def test_one_that_takes_half_as_long_again_is_found_among_any_number(
    ranks: int, seconds: float, slower: float, which: int
) -> None:
    paces = {rank: Pace(seconds) for rank in range(ranks)}
    assert not stragglers(paces)
    paces[which % ranks] = Pace(seconds * slower)
    assert set(stragglers(paces)) == {which % ranks}
    paces[which % ranks] = Pace(seconds, seconds * slower)
    assert stragglers(paces)[which % ranks].cause == "input"


@given(st.integers(2, 9), SECONDS, st.integers(1, 3))
def test_batches_that_cannot_be_equal_slow_nobody_down(
    ranks: int, seconds: float, fewest: int
) -> None:
    """A rank that has one sample more takes longer, by the sample or for the batch's own sake."""
    for fixed, each in ((0.0, seconds), (seconds, 0.0)):
        few = Pace(fixed + each * fewest, samples=fewest)
        more = Pace(fixed + each * (fewest + 1), samples=fewest + 1)
        for odd, others in ((few, more), (more, few)):
            assert not stragglers({0: odd} | dict.fromkeys(range(1, ranks), others))


class Training(Job):
    """Agents of two ranks each, which make a step of one batch each half a second."""

    def __init__(self, agents: int) -> None:
        super().__init__(min_nodes=1, max_nodes=agents)
        self.steps = 0
        self.worked = {f"a{i}": [[0] * 5, [0] * 5] for i in range(agents)}
        self.running(*range(agents))

    def train(self, seconds: float, **slower: int) -> None:
        """Let them train, rank 1 of some for so many milliseconds more a batch."""
        for _ in range(round(seconds / 0.5)):
            self.pass_time(0.5)
            self.steps += 1
            for agent, ranks in self.worked.items():
                for local_rank, row in enumerate(ranks):
                    more = slower.get(agent, 0) * local_rank
                    ranks[local_rank] = [
                        a + b for a, b in zip(row, (100 + more, 1, 0, 1, 4), strict=True)
                    ]
                told = dict(zip(COLUMNS, zip(*ranks, strict=True), strict=True))
                number = self.state.round.round if self.state.round else 0
                self.say(agent, Progress(number, self.steps, **told))

    def slow(self) -> list[tuple[int, int, str]]:
        told = json.loads(json.dumps(status(self.state, "ns/job", self.now, 1e9)))
        return [(one["rank"], one["worker"], one["cause"]) for one in told["stragglers"]]

    def total(self) -> float:
        (found,) = (m.value for m in metrics(self.state, self.now) if m.name == "stragglers_total")
        return found


def test_a_rank_that_is_slow_for_three_windows_is_named_until_it_is_not() -> None:
    job = Training(3)
    job.train(11.0)
    assert not job.slow()
    job.train(4.0 * (CONFIRMED - 1), a1=300)
    assert not job.slow()
    job.train(15.0, a1=300)
    assert job.slow() == [(3, 1, "compute")] and job.total() == 1
    told = status(job.state, "ns/job", job.now, 1e9)
    (one,) = told["stragglers"]
    assert one["batch_seconds"] > 3 * one["others_batch_seconds"] > 0 and one["since"] < 1e9
    assert told["batch_seconds"]["compute"] == pytest.approx(0.1)
    assert told["batch_samples"] > 0
    job.train(15.0)
    assert not job.slow() and job.total() == 1


def test_who_is_slow_now_and_then_is_not_named() -> None:
    job = Training(2)
    for _ in range(6):
        job.train(6.0, a1=300)
        job.train(12.0)
        assert not job.slow() and job.total() == 0


def test_nothing_is_named_where_nothing_is_measured_or_wanted() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for step in range(1, 100):
        job.pass_time(0.5)
        job.say("a0", Progress(1, step))
    told = status(job.state, "ns/job", job.now, 1e9)
    assert told["stragglers"] == [] and told["batch_seconds"] is None
    never = deadlines({"VOLCANO_ELASTIC_STRAGGLER_SECONDS": "0"})
    assert never["straggler_seconds"] == float("inf")
    for words in ("soon", "-1", "inf"):
        with pytest.raises(ValueError, match="VOLCANO_ELASTIC_STRAGGLER_SECONDS: expected seconds"):
            deadlines({"VOLCANO_ELASTIC_STRAGGLER_SECONDS": words})


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=3), min_size=5, max_size=5))
def test_nonsense_of_an_agent_harms_nobody(columns: list[list[int]]) -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for step, sign in enumerate((1, -1, 1, -1), 1):
        for agent, rows in (("a0", columns), ("a1", repeat([step * 100] * 2, 5))):
            told = {
                n: tuple(sign * one for one in row) for n, row in zip(COLUMNS, rows, strict=True)
            }
            job.say(agent, Progress(1, step, **told))
        job.pass_time(5.5)
        json.dumps(status(job.state, "ns/job", job.now, 1e9), allow_nan=False)
