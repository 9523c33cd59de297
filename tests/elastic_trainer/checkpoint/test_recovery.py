"""Where each rank gets the newest state from."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_trainer.checkpoint.recovery import NOTHING, Holding, Source, level, next_run
from hypothesis import given
from hypothesis import strategies as st


def holding(live: tuple[int, int] = NOTHING, *memory: tuple[int, int], **given: Any) -> Holding:
    return Holding(live, tuple(("t", one) for one in memory), training="t", **given)


KEEP, MEMORY, STORAGE, PEER = Source.KEEP, Source.MEMORY, Source.STORAGE, Source.PEER


class TestLevel:
    @pytest.mark.parametrize(
        ("case", "holdings", "identity", "sources", "giver"),
        [
            ("nothing anywhere", [holding(), holding()], NOTHING, [KEEP, KEEP], 0),
            ("a newcomer", [holding((3, 9)), holding()], (3, 9), [KEEP, PEER], 0),
            ("it has rank 0", [holding(), holding((3, 9))], (3, 9), [PEER, KEEP], 1),
            ("one lags", [holding((3, 8)), holding((3, 9))], (3, 9), [PEER, KEEP], 1),
            ("a later run", [holding((4, 5)), holding((3, 9))], (4, 5), [KEEP, PEER], 0),
            ("own memory", [holding(NOTHING, (2, 5)), holding()], (2, 5), [MEMORY, PEER], 0),
            (
                "a live peer rather than memory",
                [holding(NOTHING, (2, 5)), holding((2, 5))],
                (2, 5),
                [PEER, KEEP],
                1,
            ),
            (
                "memory that is newer than storage",
                [holding(storage=((2, 5),)), holding(NOTHING, (2, 6), (2, 5))],
                (2, 6),
                [PEER, MEMORY],
                1,
            ),
            ("storage", [holding(storage=((2, 5), (1, 3))), holding()], (2, 5), [STORAGE, PEER], 0),
            (
                "storage that went on without us",
                [holding((2, 5), storage=((3, 7),)), holding((2, 5))],
                (3, 7),
                [STORAGE, PEER],
                0,
            ),
        ],
    )
    def test_the_newest_from_the_nearest(
        self,
        case: str,
        holdings: list[Holding],
        identity: tuple[int, int],
        sources: list[Source],
        giver: int,
    ) -> None:
        found = level(holdings)
        assert (found.identity, list(found.sources)) == (identity, sources), case
        assert found.giver == giver, case

    def test_another_trainings_memory_is_no_source(self) -> None:
        stale = Holding(memory=(("other", (9, 9)),))
        assert level([holding(), stale]).identity == NOTHING

    def test_a_lost_part_comes_from_its_mirror(self) -> None:
        whole = holding(NOTHING, (2, 6), (2, 5), storage=((2, 4),))
        mirror = holding(NOTHING, (2, 6), mirrored=(("t", (2, 6), 2), ("other", (2, 9), 2)))
        found = level([whole, mirror, holding()], sharded=True)
        assert found.identity == (2, 6) and found.loads and not found.takers
        assert found.sources == (MEMORY, MEMORY, Source.MIRROR)
        assert found.mirrors == {2: 1}
        # Another rank's part is of no use.
        assert level([whole, mirror, holding(), holding()], sharded=True).identity == (2, 4)

    def test_parts_are_of_use_only_together(self) -> None:
        both = holding(NOTHING, (2, 6), (2, 5), storage=((2, 4),))
        one = holding(NOTHING, (2, 5))
        assert level([both, one], sharded=True).identity == (2, 5)
        assert set(level([both, one], sharded=True).sources) == {MEMORY}
        found = level([both, holding()], sharded=True)
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
        holdings = [holding(live, *memory) for live, memory in ranks]
        holdings[0] = holding(ranks[0][0], *ranks[0][1], storage=tuple(stored))
        found = level(holdings)
        known = [NOTHING, *stored, *(one for live, memory in ranks for one in (live, *memory))]
        assert found.identity == max(known)
        assert found.sources[found.giver] is not PEER
        for rank, source in enumerate(found.sources):
            assert (source is KEEP) == (ranks[rank][0] == found.identity)
            assert source is not MEMORY or found.identity in ranks[rank][1]
            assert source is not STORAGE or found.identity in stored
        assert next_run(holdings) > max(known)[0]
