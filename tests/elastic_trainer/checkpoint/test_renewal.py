"""Background work that failed is begun anew, by all ranks at the same save, ever more seldom."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from elastic_trainer.checkpoint.renewal import FIRST_WAIT, LONGEST_WAIT, Renewal
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

SCRIPT = """
import faulthandler, sys
from datetime import timedelta
from pathlib import Path

faulthandler.dump_traceback_later(200, exit=True)
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.renewal import BackgroundWork
from elastic_trainer.store.blob import lay_out
from elastic_trainer.checkpoint.mirror import Mirror
from elastic_trainer.checkpoint.save import WholeSave
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.slot import Label, SlotError, Slots

rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
(folder / str(rank)).mkdir()
now, full = [0.0], [True]


def work(slot, label, peers):
    if full[0] and rank == 1:
        raise OSError(28, "No space left on device")
    peers.gather("done")
    (folder / f"{rank}-done-{label.step}").touch()
    return True


background = BackgroundWork("works", work, clock=lambda: now[0] if rank == 0 else 1e9 * now[0])
blob = lay_out({"step": torch.ones(1000)})


def save(step, at, *, room):
    now[0], full[0] = at, not room
    dist.barrier()
    label = Label("t", 1, step, rank, 2, True, len(blob.skeleton), blob.size)
    background.saved(WholeSave(Slots(folder / str(rank), 0).write(label, blob), label))
    background.flush()
    dist.barrier()


save(1, 0.0, room=True)
save(2, 1.0, room=False)
save(3, 2.0, room=True)  # all know of it, and wait for 10 s
save(4, 11.0, room=True)
save(5, 12.0, room=True)  # anew
save(6, 13.0, room=False)
save(7, 20.0, room=True)  # now for 20 s
save(8, 39.0, room=True)
save(9, 40.0, room=True)  # anew
save(10, 41.0, room=True)


class Short(Slots):
    "Has no room while the disk is full."

    def check(self, size):
        if full[0] and rank == 1:
            raise SlotError("expected more bytes")


mirror = Mirror(Slots(folder / str(rank), 0), Short(folder / str(rank), 0, "mirror"), 1)
background = BackgroundWork("mirrors", mirror.keep, clock=lambda: now[0])
for step, room in ((11, False), (12, True), (13, True), (14, False), (15, True), (16, True)):
    save(step, 50.0, room=room)
    print("mirrored", step, [found[1][1] for found in mirror.look(ProcessGroup(rank, 2))])
dist.destroy_process_group()
"""


@pytest.mark.process
def test_work_that_failed_for_a_while_goes_on_by_all_ranks_after_a_growing_wait(
    tmp_path: Path,
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port, tmp_path) for rank in (0, 1)]
    try:
        said = ["".join(process.communicate(timeout=240)) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    for rank in (0, 1):
        done = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob(f"{rank}-done-*")}
        assert done == {1, 5, 9, 10}, "\n".join(said)
        mirrored = [line.split()[1:] for line in said[rank].splitlines() if "mirrored" in line]
        newest = {int(step): rest[0].strip("[],") for step, *rest in mirrored}
        assert newest == {11: "", 12: "", 13: "13", 14: "13", 15: "13", 16: "16"}
    assert said[0].count("works in the background are tried anew") == 2
    assert "No space left on device" in said[1]


@given(st.lists(st.tuples(st.floats(0.0, 900.0), st.booleans()), max_size=60))
def test_failed_work_is_tried_anew_after_the_first_wait_at_least_and_the_longest_at_most(
    saves: list[tuple[float, bool]],
) -> None:
    renewal, now = Renewal(), 0.0
    known_at: float | None = None
    failed = False
    for seconds, fails in saves:
        now += seconds
        anew = renewal.decide(failed, now)
        if failed and known_at is None:
            known_at = now
        if anew:
            assert known_at is not None and now >= known_at + FIRST_WAIT
            failed, known_at = False, None
        elif known_at is not None:
            assert now < known_at + LONGEST_WAIT
        failed = failed or fails


def test_each_failure_doubles_the_wait_and_ten_good_minutes_forget_it() -> None:
    renewal, now = Renewal(), 0.0
    waits = list[float]()
    for _ in range(9):
        assert not renewal.decide(True, now)
        began = now
        while not renewal.decide(True, now):
            now += 5.0
        waits.append(now - began)
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert not renewal.decide(False, now)
    assert not renewal.decide(False, now + LONGEST_WAIT)
    assert not renewal.decide(True, now + LONGEST_WAIT)
    assert renewal.decide(True, now + LONGEST_WAIT + FIRST_WAIT)
