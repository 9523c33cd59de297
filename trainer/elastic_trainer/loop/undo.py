"""What a step that is undone must leave as it was, kept at little cost while all goes well."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from elastic_trainer.checkpoint.model_state import Stateful


class BufferBackup:
    """The buffers of modules (batch norm's running means), which an aborted forward has moved.

    They are copied side by side into one tensor for each dtype and device: a copy for each buffer
    would cost a deep model 0.4 ms a step.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        found = {id(one): one for module in modules for one in module.buffers()}
        by_kind: dict[Any, list[torch.Tensor]] = defaultdict(list)
        self._apart: list[tuple[torch.Tensor, torch.Tensor]] = []
        for buffer in found.values():
            if torch.nn.parameter.is_lazy(buffer) or buffer.is_meta:
                continue
            if buffer.layout is torch.strided and buffer.is_contiguous():
                by_kind[buffer.dtype, buffer.device].append(buffer.detach().view(-1))
            else:
                self._apart.append((buffer, buffer.detach().clone()))
        self._joined = [(flat, torch.cat(flat)) for flat in by_kind.values()]
        self._saved = False

    def save(self) -> None:
        """Keeps them as they are now."""
        self._saved = True
        with torch.no_grad():
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
