"""Hugging Face's Trainer, Lightning's and torchdata's loader: stopped anywhere, they go on without
a loss. `make test-integrations` brings their libraries."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.data.shard_files import HuggingFaceShards
from elastic_trainer.data.stream import ElasticStream
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.shards.permutation import Permutation
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
    folder: Path,
    *,
    die_after: int | None = None,
    stop_after: int | None = None,
    audit: Path | None = None,
    columns: bool = False,
    **given: Any,
) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
    pytest.importorskip("accelerate", reason="needs the extra [hf]")
    from elastic_trainer.integrations.huggingface import ElasticTrainer

    class Dying(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == die_after:
                raise Killed
            if state.global_step == stop_after:
                control.should_training_stop = True

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
    if columns:
        data = [{**one, "note": "no model takes it"} for one in data]
    given = {"per_device_train_batch_size": 4, "num_train_epochs": EPOCHS, **given}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
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


def test_a_part_of_an_epoch_is_trained(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    killed, _ = hugging_face(tmp_path, die_after=4, num_train_epochs=1.5)
    with pytest.raises(Killed):
        killed.train()
    trainer, _ = hugging_face(tmp_path, audit=audit, num_train_epochs=1.5)
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == 9  # as Trainer's
    assert trainer._sampler.consumed == 22 + 12
    again, _ = hugging_face(tmp_path, num_train_epochs=1.5)
    again.train()
    assert again.state.global_step == 9  # nothing was left to do


def test_a_seed_of_zero_for_the_data_is_one(tmp_path: Path) -> None:
    assert hugging_face(tmp_path, data_seed=0, seed=5)[0]._sampler.seed == 0
    assert hugging_face(tmp_path / "other", seed=5)[0]._sampler.seed == 5


def test_columns_that_the_model_does_not_take_are_removed(tmp_path: Path) -> None:
    trainer, _ = hugging_face(tmp_path, columns=True)
    (batch, *_) = list(trainer.get_train_dataloader())
    assert set(batch) == {"input_ids", "labels"}


def test_loader_options_are_honoured_or_refused(tmp_path: Path) -> None:
    given = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    assert hugging_face(tmp_path, **given)[0].get_train_dataloader().persistent_workers
    with pytest.raises(ValueError, match="every sample counts"):
        hugging_face(tmp_path / "drop", dataloader_drop_last=True)
    transformers = pytest.importorskip("transformers")
    if hasattr(transformers.TrainingArguments, "dataloader_in_order"):
        with pytest.raises(ValueError, match="order of the steps"):
            hugging_face(tmp_path / "order", dataloader_in_order=False)


def test_the_gradient_scaler_is_saved(tmp_path: Path) -> None:
    def run(die_after: int | None = None) -> Any:
        trainer, _ = hugging_face(tmp_path, die_after=die_after)
        trainer.accelerator.scaler = torch.amp.GradScaler(
            "cpu", init_scale=4.0, growth_interval=1000
        )
        return trainer

    killed = run(die_after=7)
    killed.accelerator.scaler.load_state_dict(
        {**killed.accelerator.scaler.state_dict(), "scale": 32.0}
    )
    with pytest.raises(Killed):
        killed.train()
    restored = run(die_after=8)
    with pytest.raises(Killed):
        restored.train()
    assert restored.accelerator.scaler.get_scale() == 32.0


def test_the_schedule_is_where_the_samples_are_in_any_world(tmp_path: Path) -> None:
    # Half of the training in steps of 4 samples, half in steps of 2.
    killed, _ = hugging_face(tmp_path, die_after=10)
    with pytest.raises(Killed):
        killed.train()
    before = {}
    for size, name in ((4, "same"), (2, "other")):
        shutil.copytree(tmp_path / "commits", tmp_path / name / "commits")
        trainer, _ = hugging_face(tmp_path / name, per_device_train_batch_size=size)
        seen: dict[int, float] = {}
        rates(trainer, seen)
        trainer.train()
        before[name] = seen
    common = before["same"].keys() & before["other"].keys()
    assert len(common) > 5
    for consumed in common:
        assert before["other"][consumed] == pytest.approx(before["same"][consumed])
    assert min(before["other"].values()) == pytest.approx(0.0, abs=1e-12)


def test_a_callback_that_stops_training_is_heard(tmp_path: Path) -> None:
    trainer, _ = hugging_face(tmp_path, stop_after=5)
    trainer.train()
    assert trainer.state.global_step == 5
    again, _ = hugging_face(tmp_path)
    again.train()
    assert again._sampler.consumed == SAMPLES * EPOCHS, "and goes on from there, if begun again"


def rates(trainer: Any, seen: dict[int, float]) -> None:
    """Notes the learning rate after each step, by the samples trained on."""
    import transformers

    class Noting(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
            seen[trainer._sampler.consumed] = found["lr_scheduler"].get_last_lr()[0]

    trainer.add_callback(Noting())


# ---- Lightning


def test_an_epochs_end_is_made_after_a_restart_within_it(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs the extra [lightning]")
    from elastic_trainer.integrations.lightning import ElasticCallback

    ended: list[tuple[str, int, int]] = []

    def run(die: bool) -> Any:
        sampler = ElasticSampler(8, batch_size=4, group=ProcessGroup())

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, _: int) -> Any:
                return sampler.weight * self.net(batch[0]).square().mean()

            def validation_step(self, batch: Any, _: int) -> None:
                if die and self.current_epoch == 1:
                    raise Killed
                self.log("score", 1.0)

            def on_validation_epoch_end(self) -> None:
                ended.append(("validated", self.current_epoch, self.global_step))

            def on_train_epoch_end(self) -> None:
                ended.append(("trained", self.current_epoch, self.global_step))

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
                plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                    optimizer, patience=0, factor=0.5
                )
                schedule = {"scheduler": plateau, "monitor": "score"}
                return {"optimizer": optimizer, "lr_scheduler": schedule}

        data = TensorDataset(torch.randn(8, 1))
        trainer = lightning.Trainer(
            callbacks=[ElasticCallback(tmp_path, sampler, every=1)],
            max_epochs=3,
            num_sanity_val_steps=0,
            accelerator="cpu",
            use_distributed_sampler=False,
            enable_checkpointing=False,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        trainer.fit(module, DataLoader(data, batch_sampler=sampler), DataLoader(data, batch_size=8))
        return module.optimizers().param_groups[0]["lr"]

    with pytest.raises(Killed):
        run(die=True)
    assert ended == [("validated", 0, 2), ("trained", 0, 2)]
    ended.clear()
    assert run(die=False) == 0.25  # of three epochs' equal scores, the first is the best
    assert ended == [(what, n, 2 * n + 2) for n in (1, 2) for what in ("validated", "trained")]


def lightning_run(
    folder: Path,
    *,
    die_after: int | None = None,
    audit: Path | None = None,
    scaler: torch.amp.GradScaler | None = None,
    **sizes: int,
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
    if scaler is not None:
        trainer.precision_plugin.scaler = scaler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(data, batch_sampler=sampler))
    return module


def test_lightnings_gradient_scaler_is_saved(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    with pytest.raises(Killed):
        lightning_run(tmp_path, die_after=5, scaler=scaler)
    restored = torch.amp.GradScaler("cpu", init_scale=4.0)
    with pytest.raises(Killed):
        lightning_run(tmp_path, die_after=6, scaler=restored)
    assert restored.get_scale() == 32.0


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


# ---- Hugging Face's datasets


def test_a_stream_of_hugging_faces_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Files as shards, mapped and filtered lazily; saved in the midst of shards, in a new process'
    objects afterwards."""
    datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(files):
        path.write_text("".join(f'{{"n": {10 * number + n}}}\n' for n in range(7 + number)))

    def stream() -> ElasticStream:
        found = datasets.load_dataset(
            "json", data_files=[str(path) for path in files], split="train", streaming=True
        )
        found = found.map(lambda one: {"n": one["n"], "twice": 2 * one["n"]})
        shards = HuggingFaceShards(found.filter(lambda one: one["n"] % 5))
        assert len(shards.names) == 3
        return ElasticStream(shards.names, read=shards.read, batch_size=2, epochs=2)

    def taken(data: ElasticStream, steps: int) -> list[int]:
        batches = []
        for batch in data:
            assert torch.equal(batch["twice"], 2 * batch["n"])
            batches += batch["n"].tolist()
            data.applied()
            if (steps := steps - 1) == 0:
                break
        return batches

    data = stream()
    seen = taken(data, 4)
    again = stream()
    again.load_state_dict(data.state_dict())
    seen += taken(again, -1)
    once = [10 * number + n for number in range(3) for n in range(7 + number) if n % 5]
    assert sorted(seen[: len(once)]) == once and sorted(seen) == sorted(2 * once)


def test_a_hugging_face_stream_of_no_known_order_is_refused(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
    files = [str(tmp_path / f"{number}.jsonl") for number in range(3)]
    for number, path in enumerate(files):
        Path(path).write_text("".join(f'{{"n": {10 * number + n}}}\n' for n in range(10)))
    found = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    seeded = HuggingFaceShards(found.shuffle(seed=0, buffer_size=5))
    assert sorted(one["n"] for name in seeded.names for one in seeded.read(name)) == [*range(30)]
    mixed = datasets.interleave_datasets([found, found], probabilities=[0.5, 0.5])
    for unknown in (found.shuffle(buffer_size=5), found.shuffle().take(20), mixed):
        with pytest.raises(ValueError, match="without a seed"):
            HuggingFaceShards(unknown)
