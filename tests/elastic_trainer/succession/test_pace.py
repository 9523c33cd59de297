"""How soon a host in doubt is asked again."""

from __future__ import annotations

from itertools import accumulate

import pytest
from elastic_trainer.succession.agent_status import AgentStatus, Found
from elastic_trainer.succession.pace import LONGEST_SECONDS, next_wait

BEGINS = AgentStatus("job", "a", 1000, "h:1", hosts=True, heard=False)
SERVES = AgentStatus("job", "a", 1000, "h:1", hosts=True, heard=True)
FOLLOWS = AgentStatus("job", "a", 1000, "h:1", hosts=False, heard=False)


@pytest.mark.parametrize("found", [Found(closed=True), Found(BEGINS)])
def test_a_host_that_ends_or_begins_to_serve_is_asked_again_soon_then_less_often(
    found: Found,
) -> None:
    waits = list(accumulate(range(5), lambda wait, _: next_wait(found, wait), initial=0.05))[1:]
    assert waits == [0.005, 0.01, 0.02, 0.04, LONGEST_SECONDS]


@pytest.mark.parametrize("found", [None, Found(), Found(gone=True), Found(SERVES), Found(FOLLOWS)])
def test_all_others_are_asked_at_leisure(found: Found | None) -> None:
    assert next_wait(found, 0.005) == next_wait(found, LONGEST_SECONDS) == LONGEST_SECONDS
