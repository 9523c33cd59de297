"""Hugging Face's Trainer and Lightning's on two nodes, through a crash and changes of the world."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from elastic_trainer.data.audit import verify

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SAMPLES, EPOCHS = 64, 20

COMMON = f"""
import sys, time
from pathlib import Path
import torch

torch.set_num_threads(1)
folder = Path(sys.argv[1])
SAMPLES, EPOCHS = {SAMPLES}, {EPOCHS}

paused = 0

def pause():
    "Until all has happened that is to happen, steps take their time, ever more of it."
    global paused
    if not (folder / "fast").exists():
        paused += 1
        time.sleep(0.1 + 0.005 * paused)
"""

HUGGING_FACE = (
    COMMON
    + """
import transformers
from elastic_trainer.integrations.huggingface import ElasticTrainer

class Pace(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        pause()

transformers.set_seed(0)
config = transformers.BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
    intermediate_size=8, max_position_embeddings=8,
)
words = torch.Generator().manual_seed(1)
data = [
    {"input_ids": torch.randint(0, 20, (6,), generator=words), "labels": i % 2}
    for i in range(SAMPLES)
]
arguments = transformers.TrainingArguments(
    output_dir=str(folder / "out"), per_device_train_batch_size=4, num_train_epochs=EPOCHS,
    save_strategy="no", report_to=[], use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
    dataloader_pin_memory=False, logging_steps=2,
)
trainer = ElasticTrainer(
    model=transformers.BertForSequenceClassification(config), args=arguments, train_dataset=data,
    callbacks=[Pace()], folder=folder / "commits", audit=folder / "audit",
)
trainer.train()
model, rank = trainer.model, trainer.args.process_index
"""
)

LIGHTNING = (
    COMMON
    + """
import os
import lightning
from torch.utils.data import DataLoader, TensorDataset
from elastic_trainer import ElasticSampler
from elastic_trainer.integrations.lightning import ElasticCallback

sampler = ElasticSampler(SAMPLES, batch_size=4, audit=folder / "audit")

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, _):
        loss = sampler.weight * (self.net(batch[0]).squeeze(1) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def on_train_batch_end(self, *_):
        pause()

torch.manual_seed(0)
inputs = torch.randn(SAMPLES, 3)
model = Module()
trainer = lightning.Trainer(
    callbacks=[ElasticCallback(folder / "commits", sampler)], max_epochs=EPOCHS,
    accelerator="cpu", strategy="ddp", devices=1, num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    use_distributed_sampler=False, enable_checkpointing=False, logger=False, log_every_n_steps=2,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
)
trainer.fit(model, DataLoader(TensorDataset(inputs, inputs.sum(1)), batch_sampler=sampler))
rank = trainer.global_rank
"""
)

END = """
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
torch.save(flat, folder / f"final-{rank}.pt")
"""


@pytest.mark.parametrize(
    ("library", "script"), [("transformers", HUGGING_FACE), ("lightning", LIGHTNING)]
)
def test_a_worker_is_killed_then_a_node_leaves_and_comes_back(
    library: str, script: str, tmp_path: Path
) -> None:
    import torch

    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    job = Job(tmp_path, script + END, nodes="1:2")
    preload = {"VOLCANO_ELASTIC_PRELOAD": f"{library},-torch._dynamo"}
    try:
        job.start(0, 1, environment=preload, cold=True)
        told = job.stepping(world=2)
        os.kill(told["pids"]["1"][0], signal.SIGKILL)
        told = job.stepping(world=2, after_round=told["round"])
        job.agents[1].send_signal(signal.SIGTERM)
        assert job.wait(1) == 0
        told = job.stepping(world=1, after_round=told["round"])
        job.start(1, environment=preload, cold=True)
        told = job.stepping(world=2, after_round=told["round"])
        job.until("what is logged is told", lambda told: "loss" in told.get("metrics", ()))
        (tmp_path / "fast").touch()
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    finally:
        job.close()
    report = verify(tmp_path / "audit", SAMPLES, EPOCHS)
    assert report.ok, report
    assert report.runs >= 4  # one more where a node was late at the start
    first, second = (torch.load(tmp_path / f"final-{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
