"""Rounds of sharded trainings that the harness's seeds would seldom draw.

    python -m tests.elastic_trainer.sharded_scenes NAME

They run in a process of their own, which is forked with nothing but torch imported: the ranks are
forks of it, and one of pytest's might wait for ever for a lock of a thread that it doesn't have.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Sequence

import torch

from tests.elastic_trainer.sharded_harness import (
    Counts,
    Store,
    Training,
    shared_memory,
    trained_alone,
)
from tests.elastic_trainer.sharded_loop_training import LoopTraining
from tests.elastic_trainer.sharded_round import Loss, Round


def after_four_of_six_nodes_left_the_two_mirror_each_other() -> None:
    # Each of the two has copies of the four nodes' parts, beside which there is a place for more.
    store = Store()
    try:
        with shared_memory() as folder:
            training = Training(1, folder, store, Counts())
            for number, nodes, fence in ((1, 6, 3), (2, 2, 6)):
                leavers = tuple(range(2, nodes))
                round_ = Round(number, tuple(range(nodes)), 1, 0, 1, fence, leavers)
                assert _train(training, round_) is None
                for node in leavers:
                    shutil.rmtree(folder / f"node-{node}")
    finally:
        store.close()


def processes_that_live_on_change_their_world_without_a_look_at_storage() -> None:
    store = Store()
    try:
        with shared_memory() as folder:
            training = LoopTraining(1, folder, store, Counts())
            with contextlib.closing(training):
                rounds = (((0, 1), 2, ()), ((2, 0, 1), 4, (0,)), ((2, 1), 0, ()))
                for number, (nodes, fence, leavers) in enumerate(rounds, 1):
                    round_ = Round(number, nodes, 1, 0, 9, fence, leavers)
                    assert _train(training, round_) is None
                    assert training._ordered == bool(fence)
                    begun = [one for one in training._said(number, 0) if one["kind"] == "restored"]
                    assert begun[0]["identity"][1] == (0, 2, 4)[number - 1], "no step is lost"
                    for node in leavers:
                        shutil.rmtree(folder / f"node-{node}")
            final = torch.load(folder / "final")
    finally:
        store.close()
    gaps = [(one - other).abs().max() for one, other in zip(final, trained_alone(), strict=True)]
    assert float(max(gaps)) <= 1e-9


def a_join_waits_for_no_mirror_and_what_is_on_two_nodes_outlives_a_loss_after_it() -> None:
    rounds = (
        Round(1, (0, 1, 2), 1, 0, 1, fence=2, leavers=(2,)),
        # From here on no part comes to another node.
        Round(2, (0, 1), 1, 0, 1, fence=4, mirror_seconds=1000),
        Round(3, (0, 3, 1), 1, 0, 1, loss=Loss(1, "stepped", 5), mirror_seconds=1000),
        Round(4, (0, 3), 1, 0, 9),
    )
    store, begun, held = Store(), [], []
    try:
        with shared_memory() as folder:
            training = LoopTraining(1, folder, store, Counts())
            with contextlib.closing(training):
                for round_ in rounds:
                    assert _train(training, round_) == (1 if round_.loss else None)
                    said = training._said(round_.number, 0)
                    begun += [one["identity"][1] for one in said if one["kind"] == "restored"]
                    held.append(training._whole_in_memory()[1])
                    for node in round_.leavers:
                        shutil.rmtree(folder / f"node-{node}")
    finally:
        store.close()
    assert begun[:3] == [0, 2, 4]
    assert held[:3] == [2, 4, 2]


def of_two_joins_in_a_row_the_second_waits_for_the_mirrors_that_the_first_did_not() -> None:
    # What is on no two nodes at the first join is so no longer at the second.
    rounds = (
        Round(1, (0, 1), 1, 0, 1, fence=4, mirror_seconds=1000),
        Round(2, (2, 0, 1), 1, 0, 1, fence=5, mirror_seconds=2),
        Round(3, (2, 0, 1, 3), 1, 0, 1, loss=Loss(2, "stepped", 1), mirror_seconds=1000),
    )
    assert _left_after(rounds) >= 4


def who_was_alone_makes_no_step_with_others_before_they_have_mirrors() -> None:
    rounds = (
        Round(1, (0,), 1, 0, 9, fence=5),
        Round(2, (1, 0), 1, 0, 9, loss=Loss(0, "in a step", 0), mirror_seconds=1),
    )
    assert _left_after(rounds) == 5
    assert _left_after(rounds, anew=True) == 5, "no process knows that it was alone"


def who_was_alone_waits_again_where_the_node_that_joined_it_took_nothing() -> None:
    rounds = (
        Round(1, (0,), 1, 0, 9, fence=5),
        Round(2, (1, 0), 1, 0, 9, loss=Loss(1, "mirroring", 0)),
        Round(3, (2, 0), 1, 0, 9, loss=Loss(0, "in a step", 0), mirror_seconds=1),
    )
    assert _left_after(rounds) == 5


def process_groups_of_worlds_that_are_over_do_not_pile_up() -> None:
    # The script holds its `extra` of one world until it has made that of the next.
    store, groups = Store(), []
    try:
        with shared_memory() as folder:
            training = LoopTraining(1, folder, store, Counts())
            with contextlib.closing(training):
                for number in range(1, 10):
                    assert _train(training, Round(number, (0,), 1, 0, 9, fence=number)) is None
                    said = training._said(number, 0)
                    groups += [one["groups"] for one in said if one["kind"] == "restored"]
    finally:
        store.close()
    assert groups[-1] < groups[2] + 3, groups


def _left_after(rounds: Sequence[Round], *, anew: bool = False) -> int:
    """Train for these rounds; return the newest step that memory then holds whole.

    Args:
        anew: each is of processes that were started for it.
    """
    store = Store()
    try:
        with shared_memory() as folder:
            training = LoopTraining(1, folder, store, Counts())
            with contextlib.closing(training):
                for round_ in rounds:
                    lost = round_.loss.node if round_.loss else None
                    assert _train(training, round_) == lost
                    if anew:
                        training.end_processes()
                return training._whole_in_memory()[1]
    finally:
        store.close()


def what_is_on_two_nodes_outlives_later_saves_that_are_on_one() -> None:
    round_ = Round(1, (0, 1), 1, 0, 1, loss=Loss(1, "stepped", 6), mirrors=1)
    store = Store()
    try:
        with shared_memory() as folder:
            training = LoopTraining(1, folder, store, Counts())
            with contextlib.closing(training):
                assert _train(training, round_) == 1
                said = training._said(1, 0)
                kept = [one["identity"][1] for one in said if one["kind"] == "kept"]
                made = [one["identity"][1] for one in said if one["kind"] == "made"]
                assert kept == [1] and max(made) == 7
                assert training._whole_in_memory()[1] == 1
    finally:
        store.close()


def _train(training: Training, round_: Round) -> int | None:
    """Train for a round and check what came of it; return the node that was lost, if any."""
    training.nodes = list(round_.nodes)
    stored, whole = training._stored(), training._whole_in_memory()
    lost = training._train(round_)
    training._check(round_, whole, stored, lost)
    return lost


if __name__ == "__main__":
    globals()[sys.argv[1]]()
