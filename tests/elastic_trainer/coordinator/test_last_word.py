"""A coordinator's last word is in its container's termination message once training is over."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from elastic_trainer.coordinator import server as coordinator_server
from elastic_trainer.coordinator.last_word import leave_last_word
from elastic_trainer.protocol.encoding import decode, encode_agent
from elastic_trainer.protocol.message import Completed, Finished, Join, Round, WorkersSucceeded

from tests.elastic_trainer.coordinator.test_coordinator_guard import HELLO, attending, served


async def test_who_hears_that_training_is_complete_finds_the_coordinators_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    left = partial(leave_last_word, path=message)
    monkeypatch.setattr(coordinator_server, "leave_last_word", left)
    async with served() as (_, port), attending(port, HELLO, Join(5000)) as call:
        while not isinstance(decode(await call.read()), Round):
            assert not message.read_text()
        for word in (Finished(1), WorkersSucceeded(1)):
            await call.write(encode_agent(word))
        while not isinstance(decode(await call.read()), Completed):
            pass
        told = json.loads(message.read_text())
    assert (told["job"], [one["round"] for one in told["rounds"]]) == ("ns/job", [1])


def test_a_message_that_somebody_else_left_stays(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.write_text("KeyError: 'x'")
    leave_last_word({}, message)
    assert message.read_text() == "KeyError: 'x'"
    leave_last_word({}, tmp_path / "none")
    assert not (tmp_path / "none").exists()
