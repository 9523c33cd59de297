"""A node's part in a check that cannot run: no job fails for it."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed.elastic.rendezvous.registry  # noqa: F401  # imports the handler in turn
from elastic_trainer.node_check import member as node_check_member
from elastic_trainer.node_check.member import Member
from elastic_trainer.rendezvous.handler import ElasticHandler

from tests.elastic_trainer.agent.identity import alone


class Answering(http.server.HTTPServer):
    """Answers each request with 200 and a body."""

    body = b""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        body = cast(Answering, self.server).body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Answering]:
    made = Answering(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b"[]", b'{"order": "of a later version"}'])
def test_an_answer_that_is_no_order_ends_the_check_without_a_verdict(
    server: Answering, body: bytes
) -> None:
    server.body = body
    member = Member(
        agent="a",
        node="n",
        pod_index=0,
        address="127.0.0.1",
        host="127.0.0.1",
        port=server.server_port,
        token="",
        processes=1,
    )
    over = member.run(30)
    assert over.verdict == "unknown" and "is no order" in over.reason


def test_a_check_that_cannot_begin_is_logged_and_the_agent_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_port(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("The server socket has failed to listen on any local network address")

    monkeypatch.setattr(node_check_member, "TCPStore", no_port)
    agent = SimpleNamespace(identity=alone(1, 1.0), is_ending=lambda: False)
    ElasticHandler(cast(Any, agent), None, "a", 1.0, checked=False)._check_node()
    (record,) = (r for r in caplog.records if r.levelno == logging.ERROR)
    assert "nothing is known of this node" in record.getMessage()
