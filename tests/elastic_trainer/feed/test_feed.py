"""A newcomer that follows comes to just the state that the others train, or to none."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from elastic_trainer.checkpoint.model_state import ModelState
from elastic_trainer.checkpoint.recovery import NOTHING
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.feed import frame
from elastic_trainer.feed.feeder import Feeder, Job
from elastic_trainer.feed.follower import Follower
from elastic_trainer.feed.following import LEAST_SECONDS
from elastic_trainer.feed.frame import Frame, FrameError, Kind
from elastic_trainer.feed.guest import MEASURED, MEASURED_SECONDS, Guest, measure_speed
from elastic_trainer.feed.relay import Relay
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.state_feed import StateFeed
from elastic_trainer.ranks.process_group import ProcessGroup
from torch.utils._pytree import tree_flatten
from torch.utils.data import TensorDataset

from tests.elastic_trainer.ranks.gpu_streams import stand_in

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda given: torch.optim.AdamW(given, lr=0.01),
    "AdamW, a tensor's rate": lambda given: torch.optim.AdamW(given, lr=torch.tensor(0.01)),
    "SGD": lambda given: torch.optim.SGD(given, lr=0.01),
    "SGD, momentum": lambda given: torch.optim.SGD(given, lr=0.01, momentum=0.9, nesterov=True),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=0.01),
    "RAdam": lambda given: torch.optim.RAdam(given, lr=0.01),
    "Adagrad": lambda given: torch.optim.Adagrad(given, lr=0.01),
    "Rprop": lambda given: torch.optim.Rprop(given, lr=0.01),
}


class Training:
    """One process's model, optimizer, schedule and data."""

    def __init__(self, make: Make = OPTIMIZERS["AdamW"], noise: float = 0.0) -> None:
        torch.manual_seed(0)
        self.last = torch.nn.Linear(8, 1)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), self.last)
        self.optimizer = make(list(self.model.parameters()))
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.9)
        samples = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        self.data = ElasticDataset(samples, batch_size=4, epochs=10**6, group=ProcessGroup())
        self._batches: Iterator[Any] | None = None
        self.state = ModelState(self.model, self.optimizer, self.data, {"schedule": self.schedule})
        self.noise = noise
        self.feed = StateFeed(
            WorkerLink(None), lambda: self.state, self.apply, lambda: "", possible=True
        )

    def apply(self) -> None:
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            self.last.bias.add_(self.noise)  # what nobody else's step does

    def step(self, feeder: Feeder) -> None:
        if self._batches is None:
            self._batches = iter(self.data)
        inputs, labels = next(self._batches)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        feeder.apply(self.feed._change, (7, self.data.steps + 1))
        self.apply()
        self.data.applied()
        feeder.passed(self.state.take, self.identity, 500)

    @property
    def identity(self) -> tuple[int, int]:
        return (7, self.data.steps)


class Newcomer(threading.Thread):
    """Follows in a thread of its own, as a process would."""

    def __init__(
        self,
        training: Training,
        port: int,
        token: str = "",
        relay: Relay | None = None,
        behind: str = "",
    ) -> None:
        super().__init__(daemon=True)
        self.training = training
        self.follower = Follower(training.state, training.feed._replay, lambda _: None, relay)
        self._begin: Callable[[], None] = lambda: self.follower.begin([("127.0.0.1", port)], token)
        if behind:
            self._begin = lambda: self.follower.begin_behind(behind, token)
        self.ready = threading.Event()
        self._place = threading.Event()
        self.found = NOTHING
        self.start()

    def run(self) -> None:
        self._begin()
        while not self.follower.ready:
            self.follower.follow(0.05)
        self.ready.set()
        while not self._place.is_set() and self.follower.follow(0.05):
            pass
        self._place.wait(60)
        self.found = self.follower.settle()

    def placed(self) -> tuple[int, int]:
        self._place.set()
        self.join(60)
        return self.found


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    feeder = Feeder("127.0.0.1", "", 0, lambda _: None)
    yield feeder
    feeder.close()


def train_until(training: Training, feeder: Feeder, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if condition():
            return
        if not any(guest.waiting for guest in feeder.guests):  # who is too slow is left behind
            training.step(feeder)
        time.sleep(0.01)
    raise AssertionError("not within a minute")


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    (ones, shape), (others, other_shape) = tree_flatten(one), tree_flatten(other)
    assert shape == other_shape
    for mine, theirs in zip(ones, others, strict=True):
        if isinstance(mine, torch.Tensor):
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        else:
            assert mine == theirs


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_newcomer_comes_to_the_very_state(feeder: Feeder, make: Make) -> None:
    training, other = Training(make), Training(make)
    training.step(feeder)
    newcomer = Newcomer(other, feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    for _ in range(3):
        training.step(feeder)
    feeder.sync(training.state.take, training.identity, 60)
    assert newcomer.placed() == training.identity
    same(other.state.take(), training.state.take())
    assert other.optimizer.param_groups[0]["lr"] == training.optimizer.param_groups[0]["lr"]
    training.step(feeder)
    other.step(feeder)
    same(other.state.take(), training.state.take())


def test_what_its_steps_lack_is_sent_in_the_end(feeder: Feeder) -> None:
    training, other = Training(noise=0.25), Training()
    training.step(feeder)
    newcomer = Newcomer(other, feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    training.step(feeder)
    feeder.sync(training.state.take, training.identity, 60)
    assert newcomer.placed() == training.identity
    same(other.state.take(), training.state.take())


def test_the_copy_that_it_gets_is_made_in_the_trainings_stream(
    feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus, training = stand_in(monkeypatch), Training()
    newcomer = Newcomer(Training(), feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    assert gpus.taken["copy"] == "the caller's"
    feeder.close()
    newcomer.placed()


def test_one_without_a_place_goes_on_to_follow(feeder: Feeder) -> None:
    training, other = Training(), Training()
    training.step(feeder)
    newcomer = Newcomer(other, feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    feeder.sync(training.state.take, training.identity, 60)
    feeder.go_on_from(training.identity)
    for _ in range(4):
        training.step(feeder)
    feeder.sync(training.state.take, training.identity, 60)
    assert newcomer.placed() == training.identity
    same(other.state.take(), training.state.take())


def test_without_the_last_word_it_has_no_state(feeder: Feeder) -> None:
    training, other = Training(), Training()
    training.step(feeder)
    newcomer = Newcomer(other, feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    feeder.close()  # as if its process had ended
    assert newcomer.placed() == NOTHING
    assert newcomer.follower.touched


def test_a_node_takes_the_state_once_for_all_its_newcomers(feeder: Feeder) -> None:
    training, others = Training(), [Training() for _ in range(3)]
    training.step(feeder)
    place = f"test-feed-{os.getpid()}"
    relay = Relay(place, 2, "")
    newcomers = [Newcomer(others[0], feeder.port, relay=relay)]
    newcomers += [Newcomer(other, 0, behind=place) for other in others[1:]]
    train_until(training, feeder, lambda: all(one.ready.is_set() for one in newcomers))
    assert len(feeder.guests) == 1
    for _ in range(2):
        training.step(feeder)
    feeder.sync(training.state.take, training.identity, 60)
    assert [one.placed() for one in newcomers] == [training.identity] * 3
    for other in others:
        same(other.state.take(), training.state.take())


def test_who_follows_another_state_is_sent_away(feeder: Feeder) -> None:
    training, other = Training(), Training()
    training.step(feeder)
    newcomer = Newcomer(other, feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    feeder.go_on_from((8, training.data.steps))
    assert newcomer.placed() == NOTHING


def test_an_apply_that_fails_leaves_no_state(feeder: Feeder) -> None:
    training, other = Training(), Training()

    failed = threading.Event()

    def fail(_: Mapping[str, Any]) -> None:
        failed.set()
        raise ZeroDivisionError

    training.step(feeder)
    newcomer = Newcomer(other, feeder.port)
    newcomer.follower._replay = fail
    train_until(training, feeder, failed.is_set)
    train_until(training, feeder, newcomer.ready.is_set)
    feeder.sync(training.state.take, training.identity, 5)
    assert newcomer.placed() == NOTHING


def test_a_small_state_is_not_followed() -> None:
    feeder = Feeder("127.0.0.1", "", 1 << 20, lambda _: None)
    training, other = Training(), Training()
    newcomer = Newcomer(other, feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    assert newcomer.placed() == NOTHING
    assert not newcomer.follower.touched
    feeder.close()


def test_nobody_follows_where_that_would_take_the_trainers_memory() -> None:
    feeder = Feeder("127.0.0.1", "", 0, lambda _: None, free=lambda: 100)
    training = Training()
    newcomer = Newcomer(Training(), feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)
    assert newcomer.placed() == NOTHING
    assert not newcomer.follower.touched
    feeder.close()


def test_a_stranger_is_let_go() -> None:
    feeder = Feeder("127.0.0.1", "secret", 0, lambda _: None)
    training = Training()
    stranger = Newcomer(Training(), feeder.port, "guess")
    train_until(training, feeder, stranger.ready.is_set)
    assert stranger.placed() == NOTHING
    assert not feeder.guests
    member = Newcomer(Training(), feeder.port, "secret")
    train_until(training, feeder, member.ready.is_set)
    feeder.sync(training.state.take, training.identity, 60)
    assert member.placed() == training.identity
    feeder.close()


def test_who_comes_while_nobody_trains_waits_for_no_state(
    feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_trainer.feed.feeder.AWAY_SECONDS", 0.0)
    monkeypatch.setattr("elastic_trainer.loop.state_feed.PLACE_SECONDS", 0.0)
    training = Training()
    training.step(feeder)
    training.feed._feeder = feeder
    training.feed.sync(training.identity, broken=True)
    timer = training.feed._sending_away
    assert timer is not None
    timer.join(60)
    newcomer = Newcomer(Training(), feeder.port)
    assert newcomer.ready.wait(60), "those that are left may wait for it"
    assert newcomer.placed() == NOTHING
    assert not newcomer.follower.touched
    training.feed.placed()
    later = Newcomer(Training(), feeder.port)
    train_until(training, feeder, later.ready.is_set)
    feeder.sync(training.state.take, training.identity, 60)
    assert later.placed() == training.identity


def test_training_goes_on_where_a_newcomer_cannot_be_helped(feeder: Feeder) -> None:
    training = Training()
    training.step(feeder)
    training.feed._feeder = feeder
    newcomer = Newcomer(Training(), feeder.port)
    train_until(training, feeder, newcomer.ready.is_set)

    def no_memory() -> Mapping[str, Any]:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    training.feed._attempt(lambda feeder: feeder.apply(no_memory, (7, training.data.steps + 1)))
    assert newcomer.placed() == NOTHING


def test_states_of_modules_that_are_no_tensors_are_adopted() -> None:
    class Counting(torch.nn.Linear):
        counts: Any = frozenset()

        def get_extra_state(self) -> Any:
            return self.counts

        def set_extra_state(self, state: Any) -> None:
            self.counts = state

    trainings = [Training(), Training()]
    for training in trainings:
        training.model.append(Counting(1, 1))
    trainings[0].model[-1].counts = frozenset({1, 2})
    trainings[1].state.give(trainings[0].state.take())
    trainings[1].model[-1].counts = frozenset()
    trainings[1].state.adopt(trainings[0].state.take())
    assert trainings[1].model[-1].counts == {1, 2}


def test_a_node_keeps_no_steps_for_a_newcomer_that_takes_none() -> None:
    place = f"test-slow-{os.getpid()}"
    relay = Relay(place, 1, "secret")
    with socket.socket(socket.AF_UNIX) as strange, socket.socket(socket.AF_UNIX) as silent:
        strange.connect("\0" + place)
        strange.sendall(b'{"feed": 1, "token": "\\ud800"}\n')  # no text, whatever the token is
        silent.connect("\0" + place)
        silent.sendall(frame.hello("secret"))
        relay.gather()
        content = torch.zeros(1 << 20, dtype=torch.uint8)
        relay.hand_on(frame.Frame(frame.Kind.BASE, 7, 1, b"", content))
        for step in range(2, 12):
            relay.hand_on(frame.Frame(frame.Kind.STEP, 7, step, b"", content))
        assert not relay._present()
    relay.close()


def test_a_node_keeps_the_steps_for_a_newcomer_that_still_takes_the_copy() -> None:
    place = f"test-copy-{os.getpid()}"
    relay = Relay(place, 1, "")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect("\0" + place)
        silent.sendall(frame.hello(""))
        relay.gather()
        state, gradients = (torch.zeros(size, dtype=torch.uint8) for size in (10 << 20, 1 << 20))
        relay.hand_on(Frame(Kind.BASE, 7, 1, b"", state))
        for step in range(2, 22):  # twice the state, beside the copy itself
            relay.hand_on(Frame(Kind.STEP, 7, step, b"", gradients))
        assert len(relay._present()) == 1
        for step in range(22, 24):
            relay.hand_on(Frame(Kind.STEP, 7, step, b"", gradients))
        assert not relay._present()
    relay.close()


def test_one_that_takes_nothing_holds_nobody_up(
    feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    with socket.create_connection(("127.0.0.1", feeder.port)) as silent:
        silent.sendall(frame.hello(""))
        train_until(training, feeder, lambda: bool(feeder.guests))
        training.step(feeder)
        guest = feeder.guests[0]
        guest.ready = True
        monkeypatch.setattr("elastic_trainer.feed.feeder.SYNC_SECONDS", 0.1)
        feeder.sync(training.state.take, training.identity, 60)
        assert not feeder.guests


class Behind:
    """A newcomer that says what it is told to, and hears what it is sent."""

    def __init__(self, feeder: Feeder) -> None:
        self.connection = socket.create_connection(("127.0.0.1", feeder.port))
        self.connection.sendall(frame.hello(""))
        self.kinds: list[Kind] = []
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        with contextlib.suppress(OSError, FrameError):  # it may be sent away in the midst of one
            while (came := frame.receive(self.connection, lambda _: None)) is not None:
                self.kinds.append(came.kind)

    def says(self, step: int) -> None:
        frame.send(self.connection, Frame(Kind.READY, 7, step), lambda _: None)

    def ended(self) -> bool:
        self._hearing.join(60)
        self.connection.close()
        return not self._hearing.is_alive()


def come_behind(training: Training, feeder: Feeder, steps: int) -> Behind:
    """Return a newcomer that has a state, and has not made so many steps again."""
    behind = Behind(feeder)
    train_until(training, feeder, lambda: Kind.BASE in behind.kinds)
    at = feeder.guests[0].at
    assert at is not None
    for _ in range(max(0, steps - training.data.steps + at[1])):
        training.step(feeder)
    behind.says(training.data.steps - steps)
    train_until_no_step(lambda: feeder.guests[0].steps_behind == steps)
    return behind


def train_until_no_step(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_is_far_behind_asks_for_no_place_yet(feeder: Feeder) -> None:
    training = Training()
    behind = come_behind(training, feeder, 5)
    training.step(feeder)
    assert not feeder.guests[0].ready
    feeder.close()
    assert behind.ended() and not {Kind.READY_SEEN, Kind.JOIN_BEHIND} & set(behind.kinds)


def test_who_has_followed_for_long_gets_the_state_as_it_joins(feeder: Feeder) -> None:
    training = Training()
    behind = come_behind(training, feeder, 5)
    feeder.guests[0].since -= 2 * LEAST_SECONDS  # a tiny state is worth no more
    training.step(feeder)
    assert behind.ended() and not feeder.guests


def test_who_is_soon_there_may_join_behind_once_it_has_followed_for_long(feeder: Feeder) -> None:
    training = Training()
    behind = come_behind(training, feeder, 6)
    behind.says(training.data.steps - 5)  # in no time
    train_until_no_step(lambda: feeder.guests[0].replay_seconds > 0)
    feeder.guests[0].since -= 2 * LEAST_SECONDS
    training.step(feeder)
    train_until_no_step(lambda: Kind.JOIN_BEHIND in behind.kinds)
    feeder.close()
    assert behind.ended()


def test_a_step_waits_for_who_is_far_behind_unless_the_round_is_over(feeder: Feeder) -> None:
    training = Training()
    behind = come_behind(training, feeder, 6)
    behind.says(training.data.steps - 5)
    train_until_no_step(lambda: feeder.guests[0].replay_seconds > 0)
    feeder.pace.begin()
    for now in (0.0, 0.3):
        feeder.pace.passed(now, followed=True)
    feeder.guests[0]._replays.extend([0.4] * 3)
    lost = feeder.pace.lost
    over = iter([False] * 3 + [True])
    job = Job(over=lambda: next(over))
    feeder.passed(training.state.take, training.identity, 500, job)
    assert next(over, None) is None, "it waited until the round was over"
    assert feeder.pace.lost > lost
    feeder.close()
    assert behind.ended()


def test_steps_that_lead_to_no_state_are_not_made_again() -> None:
    one, other = socket.socketpair()
    training, made = Training(), list[Mapping[str, Any]]()
    follower = Follower(training.state, made.append, lambda _: None)
    with one, other:
        follower._begin(one, "")
        for step in (2, 3):
            frame.send(other, Frame(Kind.STEP, 7, step), lambda _: None)
        other.close()
        train_until_no_step(lambda: follower._ended)
        assert not follower.follow(0.0)
    assert not made and follower.ready and follower.settle() == NOTHING


@pytest.mark.parametrize("word", [Kind.READY_SEEN, Kind.JOIN_BEHIND])
def test_a_node_asks_for_all_its_places_together(word: Kind) -> None:
    place = f"test-together-{os.getpid()}"
    relay = Relay(place, 1, "")
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect("\0" + place)
        slow.sendall(frame.hello(""))
        relay.gather()
        content = torch.zeros(8, dtype=torch.uint8)
        for step in range(5):
            kind = Kind.STEP if step else Kind.BASE
            relay.hand_on(Frame(kind, 7, step, b"", content))
        relay.hand_on(Frame(word))
        kinds: list[Kind] = []
        while word not in kinds:
            came = frame.receive(slow, lambda _: None)
            assert came is not None
            kinds.append(came.kind)
    relay.close()


def test_a_job_misses_who_was_lost_until_it_is_back() -> None:
    nodes = iter([3, 2, 2, 3])
    training = Training()
    feed = StateFeed(
        WorkerLink(None),
        lambda: training.state,
        training.apply,
        lambda: "",
        possible=True,
        nodes=lambda: next(nodes),
    )
    missed = []
    for stood in (False, False, True, True):
        if stood:
            feed.sync(training.identity, broken=False)
        feed.go_on_from(training.identity)
        missed.append(feed._job.missed)
    assert missed == [False, True, True, False]


def test_who_is_one_step_behind_may_ask_for_a_place() -> None:
    one, other = socket.socketpair()
    with one, other:
        guest = Guest(one, lambda _: None)
        guest.at = (7, 20)
        for step in (10, 17, 18, 19):
            frame.send(other, Frame(Kind.READY, 7, step), lambda _: None)
        came = frame.receive(other, lambda _: None)
        assert came is not None and came.kind is Kind.READY_SEEN
        assert guest.ready
        guest.close()


def test_a_slow_network_is_known_before_much_has_come() -> None:
    assert measure_speed(MEASURED, 0.5) == 2 * MEASURED
    assert measure_speed(MEASURED // 8, MEASURED_SECONDS / 2) == 0.0, "it may be in buffers"
    assert measure_speed(MEASURED // 8, 2 * MEASURED_SECONDS) == MEASURED / 16
    assert measure_speed(0, -5.0) == 0.0, "nothing was sent yet"
