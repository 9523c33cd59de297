"""How many parameter servers a job should have, by what they use and what that brings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.server_bounds import ServerBounds
from volcano_elastic.pytorchjob.server_scaling import (
    Capacity,
    Decision,
    History,
    Look,
    decide,
    servers_for_checkpoint,
)

BOUNDS = ServerBounds(1, 16)
EACH = Capacity(cpus=4.0, memory=100)


def look(
    at: float,
    memory: list[int],
    cpus: list[float] | None = None,
    speed: float = 10.0,
    workers: int = 4,
) -> Look:
    return Look(at, cpus or [1.7] * len(memory), memory, speed, workers)


def told(seen: Look, bounds: ServerBounds = BOUNDS) -> Decision | None:
    return decide(History(), seen, len(seen.memory), bounds, EACH)[1]


@pytest.mark.parametrize(
    ("memory", "replicas"),
    [
        ([81, 50, 50, 50], None),  # 231 in all are 3.85 servers of 60
        ([81, 75, 50, 50], 5),
        ([61, 61, 50, 50], None),
        ([90, 90], 3),
        ([100], 2),
        ([59, 59, 59], None),
        ([70, 70, 70, 70], 5),
    ],
)
def test_full_servers_get_as_many_as_hold_it_all(memory: list[int], replicas: int | None) -> None:
    found = told(look(0.0, memory))
    assert (found and found.replicas) == replicas
    if found is not None:
        assert found.message.startswith("memory: ") and "60%" in found.message


def test_nothing_is_decided_until_all_of_them_report() -> None:
    assert decide(History(), look(0.0, [95, 95]), 3, BOUNDS, EACH)[1] is None


def test_little_use_is_seen_for_a_minute_before_servers_go() -> None:
    history = History()
    idle = [0.2] * 8
    for at in (0.0, 30.0, 59.0):
        history, found = decide(history, look(at, [20] * 8, idle), 8, BOUNDS, EACH)
        assert found is None
    assert decide(history, look(61.0, [20] * 8, idle), 8, BOUNDS, EACH)[1] == Decision(
        4,
        "memory 20% of 8 servers' is in use, 20% of the fullest one's, CPU 5% of 8 servers' is in "
        "use, 5% of the fullest one's; so many are 60% full",
    ), "half of them at least stay"
    busy = decide(history, look(61.0, [20] * 8, [2.0] * 8), 8, BOUNDS, EACH)
    assert busy == (History(), None), "those that compute are needed"
    _, found = decide(history, look(61.0, [20] * 8, idle), 8, ServerBounds(7, 9), EACH)
    assert found is not None and found.replicas == 7


def test_busy_ones_are_joined_by_others_that_stay_if_training_got_faster() -> None:
    history, found = decide(History(), look(0.0, [10] * 2, [3.9] * 2), 2, BOUNDS, EACH)
    assert found is not None and found.replicas == 4 and found.message.startswith("CPU: ")
    early = decide(history, look(59.0, [5] * 4, [3.9] * 4, 30.0), 4, BOUNDS, EACH)
    assert early == (history, None), "loads tell of the change a minute later"
    _, kept = decide(history, look(61.0, [5] * 4, [2.0] * 4, 19.0), 4, BOUNDS, EACH)
    assert kept is None
    after, back = decide(history, look(61.0, [5] * 4, [3.9] * 4, 10.2), 4, BOUNDS, EACH)
    assert back == Decision(2, "4 made training +2% faster: less than 5%")
    _, again = decide(after, look(130.0, [10] * 2, [3.9] * 2), 2, BOUNDS, EACH)
    assert again is None, "what brought nothing is not tried again"
    _, full = decide(after, look(130.0, [90] * 2, [3.9] * 2), 2, BOUNDS, EACH)
    assert full is not None and full.replicas == 3, "but memory is needed"
    more = look(200.0, [10] * 2, [3.9] * 2, workers=8)
    assert decide(after, more, 2, BOUNDS, EACH)[1] is not None, "other workers, another try"


def test_bounds_count_before_loads() -> None:
    assert told(look(0.0, [10] * 9), bounds=ServerBounds(1, 4)) == Decision(4, "1 to 4 may be")
    assert told(look(0.0, [10]), bounds=ServerBounds(2, 4)) == Decision(2, "2 to 4 may be")
    assert told(look(0.0, [99] * 4), bounds=ServerBounds(1, 4)) is None


def test_what_nobody_knows_is_not_judged() -> None:
    blind = Capacity()
    for count in (1, 8):
        seen = look(100.0, [10**9] * count, [99.0] * count)
        assert decide(History(low_since=0.0), seen, count, BOUNDS, blind)[1] is None


@given(
    st.integers(1, 5000),
    st.floats(0.0, 60.0),
    st.integers(1, 40),
    st.tuples(st.integers(1, 5), st.integers(5, 40)),
    st.floats(0.0, 1.0),
)
def test_a_steady_load_comes_to_rest_where_it_fits(
    held: int, computed: float, has: int, bounds: tuple[int, int], gain: float
) -> None:
    limits, history, at, changes = ServerBounds(*bounds), History(), 0.0, []
    for _ in range(200):
        at += 20.0
        memory, cpus = [held // has] * has, [min(4.0, computed / has)] * has
        speed = 10.0 * (has**gain)
        history, found = decide(history, Look(at, cpus, memory, speed, 4), has, limits, EACH)
        if found is not None:
            assert limits.least <= found.replicas <= limits.most and found.replicas != has
            changes.append((at, found.replicas))
            has = found.replicas
    assert not [one for one, _ in changes if one > 100 * 20.0], "nothing flaps"
    assert has == limits.most or held / has <= 80, "memory fits"


@pytest.mark.parametrize(
    ("size", "servers"), [(Bytes.gib(24), 4), (Bytes.gib(6), 1), (Bytes(0), 5), (Bytes(1), 1)]
)
def test_a_checkpoint_says_how_many_servers_its_model_needs(size: Bytes, servers: int) -> None:
    assert servers_for_checkpoint(size, Bytes.gib(10), without=5) == servers


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(1 << 20, 1 << 36))
def test_a_larger_checkpoint_has_no_fewer_servers(size: int, more: int, each: int) -> None:
    few = servers_for_checkpoint(Bytes(size), Bytes(each), 1)
    assert few <= servers_for_checkpoint(Bytes(size + more), Bytes(each), 1)
    assert Bytes(each) * few >= Bytes(size) * (1 / 0.6)
