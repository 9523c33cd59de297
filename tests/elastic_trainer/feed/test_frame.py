"""A frame arrives as it was sent; what is none is refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from elastic_trainer.feed import frame
from elastic_trainer.feed.frame import Frame, FrameError, Kind
from hypothesis import given
from hypothesis import strategies as st

FRAMES = st.builds(
    Frame,
    st.sampled_from(Kind),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda some: torch.tensor(list(some), dtype=torch.uint8)),
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@given(FRAMES)
def test_a_frame_arrives_as_it_was_sent(sent: Frame) -> None:
    one, other = socket.socketpair()
    with one, other:
        moved: list[int] = []
        frame.send(one, sent, moved.append)
        came = frame.receive(other, moved.append)
        one.close()
        assert came is not None
        assert (came.kind, came.run, came.step) == (sent.kind, sent.run, sent.step)
        assert came.skeleton == sent.skeleton
        assert torch.equal(came.tensors, sent.tensors)
        assert sum(moved) == 2 * len(sent.tensors)
        assert frame.receive(other, moved.append) is None


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_are_refused(said: bytes) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(said)
        one.close()
        with pytest.raises((FrameError, OSError)):
            assert frame.receive(other, lambda _: None, 1 << 20) is None


def test_a_frame_larger_than_allowed_is_refused_before_it_is_taken(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    large = Frame(Kind.WANT, tensors=torch.zeros(1 << 22, dtype=torch.uint8))

    def run() -> None:
        with suppress(OSError):
            frame.send(ends[0], large, lambda _: None)

    threading.Thread(target=run, daemon=True).start()
    with pytest.raises(FrameError, match="at most"):
        frame.receive(ends[1], lambda _: None, 1000)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (b'{"feed": 1}\n', "version"),
        (b"[]\n", "version"),
        (b"GET / HTTP/1.1\r\n", "JSON"),
        (b"x" * 5000, "line"),
    ],
)
def test_who_says_no_hello_is_refused(
    ends: tuple[socket.socket, socket.socket], said: bytes, refusal: str
) -> None:
    ends[0].sendall(said)
    with pytest.raises(FrameError, match=refusal):
        frame.read_hello(ends[1])


def test_a_hello_brings_its_token(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(frame.hello("secret"))
    assert frame.read_hello(ends[1]) == "secret"
