"""Every optimizer, scheduler and memory format of torch: a restored training goes on as if nothing
had happened, bit for bit.

A state goes the way of a commit: to the bytes of a slot, from there to a file as the agent writes
it; what is read from either is given to objects made anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.checkpoint.model_state import ModelState, Stateful
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.store.blob import lay_out, read
from elastic_trainer.store.replica import read_replica, write_replica
from elastic_trainer.store.storage import Storage
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from tests.elastic_trainer.checkpoint.optimizers import names_but

SAVED_AFTER, STEPS = 3, 7

Make = Callable[[Any], torch.optim.Optimizer]


class Net(torch.nn.Module):
    """A convolution, so that channels_last means something, and two equal layers, to be tied."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(2, 4, 2)
        self.first = torch.nn.Linear(16, 16, bias=False)
        self.second = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.convolution(x)).flatten(1)
        return torch.tanh(self.second(torch.tanh(self.first(x))))


def channels_last(net: Net) -> None:
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert not net.convolution.weight.is_contiguous()


def transposed(net: Net) -> None:
    net.first.weight = torch.nn.Parameter(net.first.weight.detach().t())


def gaps(net: Net) -> None:
    wide = net.first.weight.detach().repeat_interleave(2, dim=1)
    net.first.weight = torch.nn.Parameter(wide[:, ::2])


def tied(net: Net) -> None:
    net.second.weight = net.first.weight


FORMATS: dict[str, Callable[[Net], object]] = {
    "contiguous": lambda net: None,
    "channels_last": channels_last,
    "transposed": transposed,
    "gaps": gaps,
    "tied": tied,
    "without a gradient": lambda net: net.first.requires_grad_(False),
    "float16": lambda net: net.half(),
    "bfloat16": lambda net: net.bfloat16(),
}
SPECIAL = {
    "LBFGS": "its step() needs a closure: below",
    "Muon": "takes matrices only: below",
    "SparseAdam": "takes sparse gradients only: below",
}
OPTIMIZERS = names_but(SPECIAL)
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True}],
    "Adam": [{"amsgrad": True}, {"lr": torch.tensor(0.01)}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
}


def variants(name: str) -> Iterator[dict[str, Any]]:
    """Yields the options under which an optimizer keeps or walks its state differently."""
    yield {}
    yield from VARIANTS.get(name, [])
    known = inspect.signature(getattr(torch.optim, name)).parameters
    for option in ("foreach", "fused"):
        if option in known:
            yield {"lr": 0.01, option: True}


class Power:
    """A callable whose own state a LambdaLR saves."""

    def __init__(self) -> None:
        self.base = 0.9

    def __call__(self, epoch: int) -> float:
        self.base = self.base * 0.99
        return float(self.base**epoch)


def chained(optimizer: Any) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, total_iters=2), lr_scheduler.StepLR(optimizer, 2)]
    )


def sequential(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer), lr_scheduler.MultiStepLR(optimizer, [1, 2])]
    return lr_scheduler.SequentialLR(optimizer, parts, [4])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "ChainedScheduler": chained,
    "ConstantLR": lr_scheduler.ConstantLR,
    "CosineAnnealingLR": lambda one: lr_scheduler.CosineAnnealingLR(one, 50),
    "CosineAnnealingWarmRestarts": lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 2),
    "CyclicLR": lambda one: lr_scheduler.CyclicLR(one, 0.001, 0.01, 2, cycle_momentum=False),
    "ExponentialLR": lambda one: lr_scheduler.ExponentialLR(one, 0.8),
    "LambdaLR": lambda one: lr_scheduler.LambdaLR(one, Power()),
    "LinearLR": lr_scheduler.LinearLR,
    "MultiStepLR": lambda one: lr_scheduler.MultiStepLR(one, [2, 4, 6]),
    "MultiplicativeLR": lambda one: lr_scheduler.MultiplicativeLR(one, Power()),
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, 0.01, 20, cycle_momentum=False),
    "PolynomialLR": lambda one: lr_scheduler.PolynomialLR(one, 9),
    "ReduceLROnPlateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0),
    "SequentialLR": sequential,
    "StepLR": lambda one: lr_scheduler.StepLR(one, 2),
    "SWALR": lambda one: SWALR(one, 0.001, 5),
}


@dataclass
class Training:
    """A step's inputs depend on its number alone."""

    net: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    inputs: tuple[int, ...] = (3, 2, 3, 3)
    scaler: torch.amp.GradScaler | None = None
    average: AveragedModel | None = None
    extra: dict[str, Stateful] = field(init=False)

    def __post_init__(self) -> None:
        parts = {"scheduler": self.scheduler, "scaler": self.scaler, "average": self.average}
        self.extra = {name: part for name, part in parts.items() if part is not None}
        self.state = ModelState(
            self.net, self.optimizer, ElasticSampler(9, batch_size=1), self.extra
        )

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            self.step(step)

    def step(self, step: int) -> None:
        torch.default_generator.manual_seed(step)  # other devices' would each note a stack
        kind = next(self.net.parameters()).dtype
        x = torch.randn(self.inputs).to(kind)
        if len(self.inputs) < 2:
            x = torch.randint(0, 9, self.inputs)
        self.optimizer.zero_grad()

        def loss() -> torch.Tensor:
            self.optimizer.zero_grad()
            found: torch.Tensor = self.net(x).square().sum()
            (found if self.scaler is None else self.scaler.scale(found)).backward()
            return found

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(loss)  # type: ignore[arg-type]
        elif self.scaler is not None:
            loss()
            if step == 1:  # a step that the scaler skips
                next(self.net.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss()
            self.optimizer.step()
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(1.0)
        elif self.scheduler is not None:
            self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.net)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def through_memory(state: dict[str, Any]) -> dict[str, Any]:
    blob = lay_out(state)
    slot = torch.zeros(blob.size, dtype=torch.uint8)
    blob.write(slot)
    found: dict[str, Any] = read(blob.skeleton, memoryview(slot.numpy()))
    return found


def through_storage(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    storage = Storage(folder)
    return read_replica(storage, write_replica(storage, step=1, run=1, state=through_memory(state)))


def goes_on(make: Callable[[], Training], folder: Path | None = None) -> None:
    """Asserts that a training restored in the middle ends as the undisturbed one."""
    whole = make()
    whole.train(0, SAVED_AFTER)
    state = {**whole.state.take(), "rng": {}}
    saved = through_memory(state) if folder is None else through_storage(state, folder)
    again = make()
    again.train(100, 101)  # it has another state, which has to go
    again.state.give(saved)
    del saved
    whole.train(SAVED_AFTER, STEPS)
    assert all(parameter.isfinite().all() for parameter in whole.net.parameters())
    again.train(SAVED_AFTER, STEPS)
    assert_same(again.state.take(), whole.state.take())


def assert_same(found: Any, expected: Any, at: str = "state") -> None:
    assert type(found) is type(expected), at
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, at
        assert found.stride() == expected.stride(), at
        assert torch.equal(found, expected), at
    elif isinstance(expected, dict):
        assert list(found) == list(expected), at
        for key, value in expected.items():
            assert_same(found[key], value, f"{at}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), at
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{at}/{number}")
    else:
        assert found == expected, at


def training(
    optimizer: Make, *, form: str = "contiguous", scheduler: str = "", **given: Any
) -> Training:
    torch.default_generator.manual_seed(0)
    net = Net()
    FORMATS[form](net)
    made = optimizer(net.parameters())
    for group in made.param_groups:
        if form == "float16" and isinstance(group.get("eps"), float):
            group["eps"] = 1e-3  # 1e-8 is 0 there: all would be nan
    schedule = SCHEDULERS[scheduler](made) if scheduler else None
    return Training(net, made, schedule, **given)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_in_every_memory_format(name: str, tmp_path: Path) -> None:
    for number, options in enumerate(variants(name)):
        for form in FORMATS:
            if name == "Adafactor" and options.get("fused"):
                continue

            def make(options: Any = options, form: str = form) -> Training:
                return training(lambda p: getattr(torch.optim, name)(p, **options), form=form)

            goes_on(make, None if number else tmp_path / form)
            if not number:
                goes_on(make)


def formats(scheduler: str, *, besides: int = 0, without: Collection[str] = ()) -> list[str]:
    """Return the memory format that this scheduler is tried in: each in turn, beside several
    optimizers another one beside each, so that each two of the three are met."""
    usable = [form for form in FORMATS if form not in without]
    return [usable[(list(SCHEDULERS).index(scheduler) + besides) % len(usable)]]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_scheduler_goes_on_with_every_optimizer(
    name: str, scheduler: str, pytestconfig: pytest.Config
) -> None:
    some = formats(scheduler, besides=OPTIMIZERS.index(name))
    for form in FORMATS if pytestconfig.getoption("--long") else some:
        goes_on(lambda: training(getattr(torch.optim, name), form=form, scheduler=scheduler))  # noqa: B023


def test_no_scheduler_of_torch_is_left_out() -> None:
    base = lr_scheduler.LRScheduler
    known = {
        name
        for name, kind in vars(lr_scheduler).items()
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
    }
    assert known - {"_LRScheduler"} == SCHEDULERS.keys() - {"SWALR"}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_goes_on_from_storage(scheduler: str, tmp_path: Path) -> None:
    goes_on(lambda: training(torch.optim.AdamW, scheduler=scheduler), tmp_path)


@pytest.mark.parametrize("cycled", ["CyclicLR", "OneCycleLR"])
def test_momentum_that_is_cycled_goes_on(cycled: str) -> None:
    def make() -> Training:
        made = training(lambda p: torch.optim.SGD(p, 0.01, momentum=0.9))
        schedule: Any = (
            lr_scheduler.CyclicLR(made.optimizer, 0.001, 0.01, 2)
            if cycled == "CyclicLR"
            else lr_scheduler.OneCycleLR(made.optimizer, 0.01, 20)
        )
        return Training(made.net, made.optimizer, schedule)

    goes_on(make)


@pytest.mark.parametrize(
    "form", sorted(FORMATS.keys() - {"float16"})
)  # torch unscales no such gradients
def test_a_gradient_scaler_goes_on(form: str, tmp_path: Path) -> None:
    def make() -> Training:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        return training(torch.optim.SGD, form=form, scaler=scaler)

    goes_on(make)
    goes_on(make, tmp_path)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["mean", "exponential"])
def test_an_averaged_model_goes_on(form: str, kind: str, tmp_path: Path) -> None:
    def make() -> Training:
        made = training(torch.optim.Adam, form=form)
        decay: Any = get_ema_multi_avg_fn(0.9) if kind == "exponential" else None
        average = AveragedModel(made.net, multi_avg_fn=decay)
        return Training(made.net, made.optimizer, average=average)

    goes_on(make)
    goes_on(make, tmp_path)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_lbfgs_goes_on(scheduler: str, tmp_path: Path) -> None:
    # torch's takes contiguous gradients only
    others = FORMATS.keys() - {"contiguous", "tied", "bfloat16"}
    for number, search in enumerate((None, "strong_wolfe")):
        for form in formats(scheduler, besides=number, without=others):

            def make(search: Any = search, form: str = form) -> Training:
                return training(
                    lambda p: torch.optim.LBFGS(p, 0.01, max_iter=4, line_search_fn=search),
                    form=form,
                    scheduler=scheduler,
                )

            goes_on(make)
        goes_on(make, tmp_path / str(number))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_muon_goes_on(scheduler: str, tmp_path: Path) -> None:
    for form in formats(scheduler, without={"channels_last"}):  # of four dimensions only

        def make(form: str = form) -> Training:
            torch.manual_seed(0)
            net = Net()
            FORMATS[form](net)
            matrices = torch.nn.Sequential(net.first, torch.nn.Tanh(), net.second)
            optimizer = torch.optim.Muon(matrices.parameters())
            return Training(matrices, optimizer, SCHEDULERS[scheduler](optimizer), inputs=(3, 16))

        goes_on(make)
    goes_on(make, tmp_path)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_sparse_adam_goes_on(scheduler: str, tmp_path: Path) -> None:
    def make() -> Training:
        torch.manual_seed(0)
        net = torch.nn.Embedding(9, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(net.parameters())
        return Training(net, optimizer, SCHEDULERS[scheduler](optimizer), inputs=(5,))

    goes_on(make)
    goes_on(make, tmp_path)
