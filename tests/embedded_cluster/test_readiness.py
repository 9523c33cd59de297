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


def test_none_of_several_in_a_row_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = readiness.free_port(3)
    choices = choose(monkeypatch, first + 2, first - 1)
    assert {readiness.free_port(2) + more for more in (0, 1)}.isdisjoint(range(first, first + 3))
    assert not choices.ports


def test_one_that_is_listened_at_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((readiness.HOST, 0)) as server:
        taken = server.getsockname()[1]
        choices = choose(monkeypatch, taken)
        assert readiness.free_port() != taken
    assert not choices.ports
