"""Collectives on the device of a round's model: NCCL's beside gloo's for a GPU, else gloo's.

gloo raises an error for a collective that a lost peer broke. NCCL raises none: whoever waits for
one that was aborted goes on as if it had ended, with whatever was in its buffers, and a rank that
is aborted early may let its neighbours' collectives end so, too. Hence `silent`: after such
collectives all ranks tell one another that theirs ended well, before anybody uses the result
(RoundMember.confirm).

A communicator of NCCL is made through torch's reconfiguration where there is one (torch 2.15, whose
"nccl" is its nccl2): made within a time-out, and revoked, not the process ended, when a peer is
lost. Each round has a process group of its own all the same, as its store is another. Older torch
would make the communicator at the first collective, in the main thread: it is told to before.

NcclCollectives has run on simulated GPUs only; see docs/gpus.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import default_pg_timeout, distributed_c10d

from elastic_trainer.checkpoint.refusal import NCCL_ERRORS_VARIABLE, refuse_silent_aborts

RECORDER_VARIABLE = "TORCH_FR_BUFFER_SIZE"
"""For how many collectives torch's flight recorder has room."""
OLD_RECORDER_VARIABLE = "TORCH_NCCL_TRACE_BUFFER_SIZE"

FORM_TIMEOUT = timedelta(seconds=60)
"""For NCCL to make a communicator of all ranks."""

log = logging.getLogger(__name__)


class DeviceCollectives(Protocol):
    """A round's collectives on one device; methods are for the main thread, but for `abort`."""

    backends: str
    """For torch.distributed.init_process_group."""
    silent: bool
    """A collective that was broken seems to have ended."""

    def options(self) -> dict[str, Any]:
        """Return the arguments of init_process_group that go with `backends`."""

    def handle(self, group: Any) -> str:
        """Return what the other ranks have to know to connect to this one; empty for nothing."""

    def connect(self, group: Any, number: int, handles: Sequence[str]) -> None:
        """Connect to all ranks. On all of them. Where `silent`, in a thread that is left behind if
        the round ends before: nothing ends NCCL's wait for a rank that was lost.

        Args:
            number: of the round; no other has it.
            handles: by rank.

        Raises:
            RuntimeError: not all came in time, or their models are on devices of other kinds.
        """

    def backends_of(self, group: Any) -> list[Any]:
        """Return the device's own backends, of a round's group and of all others that were made of
        its ranks, as those of a mesh are; none where they are gloo's."""

    def ended_well(self, group: Any) -> bool:
        """Wait until the device has done all it was given; return whether no collective of that
        was broken."""

    def abort(self, group: Any) -> None:
        """End the collectives that hang. In any thread."""


class GlooCollectives:
    """gloo's, for a model on the CPU, and for devices that NCCL doesn't know. They are broken by
    their connections, see ranks/connection.py."""

    backends = "gloo"
    silent = False

    def options(self) -> dict[str, Any]:
        return {}

    def handle(self, group: Any) -> str:
        return ""

    def connect(self, group: Any, number: int, handles: Sequence[str]) -> None:
        refuse_mixed(handles)

    def backends_of(self, group: Any) -> list[Any]:
        return []

    def ended_well(self, group: Any) -> bool:
        return True

    def abort(self, group: Any) -> None:
        """Nothing: gloo has no abort."""


class NcclCollectives:
    """NCCL's on one GPU, of one round.

    Where there is an agent, NCCL's own watchdog is told to leave errors alone, in groups of the
    script's own too: it would end the process for a lost peer, or abort behind everybody's back
    (torchrun's default). Without, nobody else would end what waits for a lost peer.

    Args:
        device: of the model; no other is touched.
        agent: aborts collectives as a round ends.

    Raises:
        ValueError: the watchdog was told to do the latter.
    """

    backends = "cpu:gloo,cuda:nccl"
    silent = True

    def __init__(self, device: torch.device, *, agent: bool) -> None:
        refuse_silent_aborts("nccl", os.environ)
        # Read as a group is made. 3 ends the process, and leaves it no half-reduced gradients.
        os.environ[NCCL_ERRORS_VARIABLE] = "0" if agent else "3"
        # Else it says at each round's end that it dumps a collective's failure, and at each new
        # rank that its files will disagree.
        if OLD_RECORDER_VARIABLE not in os.environ:
            os.environ.setdefault(RECORDER_VARIABLE, "0")
        self.device = device
        self._reconfigures = reconfigures()
        self._aborted = False

    def options(self) -> dict[str, Any]:
        if not self._reconfigures:
            return {}
        options = dist.ProcessGroupNCCL.Options()
        options.enable_reconfigure = True
        return {"pg_options": options, "device_id": self.device}

    def handle(self, group: Any) -> str:
        backend = self._backend(group)
        handle: str = backend.get_reconfigure_handle() if self._reconfigures else "nccl"
        return handle

    def connect(self, group: Any, number: int, handles: Sequence[str]) -> None:
        refuse_mixed(handles)
        backend = self._backend(group)
        # Not the one to connect: ranks may come to a collective minutes apart, as one evaluates.
        set_timeout = getattr(backend, "set_timeout", None) or backend._set_default_timeout
        set_timeout(default_pg_timeout)
        if self._reconfigures:
            form(backend, number, handles)
        else:
            backend.eager_connect_single_device(self.device)
        if self._aborted:  # meanwhile, when there was nothing to abort
            backend.abort()

    def ended_well(self, group: Any) -> bool:
        wait_for_device(self.device)  # which an abort ends, too
        return not self._aborted and all(healthy(one) for one in self.backends_of(group))

    def abort(self, group: Any) -> None:
        self._aborted = True  # before anything can seem to have ended
        # At once: an abort may wait for what is queued behind another group's broken collective.
        aborts = [
            threading.Thread(target=one.abort, name="abort", daemon=True)
            for one in self.backends_of(group)
        ]
        for thread in aborts:
            thread.start()
        for thread in aborts:
            thread.join()

    def backends_of(self, group: Any) -> list[Any]:
        return [
            self._backend(one)
            for one in {group, *distributed_c10d._world.pg_map}
            if self.device.type in {device.type for device in one._device_types}
        ]

    def _backend(self, group: Any) -> Any:
        return group._get_backend(self.device)


def wait_for_device(device: torch.device) -> None:
    """Return once a GPU has done what it was given so far on this thread's stream, as the waits for
    NCCL's results are."""
    with torch.cuda.device(device):
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        event.synchronize()


def choose_gpu(
    model: torch.nn.Module | None, environment: Mapping[str, str], gpus: Any = torch.cuda
) -> int | None:
    """Return the number of the GPU that is to be this process' current one; None: it has none, or
    more than one. All that isn't told of a device, such as a data loader's pinned memory, would be
    made on GPU 0 by each of a node's processes.

    Args:
        model: that is on it; None: one that is yet to be made, on the GPU that the script has
            chosen or, as torch's DeviceMesh does, the one of the local rank.
        gpus: torch.cuda, or what stands for it in a test.
    """
    if model is not None:
        if not isinstance(model, torch.nn.Module):
            return None  # Checkpointer refuses it
        found = {one.device for one in (*model.parameters(), *model.buffers())}
        numbers = {device.index for device in found if device.type == "cuda"}
        return numbers.pop() if len(numbers) == 1 else None
    if not gpus.is_available():
        return None
    if gpus.is_initialized():
        return int(gpus.current_device())
    return int(environment.get("LOCAL_RANK", "0")) % int(gpus.device_count())


def collectives_of(model: torch.nn.Module, *, agent: bool) -> DeviceCollectives:
    """Return the collectives for a model's gradients: NCCL's where all of it is on one GPU."""
    devices = {one.device for one in (*model.parameters(), *model.buffers())}
    gpus = {device for device in devices if device.type == "cuda"}
    if not gpus or not dist.is_nccl_available():
        return GlooCollectives()
    if len(gpus) > 1:
        log.warning(
            "the model is on %d GPUs of one process, so its gradients go through the CPU by gloo: "
            "expected a process for each GPU, torchrun --nproc-per-node",
            len(gpus),
        )
        return GlooCollectives()
    return NcclCollectives(*gpus, agent=agent)


def collectives_on(gpu: torch.device, *, agent: bool) -> DeviceCollectives:
    """Return the collectives for gradients of a model that is to be made on a GPU."""
    return NcclCollectives(gpu, agent=agent) if dist.is_nccl_available() else GlooCollectives()


def reconfigures() -> bool:
    """Return whether torch's "nccl" makes its communicators by reconfiguration."""
    ours = getattr(distributed_c10d, "_create_nccl2_process_group", None)
    ensure = getattr(distributed_c10d.Backend, "_ensure_backend_registered", None)
    if ours is None or ensure is None:
        return False
    ensure("nccl")
    plugin = distributed_c10d.Backend._plugins.get("NCCL")
    return plugin is not None and plugin.creator_fn is ours


def form(backend: Any, number: int, handles: Sequence[str]) -> None:
    """Have a backend make its communicator of these ranks. Raises RuntimeError as `connect`.

    torch's own `dist._reconfigure` knows no group of several backends.
    """
    options = c10d.ReconfigureOptions()
    options.uuid = number
    options.handles = list(handles)
    options.timeout = FORM_TIMEOUT
    backend.reconfigure(options).wait()


def healthy(backend: Any) -> bool:
    """Return whether a backend knows of no error; older ones can't tell, as they are told only of
    those that they have caused."""
    get_error = getattr(backend, "get_error", None)
    if get_error is None:
        return True
    return bool(get_error() == c10d.ErrorType.SUCCESS)


def refuse_mixed(handles: Sequence[str]) -> None:
    """Raises RuntimeError where some ranks' gradients are NCCL's and some gloo's."""
    kinds = [handle.partition(":")[0] or "gloo" for handle in handles]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise RuntimeError(
                f"rank {rank} averages its gradients by {kind}, rank 0 by {kinds[0]}: expected "
                "models on the same kind of device on all ranks, and the same torch"
            )
