"""Ports that are found for programs."""

from __future__ import annotations

import random
import socket

import pytest

from embedded_cluster import readiness


class Choices(random.SystemRandom):
    """Chooses these ports first, one after the other."""

    def __init__(self, *ports: int) -> None:
        super().__init__()
        self.ports = list(ports)

    def choice(self, ports: range) -> int:  # type: ignore[override]
        return self.ports.pop(0) if self.ports else super().choice(ports)


def choose(monkeypatch: pytest.MonkeyPatch, *ports: int) -> Choices:
    choices = Choices(*ports)
    monkeypatch.setattr(readiness, "_random", choices)
    return choices


def test_a_port_is_found_once_though_nobody_listens_there_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [readiness.free_port(), readiness.free_port()]
    choices = choose(monkeypatch, *found)
    assert readiness.free_port() not in found
    assert not choices.ports


@pytest.mark.parametrize("place", range(3))
def test_one_is_not_found_where_it_or_one_of_the_next_two_is_listened_at(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    with socket.create_server((readiness.HOST, 0)) as server:
        taken = server.getsockname()[1] - place
        choices = choose(monkeypatch, taken)
        assert readiness.free_port() != taken
    assert not choices.ports


def test_where_all_ports_are_taken_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = readiness.free_port()
    monkeypatch.setattr(readiness, "_PORTS", range(taken, taken + 3, 3))
    with pytest.raises(OSError, match="end what holds them"):
        readiness.free_port()
