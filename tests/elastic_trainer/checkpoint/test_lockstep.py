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
from elastic_trainer.checkpoint.save import WholeSave
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import Label, Slots

rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


class Full(Slots):
    "Has room when asked, and none when it comes to it."

    def copy(self, training, size, fill):
        if rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().copy(training, size, fill)


def commit():
    (folder / "committed").touch()


class Late:
    "Python has ended for other threads when this goes, and rank 1 is gone."

    def __del__(self):
        time.sleep(1)


kept = Late() if rank == 0 else None


def mirror(slot, label, peers):
    done = Mirror(Slots(own, 0), Full(own, 0, "mirror"), 1).keep(slot, label, peers)
    peers.gather("done")
    commit()
    return done


def raises(error):
    def work(slot, label, peers):
        if rank == 1:
            raise error
        peers.gather("done")  # for which rank 1 never comes
        commit()
        return True
    return work


def late(slot, label, peers):
    if rank == 1:
        raise MemoryError("before the other waits")
    store.wait(["late: rank 1 has failed"])
    peers.gather("done")
    commit()


def receives(slot, label, peers):
    if rank == 1:
        raise MemoryError("before anything is sent")
    with peers.waiting():
        dist.recv(torch.zeros(1), 1, group=peers.group)
    commit()


works = {
    "memory": raises(MemoryError("only here")),
    "thread": raises(SystemExit("the thread ends")),
    "late": late,
    "mirror": mirror,
    "receives": receives,
}
blob = lay_out({"step": torch.ones(1000)})
locksteps = []  # so that each is there when Python ends
for case, work in works.items():
    own = folder / f"{case}-{rank}"
    own.mkdir()
    lockstep = Lockstep("work", work)
    locksteps.append(lockstep)
    for step in (1, 2):
        label = Label("t", 1, step, rank, 2, True, len(blob.skeleton), blob.size)
        lockstep.saved(WholeSave(Slots(own, 0).write(label, blob), label))
        if rank == 1 and step == 1:
            # It has told the others before it returns.
            print(case, type(lockstep.flush()).__name__, flush=True)
            store.set(f"{case}: rank 1 has failed", "")
    if rank == 0:
        print(case, type(lockstep.flush()).__name__, flush=True)
    assert lockstep.flush() is not None  # later ones neither wait nor do anything
    dist.barrier()  # the training's own group goes on
print("goes on")
dist.destroy_process_group()
"""


ERRORS = {
    "memory": "MemoryError",
    "thread": "SystemExit",
    "late": "MemoryError",
    "mirror": "OSError",
    "receives": "MemoryError",
}


def test_an_error_on_one_rank_ends_the_work_of_all_and_nobody_commits(tmp_path: Path) -> None:
    """All kinds of errors in one life of two processes, which must come to its orderly end."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(store.port), str(tmp_path)],
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
    ended = [out.splitlines() for out, _ in said]
    assert ended[0] == [*(f"{case} LockstepError" for case in ERRORS), "goes on"], said
    assert ended[1] == [*(f"{case} {error}" for case, error in ERRORS.items()), "goes on"], said
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][1].count("no further work in the background: LockstepError") == len(ERRORS)
    assert not (tmp_path / "committed").exists()
