"""DeviceClock reads a device's own times, late, and waits for nothing."""

from __future__ import annotations

import pytest
import torch
from elastic_trainer.loop.batch_clock import BatchClock, clock_of
from elastic_trainer.loop.device_clock import MOST_PENDING, DeviceClock, Mark, mark_on
from hypothesis import given
from hypothesis import strategies as st


class Device:
    """Work that is queued, each piece with its milliseconds, and how much of it is done."""

    def __init__(self) -> None:
        self.queued = self.done = 0.0

    def mark(self) -> Mark:
        return Place(self, self.queued)


class Place:
    def __init__(self, device: Device, at: float) -> None:
        self.device, self.at = device, at

    def query(self) -> bool:
        return self.device.done >= self.at

    def elapsed_time(self, end: Place, /) -> float:
        assert self.query() and end.query()
        return end.at - self.at


@given(
    st.lists(
        st.tuples(
            *(st.integers(0, 50) for _ in range(4)),  # forward and backward, wait, step, idle
            st.integers(0, 9),
            st.integers(0, 200),
        ),
        max_size=MOST_PENDING,
    )
)
def test_all_of_the_devices_time_is_told_once_and_only_when_it_is_done(
    batches: list[tuple[int, int, int, int, int, int]],
) -> None:
    device = Device()
    net = torch.nn.Linear(1, 1)
    clock = DeviceClock(list(net.parameters()), device.mark)
    told = [0, 0, 0, 0]

    def take() -> None:
        told[:] = [one + more for one, more in zip(told, clock.take(), strict=True)]

    for compute, wait, step, idle, samples, done in batches:
        clock.begin()
        device.queued += compute
        net(torch.ones(1, 1)).sum().backward()
        device.queued += wait
        clock.end(samples)
        device.queued += step
        clock.passed()
        device.queued += idle
        device.done = min(device.queued, device.done + done)
        take()
    device.done = device.queued
    take()
    compute, network = (sum(b[0] + b[2] for b in batches), sum(b[1] for b in batches))
    assert told[2:] == [len(batches), sum(b[4] for b in batches)]
    assert told[:2] == [compute * 1_000_000, network * 1_000_000]
    assert clock.take() == (0, 0, 0, 0)


def test_a_batch_without_a_backward_pass_is_not_measured_and_few_are_waited_for() -> None:
    device = Device()
    net = torch.nn.Linear(1, 1)
    clock = DeviceClock(list(net.parameters()), device.mark)
    clock.begin()
    clock.end(1)
    clock.passed()
    assert clock.take() == (0, 0, 0, 0)
    for _ in range(3 * MOST_PENDING):
        clock.begin()
        net(torch.ones(1, 1)).sum().backward()
        clock.end(1)
        device.queued += 1
        clock.passed()
    device.done = device.queued
    assert clock.take()[2] == MOST_PENDING


def test_a_model_on_the_cpu_or_on_several_devices_has_the_other_clock() -> None:
    net = torch.nn.Linear(1, 1)
    assert isinstance(clock_of(list(net.parameters())), BatchClock)
    parts = [*net.parameters(), *torch.nn.Linear(1, 1, device="meta").parameters()]
    assert isinstance(clock_of(parts), BatchClock)
    assert isinstance(clock_of([]), BatchClock)


def test_marks_are_in_the_models_own_work_whichever_gpu_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        def __init__(self, device: torch.device, enable_timing: bool) -> None:
            assert enable_timing
            self.on: object = "the current GPU"

        def record(self, stream: object = "the current GPU") -> None:
            self.on = stream

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    mark = mark_on(torch.device("cuda", 3))
    assert mark is not None
    marked: object = mark()
    assert isinstance(marked, Event) and marked.on == "stream of cuda:3"
