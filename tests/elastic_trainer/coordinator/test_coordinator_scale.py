"""A message of one agent costs no look at all the others, however many they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from elastic_trainer.coordinator.agents import Agents
from elastic_trainer.coordinator.model import Phase, Received, Tick
from elastic_trainer.protocol.message import (
    AgentMessage,
    Committed,
    Hello,
    Inspected,
    Join,
    Linked,
    Progress,
    Taken,
)

from .world import Job

AGENTS = 60


def hello(index: int) -> Hello:
    return Hello(f"a{index}", index, "127.0.0.1", processes=8, port=6000)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks at all agents."""
    found: list[str] = []

    def counting(name: str, real: Callable[[Agents], Any]) -> Callable[[Agents], Any]:
        def look(agents: Agents) -> Any:
            found.append(name)
            return real(agents)

        return look

    for name in ("__iter__", "keys", "values", "items"):
        monkeypatch.setattr(Agents, name, counting(name, getattr(Agents, name)))
    return found


def all_say(job: Job, said: Callable[[int], AgentMessage]) -> None:
    for index in range(AGENTS):
        job.feed(Received(f"a{index}", said(index)))


def test_only_the_one_who_completes_what_is_waited_for_has_all_looked_at(looks: list[str]) -> None:
    job = Job(min_nodes=AGENTS, max_nodes=AGENTS, host="a0", term=1, lost_after=1e6, grace=0.0)

    def most_looks(said: Callable[[int], AgentMessage]) -> int:
        looks.clear()
        all_say(job, said)
        return len(looks)

    few = AGENTS // 2  # one at each message would be AGENTS of them
    assert most_looks(hello) < few
    assert most_looks(lambda _: Join(5000)) < few
    assert job.state.phase is Phase.RUNNING and job.state.round is not None
    number = job.state.round.round
    assert most_looks(lambda _: Taken(number)) < few
    assert most_looks(lambda _: Linked(number, recovers=True, last_run=1)) < few
    assert most_looks(lambda _: Progress(number, 1)) < few
    assert most_looks(lambda _: Committed(number, 1, in_memory=True)) < few
    job.now += 1000.0
    job.feed(Tick())  # it may hang
    assert job.state.watch.asked is not None
    assert most_looks(lambda _: Inspected(number)) < few


def test_silence_of_any_is_looked_for_once_in_the_time_that_it_takes(looks: list[str]) -> None:
    job = Job(min_nodes=AGENTS, max_nodes=AGENTS, lost_after=1.0)
    all_say(job, hello)
    job.feed(Tick())
    looks.clear()
    quiet, last = "a7", 0.0
    for _ in range(40):  # two seconds
        job.now += 0.05
        said = [f"a{index}" for index in range(AGENTS)]
        last = job.now if job.now < 0.9 else last
        heard = [name for name in said if name != quiet or last == job.now]
        job.feed(Tick(dict.fromkeys(heard, job.now)))
        assert (quiet in job.state.agents) == (job.now - last <= 1.0), job.now
    assert len(looks) < 10  # one at each tick would be 40 of them
