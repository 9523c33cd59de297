"""Hugging Face's Trainer, Lightning's and torchdata's loader: stopped anywhere, they go on without
a loss. `make test-integrations` brings their libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.data.permutation import Permutation
from elastic_trainer.data.process_group import ProcessGroup
from elastic_trainer.data.sampler import ElasticSampler
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [
    # Theirs, on torch newer than they know.
    pytest.mark.filterwarnings("ignore"),
]

SAMPLES, EPOCHS = 22, 3


class Killed(Exception):
    pass


# ---- Hugging Face


def hugging_face(
    folder: Path, *, die_after: int | None = None, audit: Path | None = None, **given: Any
) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
    pytest.importorskip("accelerate", reason="needs the extra [hf]")
    from elastic_trainer.integrations.huggingface import ElasticTrainer

    class Dying(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == die_after:
                raise Killed

    transformers.set_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config)
    words = torch.Generator().manual_seed(1)
    data = [
        {"input_ids": torch.randint(0, 20, (6,), generator=words), "labels": i % 2}
        for i in range(SAMPLES)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=EPOCHS,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **given,
    )
    elastic = ElasticTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        callbacks=[Dying()],
        folder=folder / "commits",
        every=3,
        audit=audit,
    )
    return elastic, model


def parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_hugging_face_goes_on_where_it_was_killed(tmp_path: Path, accumulate: int) -> None:
    given = {"gradient_accumulation_steps": accumulate}
    whole, expected = hugging_face(tmp_path / "whole", **given)
    whole.train()
    audit = tmp_path / "audit"
    for die_after in (2, 6):
        killed, _ = hugging_face(tmp_path, die_after=die_after, audit=audit, **given)
        with pytest.raises(Killed):
            killed.train()
    last, model = hugging_face(tmp_path, audit=audit, **given)
    last.train()
    report = verify(audit, SAMPLES, EPOCHS)
    assert report.ok, report
    assert report.undone > 0
    assert last.state.global_step == whole.state.global_step
    torch.testing.assert_close(parameters(model), parameters(expected))


# ---- Lightning


def lightning_run(
    folder: Path, *, die_after: int | None = None, audit: Path | None = None, **sizes: int
) -> Any:
    lightning = pytest.importorskip("lightning", reason="needs the extra [lightning]")
    from elastic_trainer.integrations.lightning import ElasticCallback

    sampler = ElasticSampler(
        SAMPLES, **(sizes or {"batch_size": 4}), audit=audit, group=ProcessGroup()
    )

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return sampler.weight * (self.net(batch[0]).squeeze(1) - batch[1]).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        def on_train_batch_start(self, *_: Any) -> None:
            if sampler.steps == die_after:
                raise Killed

    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 3)
    data = TensorDataset(inputs, inputs.sum(1))
    module = Module()
    trainer = lightning.Trainer(
        callbacks=[ElasticCallback(folder, sampler, every=2)],
        max_epochs=EPOCHS,
        accelerator="cpu",
        use_distributed_sampler=False,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(data, batch_sampler=sampler))
    return module


def test_lightning_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    expected = lightning_run(tmp_path / "whole")
    audit = tmp_path / "audit"
    for die_after in (1, 5, 9):
        with pytest.raises(Killed):
            lightning_run(tmp_path / "commits", die_after=die_after, audit=audit)
    module = lightning_run(tmp_path / "commits", audit=audit)
    report = verify(audit, SAMPLES, EPOCHS)
    assert report.ok, report
    assert report.undone > 0
    torch.testing.assert_close(parameters(module), parameters(expected))
    again = lightning_run(tmp_path / "commits")  # complete: nothing is trained
    assert torch.equal(parameters(again), parameters(module))


def test_lightning_refuses_steps_of_several_batches(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has both batch_size and global_batch"):
        lightning_run(tmp_path, batch_size=2, global_batch=4)


# ---- torchdata


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_keeps_the_position_of_what_it_returned(workers: int) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def loader(sampler: ElasticSampler) -> Any:
        return loaders.StatefulDataLoader(
            range(SAMPLES), batch_sampler=sampler, num_workers=workers, collate_fn=list
        )

    order = Permutation(SAMPLES, seed=0, epoch=0).slice(0, SAMPLES).tolist()
    ranks = [ElasticSampler(SAMPLES, batch_size=3, group=ProcessGroup(r, 2)) for r in range(2)]
    taken, states = [], []
    for sampler in ranks:
        stateful = loader(sampler)
        batches = iter(stateful)
        taken += [sample for _ in range(2) for sample in next(batches)]
        states.append(stateful.state_dict())  # without applied(): the loader's own bookkeeping
    assert sorted(taken) == sorted(order[:12])

    for world in (1, 3):  # from either rank's state, into another world
        rest = list(taken)
        for rank in range(world):
            sampler = ElasticSampler(SAMPLES, batch_size=4, group=ProcessGroup(rank, world))
            again = loader(sampler)
            again.load_state_dict(states[rank % 2])
            for batch in sampler.follow(again):
                rest += batch if sampler.weight else []
                sampler.applied()
        assert sorted(rest) == list(range(SAMPLES))
