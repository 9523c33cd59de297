"""Two ranks of a script that meet at a store of the test's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess


def run_two_ranks(script: str, folder: Path, *arguments: object, timeout: float = 120) -> list[str]:
    """Return what each of them wrote; both are to end well.

    Args:
        script: its arguments are its rank, the store's port, `folder` and `arguments`.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    processes = [TorchProcess(script, rank, store.port, folder, *arguments) for rank in (0, 1)]
    try:
        outputs = ["".join(process.communicate(timeout=timeout)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs
