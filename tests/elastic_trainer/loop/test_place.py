"""torchrun's variables, in a process whose place changes and in one that has none yet."""

from __future__ import annotations

from elastic_trainer import Place
from elastic_trainer.launch.newcomer import worker_environment
from elastic_trainer.loop.place import environment
from hypothesis import given
from hypothesis import strategies as st


@given(nodes=st.integers(1, 8), local=st.integers(1, 8), data=st.data())
def test_they_are_those_that_torchrun_would_set(
    nodes: int, local: int, data: st.DataObject
) -> None:
    node, local_rank = data.draw(st.integers(0, nodes - 1)), data.draw(st.integers(0, local - 1))
    place = Place(7, node * local + local_rank, nodes * local, "10.0.0.1", 4711)
    assert environment(place, local) == {
        "RANK": str(place.rank),
        "ROLE_RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "ROLE_WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "VOLCANO_ELASTIC_ROUND": "7",
    }


def test_a_newcomer_takes_itself_for_no_rank_until_it_has_a_place() -> None:
    torchruns = {"RANK": "0", "ROLE_RANK": "0", "GROUP_RANK": "0", "LOCAL_RANK": "0", "A": "b"}
    newcomer = worker_environment({**torchruns, "VOLCANO_ELASTIC_ROUND": "0"})
    assert [newcomer[name] for name in ("RANK", "ROLE_RANK", "GROUP_RANK")] == ["-1"] * 3
    assert (newcomer["LOCAL_RANK"], newcomer["A"]) == ("0", "b")
    for variables in ({**torchruns, "VOLCANO_ELASTIC_ROUND": "3"}, torchruns):
        assert worker_environment(variables) == variables
