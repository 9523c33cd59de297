"""Background work of all ranks: what fails on one ends on all, and nobody commits it."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

pytestmark = pytest.mark.process

SCRIPT = """
import errno, os, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.lockstep import Lockstep
from elastic_trainer.checkpoint.mirror import Mirror
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import Label, Slots

rank, port, folder, case = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
own = folder / str(rank)
own.mkdir()


class Full(Slots):
    "Has room when asked, and none when it comes to it."

    def copy(self, training, size, fill):
        if rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().copy(training, size, fill)


class Late:
    "Python has ended for other threads when this goes, and rank 1 is gone."

    def __del__(self):
        time.sleep(1)


kept = Late() if rank == 0 else None


def mirror(slot, label, peers):
    done = Mirror(Full(own, 0, "mirror"), 1).keep(slot, label, peers)
    peers.gather("done")
    (folder / "committed").touch()
    return done


def raises(error):
    def work(slot, label, peers):
        if rank == 1:
            raise error
        peers.gather("done")  # for which rank 1 never comes
        (folder / "committed").touch()
        return True
    return work


def late(slot, label, peers):
    if rank == 1:
        raise MemoryError("before the other waits")
    store.wait(["rank 1 has failed"])
    peers.gather("done")
    (folder / "committed").touch()


def receives(slot, label, peers):
    if rank == 1:
        raise MemoryError("before anything is sent")
    with peers.waiting():
        dist.recv(torch.zeros(1), 1, group=peers.group)
    (folder / "committed").touch()


works = {
    "memory": raises(MemoryError("only here")),
    "thread": raises(SystemExit("the thread ends")),
    "late": late,
    "mirror": mirror,
    "receives": receives,
}
lockstep = Lockstep("work", works[case])
blob = lay_out({"step": torch.ones(1000)})
for step in (1, 2):
    label = Label("t", 1, step, rank, 2, True, len(blob.skeleton), blob.size)
    lockstep.saved((Slots(own, 0).write(label, blob), label))
    if rank == 1 and step == 1:
        print(type(lockstep.flush()).__name__)  # has told the others before it returns
        store.set("rank 1 has failed", "")
if rank == 0:
    print(type(lockstep.flush()).__name__)
assert lockstep.flush() is not None  # later ones neither wait nor do anything
dist.barrier()  # the training's own group goes on
print("goes on")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("memory", "MemoryError"),
        ("thread", "SystemExit"),
        ("late", "MemoryError"),
        ("mirror", "OSError"),
        ("receives", "MemoryError"),
    ],
)
def test_an_error_on_one_rank_ends_the_work_of_all_and_nobody_commits(
    tmp_path: Path, case: str, error: str
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(store.port), str(tmp_path), case],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=240) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert said[0][0].split() == ["LockstepError", "goes", "on"], said
    assert said[1][0].split() == [error, "goes", "on"], said
    assert [process.returncode for process in ranks] == [0, 0], said
    assert "no further work in the background: LockstepError" in said[0][1]
    assert not (tmp_path / "committed").exists()
