"""ElasticLoop's apply: all that a step changes, in one place, done whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import elastic_trainer.loop.loop as loop_module
import pytest
import torch
import torch.distributed as dist
from elastic_trainer import ElasticDataset, ElasticLoop
from torch.utils.data import TensorDataset

Body = Callable[[ElasticLoop, torch.Tensor], None]


def made(folder: Path, **given: Any) -> ElasticLoop:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    data = ElasticDataset(
        TensorDataset(torch.randn(24, 2)),
        global_batch=4,
        batch_size=given.pop("batch_size", 4),
        epochs=1,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return ElasticLoop(folder, model=net, optimizer=optimizer, data=data, **given)


def loss(loop: ElasticLoop, x: torch.Tensor) -> torch.Tensor:
    return loop.weight * loop.model(x).square().mean()


def run(loop: ElasticLoop, body: Body, after: Callable[[], object] = lambda: None) -> None:
    for (x,) in loop:
        with loop.step():
            body(loop, x)
        after()


def plain(loop: ElasticLoop, x: torch.Tensor) -> None:
    loss(loop, x).backward()


def test_an_optimizer_that_needs_a_closure_is_refused_in_words(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    data = ElasticDataset(TensorDataset(torch.randn(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.LBFGS(net.parameters())
    with pytest.raises(ValueError, match=r"LBFGS.*closure.*or Checkpointer"):
        ElasticLoop(tmp_path, model=net, optimizer=optimizer, data=data)


def test_apply_is_called_once_a_step_with_all_gradients_added_up(tmp_path: Path) -> None:
    seen: list[float] = []

    def apply() -> None:
        weight = loop.module[0].weight.grad
        assert weight is not None
        seen.append(weight.norm().item())
        loop.optimizer.step()

    loop = made(tmp_path / "two batches", apply=apply, batch_size=2)
    run(loop, plain)
    assert len(seen) == loop.steps == 6


def test_what_apply_changes_is_committed_and_restored(tmp_path: Path) -> None:
    def training() -> tuple[ElasticLoop, dict[str, Any]]:
        loop = made(tmp_path, apply=lambda: apply())
        average = torch.optim.swa_utils.AveragedModel(
            loop.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 2)
        scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        extra = {"average": average, "scheduler": scheduler, "scaler": scaler}
        loop = ElasticLoop(
            tmp_path,
            model=loop.module,
            optimizer=loop.optimizer,
            data=loop.data,
            apply=lambda: apply(),
            extra=extra,
        )

        def apply() -> None:
            scaler.unscale_(loop.optimizer)
            torch.nn.utils.clip_grad_norm_(loop.module.parameters(), 0.01)
            scaler.step(loop.optimizer)
            scaler.update()
            average.update_parameters(loop.module)
            scheduler.step()

        return loop, extra

    loop, extra = training()
    run(loop, lambda loop, x: extra["scaler"].scale(loss(loop, x)).backward())
    assert extra["scaler"].get_scale() == 2.0**16 * 2**3  # grew each second step
    assert extra["scheduler"].last_epoch == 6

    again, restored = training()
    run(again, plain)  # there is nothing left to do
    assert again.steps == 6
    assert restored["scaler"].get_scale() == extra["scaler"].get_scale()
    assert restored["scheduler"].state_dict() == extra["scheduler"].state_dict()
    for found, expected in zip(
        restored["average"].state_dict().values(),
        extra["average"].state_dict().values(),
        strict=True,
    ):
        assert found.equal(expected)


def test_an_apply_that_fails_half_way_is_never_gone_on_from(tmp_path: Path) -> None:
    def apply() -> None:
        loop.optimizer.step()
        raise KeyError("after the optimizer's step")

    loop = made(tmp_path, apply=apply)
    with pytest.raises(KeyError):
        run(loop, plain)
    assert loop.steps == 0
    with pytest.raises(RuntimeError, match="half way"):
        run(loop, plain)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_apply_that_communicates_is_refused(tmp_path: Path, group: None) -> None:
    def apply() -> None:
        dist.all_reduce(torch.ones(1))
        loop.optimizer.step()

    loop = made(tmp_path, apply=apply)
    with pytest.raises(RuntimeError, match="apply communicated between ranks"):
        run(loop, plain)


@pytest.mark.parametrize("custom", [False, True], ids=["default", "apply"])
def test_another_optimizer_in_the_body_is_refused(tmp_path: Path, custom: bool) -> None:
    other = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    given = {"apply": lambda: loop.optimizer.step()} if custom else {}
    loop = made(tmp_path, **given)

    def body(loop: ElasticLoop, x: torch.Tensor) -> None:
        plain(loop, x)
        other.step()

    with pytest.raises(RuntimeError, match=r"SGD\.step\(\) was called beside ElasticLoop's apply"):
        run(loop, body)
    other.step()  # but not once the loop is left


def test_another_optimizer_of_the_model_is_refused_after_the_body_too(tmp_path: Path) -> None:
    loop = made(tmp_path)
    other = torch.optim.SGD(loop.module[0].parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="beside ElasticLoop's apply"):
        run(loop, plain, after=other.step)


def test_an_optimizer_of_something_else_may_step_between_steps(tmp_path: Path) -> None:
    probe = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    loop = made(tmp_path)
    run(loop, plain, after=optimizer.step)
    assert loop.steps == 6


def test_other_optimizers_step_in_apply_and_their_gradients_are_zeroed(tmp_path: Path) -> None:
    first = made(tmp_path / "unused")
    head, body = first.module[2], first.module[:2]
    heads = torch.optim.SGD(head.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)

    def apply() -> None:
        optimizer.step()
        heads.step()

    split = ElasticLoop(
        tmp_path / "split",
        model=first.module,
        optimizer=optimizer,
        data=first.data,
        apply=apply,
        extra={"heads": heads},
    )
    run(split, plain)
    whole = made(tmp_path / "whole")
    run(whole, plain)
    for found, expected in zip(split.module.parameters(), whole.module.parameters(), strict=True):
        assert found.equal(expected)


def test_an_optimizer_that_apply_steps_and_extra_lacks_is_refused(tmp_path: Path) -> None:
    first = made(tmp_path / "unused")
    heads = torch.optim.SGD(first.module[2].parameters(), lr=0.1)

    def apply() -> None:
        split.optimizer.step()
        heads.step()

    split = ElasticLoop(
        tmp_path / "split",
        model=first.module,
        optimizer=torch.optim.SGD(first.module[:2].parameters(), lr=0.1),
        data=first.data,
        apply=apply,
    )
    with pytest.raises(RuntimeError, match=r"SGD\), which is neither .* among its extra"):
        run(split, plain)


class LookAhead(torch.optim.Optimizer):
    """Steps an optimizer inside of it, whose state is part of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_inside_another_may_step(tmp_path: Path) -> None:
    first = made(tmp_path / "unused")
    outer = LookAhead(torch.optim.SGD(first.module.parameters(), lr=0.1))
    loop = ElasticLoop(
        tmp_path / "outer",
        model=first.module,
        optimizer=outer,
        data=first.data,
        apply=outer.step,
    )
    run(loop, plain)
    whole = made(tmp_path / "whole")
    run(whole, plain)
    for found, expected in zip(loop.module.parameters(), whole.module.parameters(), strict=True):
        assert found.equal(expected)


def test_what_each_rank_would_train_by_itself_is_refused(tmp_path: Path) -> None:
    first = made(tmp_path / "unused")
    critic = torch.nn.Linear(1, 1)
    others = torch.optim.SGD(critic.parameters(), lr=0.1)
    given = {
        "model": first.module,
        "optimizer": first.optimizer,
        "data": first.data,
        "apply": lambda: None,
        "extra": {"critic": critic, "others": others},
    }
    with pytest.raises(ValueError, match=r"2 of 2 parameters .* only the model's gradients are"):
        ElasticLoop(tmp_path / "gan", **given)
    wrapped = ElasticLoop(tmp_path / "wrapped", wrap=lambda model: model, **given)
    assert wrapped.steps == 0, "a wrap of one's own may average them"


def test_a_scaled_loss_without_apply_is_refused(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu")
    loop = made(tmp_path)
    before = loop.module[0].weight.clone()
    with pytest.raises(RuntimeError, match="scaled by a GradScaler, and optimizer"):
        run(loop, lambda loop, x: scaler.scale(loss(loop, x)).backward())
    assert loop.module[0].weight.equal(before)
    scaler.scale(torch.ones(1))  # but not once the loop is left
    with pytest.raises(ValueError, match="extra has a GradScaler, 'scaler'"):
        made(tmp_path, extra={"scaler": scaler})


def test_a_scaler_that_newcomers_would_not_get_is_refused(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu")
    loop = made(tmp_path, apply=lambda: scaler.step(loop.optimizer))
    with pytest.raises(RuntimeError, match="not among ElasticLoop's extra"):
        run(loop, lambda loop, x: scaler.scale(loss(loop, x)).backward())


def test_a_scaler_that_is_off_is_no_scaler(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    loop = made(tmp_path, extra={"scaler": scaler})
    run(loop, lambda loop, x: scaler.scale(loss(loop, x)).backward())
    assert loop.steps == 6


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
@pytest.mark.parametrize("where", ["body", "after"])
def test_a_scheduler_stepped_for_a_batch_that_applied_nothing_is_refused(
    tmp_path: Path, where: str
) -> None:
    unused = made(tmp_path / "unused")
    scheduler = torch.optim.lr_scheduler.StepLR(unused.optimizer, 2)
    loop = ElasticLoop(
        tmp_path,
        model=unused.module,
        optimizer=unused.optimizer,
        data=ElasticDataset(
            TensorDataset(torch.randn(8, 2)), global_batch=4, batch_size=2, epochs=1
        ),
        extra={"schedule": scheduler},
    )

    def body(loop: ElasticLoop, x: torch.Tensor) -> None:
        plain(loop, x)
        if where == "body":
            scheduler.step()

    with pytest.raises(RuntimeError, match="'schedule' was stepped for a batch that applied no"):
        run(loop, body, after=scheduler.step if where == "after" else lambda: None)


def test_what_follows_the_body_of_an_undone_step_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer is lost in the body of the third step; the scheduler and the average follow the
    `with`, as in a plain loop."""

    def train(name: str, lost_at: int) -> tuple[list[Any], int]:
        unused = made(tmp_path / f"{name} unused")
        average = torch.optim.swa_utils.AveragedModel(unused.module)
        scheduler = torch.optim.lr_scheduler.StepLR(unused.optimizer, 2)
        loop = ElasticLoop(
            tmp_path / name,
            model=unused.module,
            optimizer=unused.optimizer,
            data=unused.data,
            extra={"average": average, "schedule": scheduler},
        )
        bodies = 0

        def body(loop: ElasticLoop, x: torch.Tensor) -> None:
            nonlocal bodies
            bodies += 1
            plain(loop, x)
            if bodies == lost_at:
                monkeypatch.setattr(loop._member, "peer_lost", lambda link: True)
                raise RuntimeError("connection closed by peer")
            monkeypatch.setattr(loop._member, "peer_lost", lambda link: False)

        def after() -> None:
            scheduler.step()
            average.update_parameters(loop.module)

        run(loop, body, after)
        values = [*loop.module.state_dict().values(), *average.state_dict().values()]
        return [
            *values,
            torch.tensor(scheduler.last_epoch),
            torch.tensor(loop.optimizer.param_groups[0]["lr"]),
        ], bodies

    undisturbed, bodies = train("undisturbed", 0)
    assert bodies == 6
    assert not caplog.records
    disturbed, bodies = train("disturbed", 3)
    assert bodies == 7
    for found, expected in zip(disturbed, undisturbed, strict=True):
        assert found.equal(expected)
    assert "'schedule' was stepped for step 3, which was undone" in caplog.text


def test_buffers_of_an_aborted_forward_are_put_back_in_extra_modules_too(tmp_path: Path) -> None:
    critic = torch.nn.BatchNorm1d(2)
    loop = made(tmp_path, extra={"critic": critic})
    before = {name: value.clone() for name, value in critic.state_dict().items()}

    def body(loop: ElasticLoop, x: torch.Tensor) -> None:
        critic(x)
        raise KeyError

    with pytest.raises(KeyError):
        run(loop, body)
    loop._take_back()
    for name, value in critic.state_dict().items():
        assert value.equal(before[name])


def test_buffers_of_any_layout_are_put_back() -> None:
    module = torch.nn.Module()
    module.register_buffer("plain", torch.arange(6.0))
    module.register_buffer("turned", torch.arange(6.0).reshape(2, 3).t())
    module.register_buffer("count", torch.tensor(3))
    module.register_buffer("empty", torch.empty(0))
    expected = {name: value.clone() for name, value in module.named_buffers()}
    backup = loop_module.BufferBackup([module, module])
    backup.save()
    for value in module.buffers():
        value.add_(1)
    backup.restore()
    for name, value in module.named_buffers():
        assert value.equal(expected[name])


def test_dropout_is_that_of_the_step_whichever_way_it_is_seeded(tmp_path: Path) -> None:
    """The first steps of a round seed all devices, the later ones those in use."""
    drawn: dict[int, float] = {}

    def body(loop: ElasticLoop, x: torch.Tensor) -> None:
        plain(loop, x)
        drawn[loop.steps] = torch.rand(1).item()

    loop = made(tmp_path)
    run(loop, body)
    assert len(drawn) == 6
    for step, found in drawn.items():
        torch.manual_seed(hash((loop.data.seed, step, 0)))
        assert torch.rand(1).item() == found


def test_a_broken_round_is_left_between_the_batches_of_a_step(tmp_path: Path) -> None:
    """Under no_sync no collective would notice; a step may have hours of batches."""
    loop = made(tmp_path, batch_size=1)
    batches = 0
    before = [value.clone() for value in loop.module.state_dict().values()]

    def body(loop: ElasticLoop, x: torch.Tensor) -> None:
        nonlocal batches
        batches += 1
        loop.model(torch.cat([x, x])).square().mean().backward()
        if batches == 2:
            loop.link._over_round = loop.link.round  # as the agent's "over" does
        if batches == 3:
            raise KeyError("the next round's first batch")

    def next_round(*_: object, **__: object) -> None:
        loop.link._over_round = -1
        for found, expected in zip(loop.module.state_dict().values(), before, strict=True):
            assert found.equal(expected)

    loop._member.disconnect = next_round  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        run(loop, body)
    assert loop.steps == 0
    assert loop._broken is False  # a new round was entered
