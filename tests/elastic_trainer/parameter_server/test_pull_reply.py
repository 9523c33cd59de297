"""Replies to pulls are the message PullReply, whoever of the two writes or reads them."""

from __future__ import annotations

import numpy as np
from elastic_trainer.parameter_server.pull_reply import PullReply, read_reply
from elastic_trainer.proto import parameter_server_pb2 as messages
from hypothesis import given
from hypothesis import strategies as st

verdicts = st.sampled_from(messages.Verdict.values())


@given(verdicts, st.binary(max_size=300) | st.just(bytes(70_000)))
def test_written_and_read_by_either(verdict: int, rows: bytes) -> None:
    written = PullReply(verdict, rows).write()
    plain = messages.PullReply(verdict=verdict, rows=rows)
    assert messages.PullReply.FromString(written) == plain
    for content in (written, plain.SerializeToString()):
        found = read_reply(content)
        assert (found.verdict, bytes(found.rows)) == (verdict, rows)


def test_rows_are_read_where_they_lie() -> None:
    rows = np.arange(12, dtype=np.float64).reshape(4, 3)
    found = np.frombuffer(read_reply(PullReply(0, rows).write()).rows, dtype=np.float64)
    assert found.flags.aligned
    assert not found.flags.owndata
    assert found.tolist() == rows.flatten().tolist()


def test_a_pull_of_nothing() -> None:
    assert len(read_reply(PullReply(0, np.empty((0, 3))).write()).rows) == 0
