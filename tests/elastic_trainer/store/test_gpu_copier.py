"""GpuCopier's order of streams and events, on a GPU that does its work in any order it may."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from elastic_trainer.store.copier import GpuCopier


class Stream:
    """Work that is done in order, each piece once an event has come, if there is one."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.work: deque[tuple[Event | None, Callable[[], object]]] = deque()
        gpu.streams.append(self)

    def give(self, work: Callable[[], object]) -> None:
        self.work.append((None, work))

    def may_go_on(self) -> bool:
        event, _ = self.work[0]
        return event is None or event.done

    def wait_event(self, event: Event) -> None:
        self.work.append((event, lambda: None))

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.gpu)
        event.record(other)
        self.wait_event(event)


class Event:
    def __init__(self, gpu: Gpu, *, enable_timing: bool = False) -> None:
        self.gpu, self.done = gpu, False

    def record(self, stream: Stream | None = None) -> None:
        def come() -> None:
            self.done = True

        (stream or self.gpu.current).give(come)

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.gpu.run(lambda: self.done)


class Gpu:
    """Stands for torch.cuda: of several streams whose turn it may be, any one goes on."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.streams: list[Stream] = []
        self.current = Stream(self)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            ready = [one for one in self.streams if one.work and one.may_go_on()]
            assert ready or not any(one.work for one in self.streams), "they wait for one another"
            if not ready:
                return
            self.chance.choice(ready).work.popleft()[1]()

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: dict[str, Any] = {
            "Stream": lambda: Stream(self),
            "Event": lambda **options: Event(self, **options),
            "current_stream": lambda device=None: self.current,
            "stream": self.stream,
            "device": lambda device: contextlib.nullcontext(),
        }
        for name, one in given.items():
            monkeypatch.setattr(torch.cuda, name, one)


@pytest.mark.parametrize("seed", range(30))
def test_a_copy_is_after_the_step_before_it_and_before_the_one_after(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    gpu = Gpu(seed)
    gpu.stand_in(monkeypatch)
    training = gpu.current
    copier = GpuCopier(torch.device("cuda", 0))
    state, copied = [0, 0], list[int]()

    def apply(step: int) -> None:
        state[:] = [step, step]

    def keep(place: int) -> None:
        copied.append(state[place])

    def copy_all() -> None:
        for place in range(2):
            gpu.current.give(partial(keep, place))

    for step in range(1, 4):
        training.give(partial(apply, step))
        copy = copier.start(copy_all)
        assert not copy.done(), "nobody waits for it"
        training.give(lambda: None)  # the next forward pass
        copy.precede()
    training.give(partial(apply, 4))
    gpu.run(lambda: False)
    assert copied == [1, 1, 2, 2, 3, 3] and copy.done()


@pytest.mark.parametrize("seed", range(30))
def test_who_waits_for_it_waits_for_all_of_it_and_for_nothing_of_the_next_step(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    gpu = Gpu(seed)
    gpu.stand_in(monkeypatch)
    training, copied = gpu.current, list[int]()
    copy = GpuCopier(torch.device("cuda", 0)).start(
        lambda: gpu.current.give(lambda: copied.append(1))
    )
    stuck = Event(gpu)
    training.wait_event(stuck)  # the next forward pass takes long
    copy.wait()
    assert copied == [1] and copy.done() and training.work
