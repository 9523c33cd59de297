"""Backs up what an undone step must leave as it was, at little cost while all goes well."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from elastic_trainer.checkpoint.model_state import Stateful

ALIGNMENT = 64
"""Bytes; kernels ask for 16 at most."""


class BufferBackup:
    """The buffers of modules (batch norm's running means), which an aborted forward has moved.

    Batch norms' on the CPU are laid side by side, as views of one tensor for each dtype, so that
    one copy keeps all: joining them at each step costs a deep model 20 µs, a copy for each 0.4 ms.
    Those on other devices stay where they are, as a CUDA graph may hold their places. Others, too,
    are joined at each step, since something else may hold a view of theirs, and a forward
    may put another tensor in their place (`self.mean = 0.9 * self.mean + 0.1 * x.mean()`).
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        everything = [one for module in modules for one in module.modules()]
        norms = {
            id(buffer)
            for one in everything
            if isinstance(one, _NormBase) and type(one).__module__.startswith("torch.nn.")
            for buffer in one.buffers(recurse=False)
        }
        self._places = [
            (one._buffers, name, buffer)
            for one in everything
            for name, buffer in one._buffers.items()
            if id(buffer) not in norms
        ]
        """Buffers that a forward may replace: where they are, and which one is kept."""
        found = {id(one): one for part in everything for one in part.buffers(recurse=False)}
        laid: dict[Any, list[torch.Tensor]] = defaultdict(list)
        self._others: list[torch.Tensor] = []
        for buffer in found.values():
            if torch.nn.parameter.is_lazy(buffer) or buffer.is_meta:
                continue
            plain = type(buffer) is torch.Tensor and buffer.device.type == "cpu"
            if id(buffer) in norms and _is_flat(buffer) and plain:
                laid[buffer.dtype, buffer.device].append(buffer)
            elif id(buffer) in norms:
                self._others.append(buffer)
        self._laid = [lay_side_by_side(buffers) for buffers in laid.values()]
        self._keep()
        self._saved = False

    def _keep(self) -> None:
        """Make room for what is kept."""
        joined: dict[Any, list[torch.Tensor]] = defaultdict(list)
        self._apart = [(one, one.clone()) for one in self._laid]
        found = {id(buffer): buffer for _, _, buffer in self._places if buffer is not None}
        for buffer in (*self._others, *found.values()):
            if torch.nn.parameter.is_lazy(buffer) or buffer.is_meta:
                continue
            if _is_flat(buffer):
                joined[buffer.dtype, buffer.device].append(buffer.detach().view(-1))
            else:
                self._apart.append((buffer, buffer.detach().clone()))
        self._joined = [(flat, torch.cat(flat)) for flat in joined.values()]

    def save(self) -> None:
        """Keeps them as they are now."""
        self._saved = True
        with torch.no_grad():
            if [name for held, name, buffer in self._places if held.get(name) is not buffer]:
                self._places = [(held, name, held.get(name)) for held, name, _ in self._places]
                self._keep()
            for flat, kept in self._joined:
                torch.cat(flat, out=kept)
            for buffer, kept in self._apart:
                kept.copy_(buffer)

    def restore(self) -> None:
        """Puts them back as they were at the last `save`, if there was one."""
        if not self._saved:
            return
        with torch.no_grad():
            for flat, kept in self._joined:
                parts = torch.split(kept, [one.numel() for one in flat])
                for buffer, part in zip(flat, parts, strict=True):
                    buffer.copy_(part)
            for buffer, whole in self._apart:
                buffer.copy_(whole)
        for held, name, kept_buffer in self._places:
            held[name] = kept_buffer


def _is_flat(buffer: torch.Tensor) -> bool:
    return buffer.layout is torch.strided and buffer.is_contiguous()


def lay_side_by_side(buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Make the tensors views of one, each aligned as if it were alone, and return that; where they
    are so already, nothing changes.

    Args:
        buffers: contiguous, of one dtype and device.
    """
    align = ALIGNMENT // buffers[0].element_size()
    lengths = [-(-one.numel() // align) * align for one in buffers]
    begins = [0, *accumulate(lengths)]
    places = {
        (one.untyped_storage().data_ptr(), one.storage_offset() - begin)
        for one, begin in zip(buffers, begins, strict=False)
    }
    first = buffers[0]
    fits = first.untyped_storage().nbytes() == begins[-1] * first.element_size()
    if len(places) == 1 and fits:
        return first.detach().as_strided((begins[-1],), (1,), 0)
    whole = first.detach().new_zeros(begins[-1])
    for one, begin in zip(buffers, begins, strict=False):
        part = whole[begin : begin + one.numel()].view(one.shape)
        part.copy_(one.detach())
        one.data = part
    return whole


class ExtraBackup:
    """The state of a loop's `extra` and its optimizer's rates, when a step was undone.

    It is taken and put back for undone steps only: what a script does to them after the `with`,
    which it entered for a step that was never applied, must not count.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, extra: Mapping[str, Stateful]) -> None:
        self._optimizer, self._extra = optimizer, extra
        self._states = {name: copy.deepcopy(part.state_dict()) for name, part in extra.items()}
        self._rates = [_settings(group) for group in optimizer.param_groups]

    def restore(self) -> None:
        for name, part in self._extra.items():
            part.load_state_dict(self._states[name])
        for group, settings in zip(self._optimizer.param_groups, self._rates, strict=True):
            for name, value in settings.items():
                if isinstance(group[name], torch.Tensor):
                    group[name].copy_(value)  # kernels and graphs may hold it
                else:
                    group[name] = value


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group's learning rate and the like."""
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
