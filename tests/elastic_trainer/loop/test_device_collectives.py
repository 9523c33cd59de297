"""Collectives on the model's device: none that a lost peer broke is used, and NCCL's are NCCL's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.refusal import NCCL_ERRORS_VARIABLE
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import device_collectives
from elastic_trainer.loop.device_collectives import (
    GlooCollectives,
    NcclCollectives,
    choose_gpu,
    collectives_of,
    form,
    healthy,
    reconfigures,
    refuse_mixed,
)
from elastic_trainer.loop.place import environment
from elastic_trainer.loop.round_member import RoundMember
from elastic_trainer.ranks.connection import Connections
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    ProcessGroupGloo,
    TCPStore,
)

from tests.elastic_trainer.torch_process import TorchProcess

GPU = torch.device("cuda", 3)


def test_a_model_on_the_cpu_has_gloos() -> None:
    assert isinstance(collectives_of(torch.nn.BatchNorm1d(2), agent=True), GlooCollectives)
    assert isinstance(collectives_of(torch.nn.Identity(), agent=True), GlooCollectives)


class Placed(torch.nn.Module):
    """Has parameters that are said to be on these devices."""

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.devices = devices

    def parameters(self, recurse: bool = True) -> Any:
        return iter([type("Parameter", (), {"device": torch.device(one)}) for one in self.devices])


class Gpus:
    """Stands for torch.cuda on a node of four."""

    def __init__(self, chosen: int | None = None, count: int = 4) -> None:
        self.chosen, self.count = chosen, count

    def is_available(self) -> bool:
        return self.count > 0

    def is_initialized(self) -> bool:
        return self.chosen is not None

    def current_device(self) -> int:
        assert self.chosen is not None, "asked, torch would initialise CUDA on GPU 0"
        return self.chosen

    def device_count(self) -> int:
        return self.count


def test_a_process_has_its_models_gpu_or_before_there_is_one_that_of_its_local_rank() -> None:
    third = {"LOCAL_RANK": "3"}
    assert choose_gpu(Placed("cuda:2", "cpu"), third, Gpus(chosen=0)) == 2
    assert choose_gpu(Placed("cuda:0", "cuda:1"), third, Gpus()) is None
    assert choose_gpu(Placed("cpu"), third, Gpus()) is None
    assert choose_gpu(None, third, Gpus()) == 3, "as torch's DeviceMesh chooses"
    assert choose_gpu(None, third, Gpus(chosen=1)) == 1, "the script has chosen"
    assert choose_gpu(None, {}, Gpus()) == 0
    assert choose_gpu(None, {"LOCAL_RANK": "5"}, Gpus()) == 1, "ranks may share GPUs"
    assert choose_gpu(None, third, Gpus(count=0)) is None


def test_a_model_on_one_gpu_has_nccls_and_its_watchdog_leaves_errors_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "1")  # as torchrun sets it
    found = collectives_of(Placed("cuda:3", "cuda:3", "cpu"), agent=True)
    assert isinstance(found, NcclCollectives) and found.device == GPU
    assert device_collectives.os.environ[NCCL_ERRORS_VARIABLE] == "0"
    collectives_of(Placed("cuda:3"), agent=False)
    assert device_collectives.os.environ[NCCL_ERRORS_VARIABLE] == "3", "nobody else ends a wait"
    assert (found.backends, found.silent) == ("cpu:gloo,cuda:nccl", True)
    assert isinstance(collectives_of(Placed("cuda:0", "cuda:1"), agent=True), GlooCollectives)
    assert "a process for each GPU" in caplog.text


def test_a_watchdog_that_aborts_behind_everybodys_back_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "2")
    with pytest.raises(ValueError, match="half-reduced"):
        NcclCollectives(GPU, agent=True)


def test_nccl_is_made_by_reconfiguration_where_torch_has_it_and_bound_to_the_models_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "0")
    assert reconfigures(), "torch 2.15's nccl is nccl2"
    options = NcclCollectives(GPU, agent=True).options()
    assert options["device_id"] == GPU and options["pg_options"].enable_reconfigure
    older = "_create_nccl2_process_group"
    monkeypatch.delattr(device_collectives.distributed_c10d, older)
    assert not reconfigures() and NcclCollectives(GPU, agent=True).options() == {}


class Backend:
    """NCCL's, of which an abort lets a collective seem to have ended."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.begun = 0
        self.error = torch._C._distributed_c10d.ErrorType.SUCCESS

    def abort(self) -> None:
        self.calls.append("abort")

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.calls.append("made")

    def get_error(self) -> Any:
        return self.error

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class Group:
    _device_types = (torch.device("cpu"), torch.device("cuda"))

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def _get_backend(self, device: torch.device) -> Backend:
        assert device.type == "cuda"
        return self.backend


def test_what_ends_after_an_abort_or_with_an_error_has_not_ended_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "0")
    group = Group(Backend())
    waited: list[torch.device] = []

    def ended_well(nccl: NcclCollectives, *, aborts: bool = False) -> bool:
        def wait(device: torch.device) -> None:
            waited.append(device)
            if aborts:
                nccl.abort(group)

        monkeypatch.setattr(device_collectives, "wait_for_device", wait)
        return nccl.ended_well(group)

    assert ended_well(NcclCollectives(GPU, agent=True)) and waited == [GPU]
    assert not ended_well(
        NcclCollectives(GPU, agent=True), aborts=True
    ) and group.backend.calls == ["abort"]
    group.backend.error = torch._C._distributed_c10d.ErrorType.COMM_ERROR
    assert not ended_well(NcclCollectives(GPU, agent=True))


def test_a_meshs_groups_are_counted_asked_and_aborted_as_the_rounds_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "0")
    monkeypatch.setattr(device_collectives, "wait_for_device", lambda device: None)
    group, mesh, control = Group(Backend()), Group(Backend()), Group(Backend())
    control._device_types = (torch.device("cpu"),)  # and asking it for a GPU's would raise
    for one in (group, mesh, control):
        monkeypatch.setitem(device_collectives.distributed_c10d._world.pg_map, one, ())  # type: ignore[misc,call-overload]
    member = RoundMember()
    member._device = nccl = NcclCollectives(GPU, agent=True)
    member._torch_group, member._backends = group, {group.backend}  # type: ignore[assignment]
    group.backend.begun, mesh.backend.begun = 3, 4
    assert member.collectives() == 7, "a graph may have captured a mesh's"
    assert nccl.ended_well(group)
    mesh.backend.error = torch._C._distributed_c10d.ErrorType.COMM_ERROR
    assert not nccl.ended_well(group)
    nccl.abort(group)
    assert [one.backend.calls for one in (group, mesh, control)] == [["abort"], ["abort"], []]


def test_the_thread_that_breaks_a_round_leaves_the_next_ones_collectives_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it is on its way to them as the main thread connects to the next round."""

    class Aborts(GlooCollectives):
        def __init__(self) -> None:
            self.aborted: list[object] = []

        def abort(self, group: object) -> None:
            self.aborted.append(group)

    for name in environment(Place(1, 0, 1, "", 0), 1):
        monkeypatch.setenv(name, "1")  # so that each is as it was before
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def join(member: RoundMember, number: int) -> Connections:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = Place(number, 0, 1, "127.0.0.1", store.port)
        assert member._connect(WorkerLink(None), place, None) == [None]
        assert member._connections is not None
        return member._connections

    interrupted, line = True, 0
    while interrupted:
        member = RoundMember()
        member._device = aborts = Aborts()
        last = join(member, 1)
        member.disconnect(WorkerLink(None))
        dist.destroy_process_group()
        aborts.aborted.clear()
        line += 1
        interrupted = _call_interrupted(
            member._abort, last, line=line, by=lambda member=member: join(member, 2)
        )
        assert aborts.aborted == [], line
        if interrupted:
            assert member._connections is not None
            member._abort(member._connections)
            assert aborts.aborted == [dist.group.WORLD]
            dist.destroy_process_group()
    assert line > 2


def test_groups_are_aborted_at_once_as_one_may_wait_for_what_another_has_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An all-reduce behind a reduce-scatter, say, as in HSDP."""
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "0")
    both = threading.Barrier(2)

    class Waits(Backend):
        def abort(self) -> None:
            both.wait(10)
            super().abort()

    group, mesh = Group(Waits()), Group(Waits())
    for one in (group, mesh):
        monkeypatch.setitem(device_collectives.distributed_c10d._world.pg_map, one, ())  # type: ignore[misc,call-overload]
    NcclCollectives(GPU, agent=True).abort(group)
    assert group.backend.calls == mesh.backend.calls == ["abort"]


def test_a_rank_that_makes_the_devices_communicator_leaves_as_the_round_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL waits for a rank that was lost for as long as it may, and no abort ends that."""
    came = threading.Event()

    class Waits(GlooCollectives):
        silent = True

        def connect(self, *_: Any) -> None:
            link._over_round = link.round
            came.wait(10)

    for name in environment(Place(1, 0, 1, "", 0), 1):
        monkeypatch.setenv(name, "1")  # so that each is as it was before
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    member, link = RoundMember(), WorkerLink(None)
    link._over_round = link.round - 1
    member._device = Waits()
    try:
        with pytest.raises(RuntimeError, match="making the device's communicator"):
            member._connect(link, Place(1, 0, 1, "127.0.0.1", store.port), None)
    finally:
        came.set()
        member.disconnect(link)
        dist.destroy_process_group()


def test_a_communicator_that_is_made_once_its_round_was_aborted_is_aborted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "0")
    monkeypatch.setattr(
        device_collectives, "form", lambda backend, *_: backend.calls.append("made")
    )
    group, nccl = Group(Backend()), NcclCollectives(GPU, agent=True)
    nccl.connect(group, 1, ["nccl"])
    assert group.backend.calls == ["made"]
    assert group.backend.timeout == dist.default_pg_timeout, "one may evaluate for minutes"
    nccl._aborted = True
    nccl.connect(group, 1, ["nccl"])
    assert group.backend.calls == ["made", "made", "abort"]
    nccl._reconfigures = False
    nccl.connect(group, 1, ["nccl"])
    assert group.backend.calls[3:] == ["made", "abort"]


def _call_interrupted(
    method: Callable[..., object], *arguments: object, line: int, by: Callable[[], object]
) -> bool:
    """Call a method, as if another thread ran before its so-manieth line; return whether it came to
    that."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code is not getattr(method, "__code__", None):
            return None
        lines += event == "line"
        if event == "line" and lines == line:
            by()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        method(*arguments)
    finally:
        sys.settrace(before)
    return lines >= line


def test_ranks_on_other_kinds_of_devices_are_refused_in_words() -> None:
    refuse_mixed(["", ""])
    refuse_mixed(["nccl2:0:-1:7:", "nccl2:1:-1:9:"])
    with pytest.raises(RuntimeError, match="rank 1 averages its gradients by gloo, rank 0 by nccl"):
        refuse_mixed(["nccl", ""])


def test_a_communicator_is_formed_of_a_rounds_ranks_once_for_its_number() -> None:
    """gloo's backend has the same interface as NCCL's, and stands for it."""
    store, patience = HashStore(), timedelta(seconds=60)
    ranks = [
        ProcessGroupGloo(store, rank, 3, timeout=patience, enable_reconfigure=True)
        for rank in range(3)
    ]
    assert all(healthy(rank) for rank in ranks)

    def summed(members: Sequence[Any], number: int) -> list[float | str]:
        handles = [member.get_reconfigure_handle() for member in members]
        found: dict[int, float | str] = {}

        def run(place: int) -> None:
            try:
                form(members[place], number, handles)
                value = torch.tensor([2.0**place])
                members[place].allreduce([value]).wait()
                found[place] = value.item()
            except RuntimeError as error:
                found[place] = str(error)

        threads = [threading.Thread(target=run, args=(place,)) for place in range(len(members))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[place] for place in range(len(members))]

    assert summed(ranks, 1) == [7.0, 7.0, 7.0]
    assert summed([ranks[2], ranks[0]], 2) == [3.0, 3.0]
    assert summed(ranks[:1], 3) == [1.0]
    (refused,) = summed(ranks[:1], 3)
    assert "already used" in str(refused)


CONFIRMS = """
import sys, types
import torch
import torch.distributed as dist
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.device_collectives import GlooCollectives
from elastic_trainer.loop.round_member import RoundMember
from elastic_trainer.ranks.process_group import ProcessGroup

rank, port = (int(argument) for argument in sys.argv[1:])

class Silent(GlooCollectives):
    silent = True
    broken = False
    aborted = 0
    def ended_well(self, group):
        return not self.broken
    def abort(self, group):
        self.aborted += 1

member = RoundMember()
member._device = device = Silent()
member._connect(WorkerLink(None), Place(1, rank, 3, "127.0.0.1", port), None)
member.group = ProcessGroup.current()
member.confirm()
print("confirmed", flush=True)
device.broken = rank == 1
try:
    member.confirm()
except RuntimeError as error:
    print(error, flush=True)
device.broken = False
member.confirm()  # all are still in step
if rank == 2:
    member.break_collectives()
    member.break_collectives()
else:
    try:
        member.confirm()  # rank 2 doesn't come any more
    except RuntimeError:
        print("a rank is lost", flush=True)
member.disconnect(types.SimpleNamespace(agent=True))
print("aborted", device.aborted, flush=True)
"""


@pytest.mark.process
def test_a_step_is_confirmed_on_all_ranks_or_on_none_and_a_round_aborted_once() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(CONFIRMS, rank, store.port) for rank in range(3)]
    try:
        found = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    refused = ["confirmed", "collectives did not end well on rank 1"]
    lost = ["a rank is lost", "aborted 1"]
    assert found == [refused + lost, refused + lost, [*refused, "aborted 1"]]
