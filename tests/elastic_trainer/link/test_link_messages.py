"""Messages between agent and worker: what is one, and what isn't."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from elastic_trainer.agent.workers import WorkerServer
from elastic_trainer.link import message as link
from elastic_trainer.link.message import (
    FROM_AGENT,
    FROM_WORKER,
    MessageError,
    decode_from_agent,
    decode_from_worker,
    encode,
)
from elastic_trainer.link.worker_link import WorkerLink
from hypothesis import given
from hypothesis import strategies as st

VALUES = {
    "int": st.integers(-1, link.GREATEST),
    "str": st.text(max_size=40),
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
}


def of(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields = {field.name: VALUES[str(field.type)] for field in dataclasses.fields(kind)}
    if kind is link.Hello:
        fields |= {"local_rank": st.integers(0, 7), "local_world_size": st.just(8)}
    return st.builds(kind, **fields)


FROM_WORKERS = st.one_of([of(kind) for kind in FROM_WORKER])
FROM_AGENTS = st.one_of([of(kind) for kind in FROM_AGENT])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(FROM_WORKERS, FROM_AGENTS)
def test_every_message_arrives_as_it_was_sent(said: link.FromWorker, told: link.FromAgent) -> None:
    assert decode_from_worker(encode(said)) == said
    assert decode_from_agent(encode(told)) == told
    assert encode(said).count(b"\n") == 1


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(line: bytes) -> None:
    with pytest.raises(MessageError, match="expected"):
        decode_from_worker(line)
    with pytest.raises(MessageError, match="expected"):
        decode_from_agent(line)


@given(FROM_WORKERS, st.data())
def test_a_mutated_message_is_refused_or_is_another_good_one(
    said: link.FromWorker, data: st.DataObject
) -> None:
    found = json.loads(encode(said))
    for name in data.draw(st.lists(st.sampled_from(sorted(found)), max_size=2, unique=True)):
        found[name] = data.draw(JSON)
    if data.draw(st.booleans()):
        found[data.draw(st.text(max_size=5))] = data.draw(JSON)
    line = bytearray(json.dumps(found).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    try:
        understood = decode_from_worker(bytes(line))
    except MessageError:
        return
    assert decode_from_worker(encode(understood)) == understood


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[1]", "expected a JSON object"),
        (b"{}", "expected one of Hello, "),
        (b'{"type": "Place"}', "expected one of Hello, "),  # the agent's
        (b'{"type": "Idle"}', r"Idle: expected the fields round, found \(none\)"),
        (
            b'{"type": "Idle", "round": 1, "x": 1}',
            "expected the fields round, found round, x",
        ),
        (b'{"type": "Idle", "round": "1"}', "Idle.round: expected a number from -1 to"),
        (b'{"type": "Idle", "round": true}', "Idle.round: expected a number"),
        (b'{"type": "Idle", "round": 1e99}', "Idle.round: expected a number"),
        (b'{"type": "Idle", "round": 99999999999}', "Idle.round: expected a number"),
        (b'{"type": "GivenUp", "reason": "\\ud800"}', "GivenUp.reason: expected text in Unicode"),
        (b"[" * 60000, "expected a JSON object"),
        (b" " * 70000, "expected 65536 bytes at most"),
    ],
)
def test_a_refusal_says_what_was_expected_and_found(line: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode_from_worker(line)


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    said = decode_from_worker(encode(link.GivenUp("can't write b\udcff")))
    assert said == link.GivenUp("can't write b?")


def test_both_ends_have_an_answer_to_every_message() -> None:
    server = WorkerServer(None, print, print, print, print, print)  # type: ignore[arg-type]
    assert {link.Hello, *server._handlers} == set(FROM_WORKER)
    assert set(WorkerLink(None)._handlers) == set(FROM_AGENT)
