"""The one public module: what it offers, what it costs, and that a script's own files may stay."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import elastic_trainer
import pytest

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import sys
from pathlib import Path
import torch
import trainer  # the file beside this script, not a package of that name
from elastic_trainer import ElasticDataset, ElasticLoop

net = torch.nn.Linear(2, 1)
data = ElasticDataset(
    torch.utils.data.TensorDataset(torch.ones(trainer.SAMPLES, 2)), batch_size=2, epochs=1
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loop = ElasticLoop(Path(sys.argv[1]) / "commits", model=net, optimizer=optimizer, data=data)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).square().mean()).backward()
Path(sys.argv[1], "steps").write_text(str(loop.steps))
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="1:1")
    yield job
    job.close()


@pytest.mark.parametrize("warm", ["1", "0"], ids=["forked", "cold"])
def test_a_script_beside_a_file_of_its_own_called_trainer_works(job: Job, warm: str) -> None:
    (job.folder / "trainer.py").write_text("SAMPLES = 6\n")
    job.start(0, environment={"VOLCANO_ELASTIC_WARM": warm}, cold=True)
    assert job.wait(0) == 0, job.logs()
    assert (job.folder / "steps").read_text() == "3"


def test_importing_it_imports_no_torch_numpy_or_grpc_and_an_agent_no_sharded_tensors() -> None:
    code = (
        "import sys, elastic_trainer\n"
        "found = {'torch', 'numpy', 'grpc'} & sys.modules.keys()\n"
        "assert not found, found\n"
        "elastic_trainer.Ledger, elastic_trainer.ShardClient\n"
        "assert 'torch' not in sys.modules\n"
        "import elastic_trainer.agent.agent  # which shards nothing\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("name", elastic_trainer.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(elastic_trainer, name)
    assert name in dir(elastic_trainer)
    assert inspect.isclass(found) and found.__name__ == name
    described = inspect.getdoc(found)
    assert described and not described.startswith(f"{name}(")  # a dataclass's own, not a signature
    if not issubclass(found, Exception):
        assert f"{name}(" in described or ">>>" in described or name in _EXPLAINED, (
            f"{name} has no example"
        )


_EXPLAINED = {"Lease", "Order", "Place", "ProcessGroup"}
"""Values that others return."""


def test_what_it_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="ElasticTrainerr"):
        _ = elastic_trainer.ElasticTrainerr  # type: ignore[attr-defined]


def test_type_checkers_see_its_types() -> None:
    assert (Path(elastic_trainer.__file__).parent / "py.typed").exists()
