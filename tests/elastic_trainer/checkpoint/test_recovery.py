"""Where each rank gets the newest state from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from elastic_trainer.checkpoint.recovery import (
    NOTHING,
    Available,
    Part,
    Source,
    Stored,
    choose_recovery_source,
    find_other_training,
    is_live,
    next_run,
    why_not_begin,
)
from hypothesis import given
from hypothesis import strategies as st


def has(live: tuple[int, int] = NOTHING, *memory: tuple[int, int], **given: Any) -> Available:
    return Available(live, tuple(("t", one) for one in memory), training="t", **given)


KEEP, MEMORY, STORAGE, PEER = Source.KEEP, Source.MEMORY, Source.STORAGE, Source.PEER


class TestStorageIsAsked:
    @given(st.integers(1, 4), st.data())
    def test_unless_all_of_what_a_round_ended_with_is_in_memory(
        self, ranks: int, data: st.DataObject
    ) -> None:
        world = data.draw(st.integers(1, 4))
        found = data.draw(st.lists(st.sets(st.integers(0, world - 1)), min_size=ranks))
        stood = data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
        available = [
            has(
                stood=(3, 9) if knows else NOTHING,
                parts=tuple(
                    ("t", Part((3, 9), owner, world, owner, world)) for owner in sorted(owners)
                ),
            )
            for owners, knows in zip(found, stood, strict=True)
        ]
        whole = set().union(*found) == set(range(world))
        assert is_live(available) == (any(stood) and whole)
        assert next_run(available) > 3 or not any(stood)

    def test_where_others_know_of_a_later_end(self) -> None:
        parts = tuple(("t", Part((3, 9), owner, 2, owner, 2)) for owner in (0, 1))
        assert is_live([has(stood=(3, 9), parts=parts), has()])
        assert not is_live([has(stood=(3, 9), parts=parts), has(stood=(4, 2))])


class TestChoice:
    @pytest.mark.parametrize(
        ("case", "available", "stored", "identity", "sources", "giver"),
        [
            ("nothing anywhere", [has(), has()], (), NOTHING, [KEEP, KEEP], 0),
            ("a newcomer", [has((3, 9)), has()], (), (3, 9), [KEEP, PEER], 0),
            ("it has rank 0", [has(), has((3, 9))], (), (3, 9), [PEER, KEEP], 1),
            ("one lags", [has((3, 8)), has((3, 9))], (), (3, 9), [PEER, KEEP], 1),
            ("a later run", [has((4, 5)), has((3, 9))], (), (4, 5), [KEEP, PEER], 0),
            ("own memory", [has(NOTHING, (2, 5)), has()], (), (2, 5), [MEMORY, PEER], 0),
            (
                "a live peer rather than memory",
                [has(NOTHING, (2, 5)), has((2, 5))],
                (),
                (2, 5),
                [PEER, KEEP],
                1,
            ),
            (
                "memory that is newer than storage",
                [has(), has(NOTHING, (2, 6), (2, 5))],
                ((2, 5),),
                (2, 6),
                [PEER, MEMORY],
                1,
            ),
            ("storage", [has(), has()], ((2, 5), (1, 3)), (2, 5), [STORAGE, PEER], 0),
        ],
    )
    def test_the_newest_from_the_nearest(
        self,
        case: str,
        available: list[Available],
        stored: tuple[tuple[int, int], ...],
        identity: tuple[int, int],
        sources: list[Source],
        giver: int,
    ) -> None:
        found = choose_recovery_source(available, Stored(stored))
        assert (found.identity, list(found.sources)) == (identity, sources), case
        assert found.giver == giver, case

    def test_another_trainings_memory_is_no_source(self) -> None:
        stale = Available(memory=(("other", (9, 9)),))
        assert choose_recovery_source([has(), stale]).identity == NOTHING

    def test_a_lost_part_comes_from_its_mirror(self) -> None:
        stored = Stored(((2, 4),))
        whole = has(NOTHING, (2, 6), (2, 5))
        mirror = has(NOTHING, (2, 6), mirrored=(("t", (2, 6), 2), ("other", (2, 9), 2)))
        found = choose_recovery_source([whole, mirror, has()], stored, sharded=True)
        assert found.identity == (2, 6) and found.loads and not found.takers
        assert found.sources == (MEMORY, MEMORY, Source.MIRROR)
        assert found.mirrors == {2: 1}
        bare = replace(has(), slots=False)  # it couldn't take it
        assert choose_recovery_source([whole, mirror, bare], stored, sharded=True).mirrors == {}
        # Another rank's part is of no use.
        assert choose_recovery_source(
            [whole, mirror, has(), has()], stored, sharded=True
        ).identity == (2, 4)

    def test_parts_are_of_use_only_together(self) -> None:
        stored = Stored(((2, 4),))
        both = has(NOTHING, (2, 6), (2, 5))
        one = has(NOTHING, (2, 5))
        assert choose_recovery_source([both, one], stored, sharded=True).identity == (2, 5)
        assert set(choose_recovery_source([both, one], stored, sharded=True).sources) == {MEMORY}
        found = choose_recovery_source([both, has()], stored, sharded=True)
        assert (found.identity, set(found.sources)) == ((2, 4), {STORAGE})

    identities = st.tuples(st.integers(1, 4), st.integers(1, 9))

    @given(
        st.lists(
            st.tuples(identities | st.just(NOTHING), st.lists(identities, max_size=3)), min_size=1
        ),
        st.lists(identities, max_size=3),
    )
    def test_everybody_ends_with_the_newest(
        self, ranks: list[tuple[tuple[int, int], list[tuple[int, int]]]], stored: list[Any]
    ) -> None:
        available = [has(live, *memory) for live, memory in ranks]
        found = choose_recovery_source(available, Stored(tuple(stored)))
        known = [NOTHING, *stored, *(one for live, memory in ranks for one in (live, *memory))]
        assert found.identity == max(known)
        assert found.sources[found.giver] is not PEER
        for rank, source in enumerate(found.sources):
            assert (source is KEEP) == (ranks[rank][0] == found.identity)
            assert source is not MEMORY or found.identity in ranks[rank][1]
            assert source is not STORAGE or found.identity in stored
        of_ranks = [NOTHING, *(one for live, memory in ranks for one in (live, *memory))]
        assert next_run(available) > max(of_ranks)[0]


class TestRefusal:
    NOTHING_FOUND = choose_recovery_source([has(), has()])

    def test_training_begins_where_nothing_was_ever_committed(self) -> None:
        assert why_not_begin(self.NOTHING_FOUND, [has(), has()], Stored()) is None

    def test_commits_that_are_all_damaged_are_no_empty_folder(self) -> None:
        stored = Stored(unusable=("step-4/COMMITTED is damaged", "step-8/state.pt is missing"))
        reason = why_not_begin(self.NOTHING_FOUND, [has()], stored)
        assert reason is not None and "step-8/state.pt is missing" in reason

    def test_commits_that_are_all_gone_are_no_new_folder(self) -> None:
        gone = Stored(gone="step 4 was committed to it")
        reason = why_not_begin(self.NOTHING_FOUND, [has(), has()], gone)
        assert reason == "it holds no commit, but step 4 was committed to it"

    def test_memory_of_a_training_that_was_kept_here_is_not_dropped(self) -> None:
        survivor = has(orphaned=(("other", (5, 900)),), host="pod-1")
        reason = why_not_begin(self.NOTHING_FOUND, [has(), survivor], Stored())
        assert reason is not None and "the memory of pod-1 knows step 900" in reason

    def test_pods_that_see_other_folders_are_found(self) -> None:
        other = Available(training="other")
        assert find_other_training([has(), has()]) is None
        assert find_other_training([has(), other]) == 1
        # Whoever is live knows which it is, a newcomer doesn't, be it rank 0.
        assert find_other_training([other, has((3, 9))]) == 0
        assert find_other_training([has((3, 9)), Available()]) is None
