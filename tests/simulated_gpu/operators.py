"""torch's operators on simulated GPUs: each is done by the CPU's, on the same memory.

Where an operator only changes what it was given (an optimizer's step, say), it is left to the
stream, as a kernel is, and the call returns at once; all others are done before the call returns.
"""

from __future__ import annotations

import atexit
import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

_library: torch.library.Library | None = None  # what it holds is registered for as long as it is
_runtime = ctypes.CDLL(None)
_HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_left: dict[int, Any] = {}
"""Operators that streams have yet to do, by a number."""


def install() -> None:
    """Have torch do CUDA's operators by the CPU's, in this process and its forks."""
    global _library
    if _library is not None:
        return
    atexit.register(_runtime.simulated_gpu_close)
    _library = torch.library.Library("aten", "IMPL")
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each takes the place of CUDA's own
        for name in names:
            if name.startswith("aten::") and (operator := _find(name)) and not _stays(operator):
                _library.impl(name.removeprefix("aten::"), _do(operator), "CUDA")
        _library.impl("copy_", _copy, "CUDA")


def _find(name: str) -> Any:
    plain, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, plain, None)
    return getattr(packet, overload or "default", None)


_MEMORY = {
    "empty",
    "empty_strided",
    "resize_",
    "set_",
    "record_stream",
    "is_pinned",
    "_pin_memory",
    "_efficientzerotensor",
}


def _stays(operator: Any) -> bool:
    """Return whether an operator of CUDA's own computes nothing: it makes memory, or a view."""
    schema = operator._schema
    if schema.name.removeprefix("aten::") in _MEMORY:
        return True
    return any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)


def _do(operator: Any) -> Callable[..., Any]:
    schema = operator._schema
    written = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
    names = [one.name for one in schema.arguments]
    random = "generator" in names
    seeded = torch.Tag.nondeterministic_seeded in operator.tags
    # What it returns, by the argument that it is, as in `add_`.
    same: list[int | None] = []
    for one in schema.returns:
        kept = None
        if one.alias_info is not None:
            for index, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and (
                    argument.alias_info.before_set & one.alias_info.before_set
                ):
                    kept = index
        same.append(kept)
    in_place = any(written) and all(kept is not None for kept in same)

    def do(*arguments: Any, **named: Any) -> Any:
        device = _device_of(arguments, named)
        before = (arguments, named)
        grown = _empty_outputs(before, written, names)
        arguments, named = tree_map(_on_cpu, (arguments, dict(named)))
        if (generator := named.get("generator")) is not None or random:
            named["generator"] = _generator(device, generator)
        _raise_error()
        if in_place and not seeded and not random and not grown:
            _leave_to(device.index, lambda: operator(*arguments, **named))
            found = None
        else:
            _wait_for(device.index)
            if seeded and not random:
                kept = torch.default_generator.get_state()
                torch.default_generator.set_state(_generator(device, None).get_state())
                found = operator(*arguments, **named)
                torch.default_generator.set_state(kept)
            else:
                found = operator(*arguments, **named)
        for index, output in grown.items():
            result = _argument((arguments, named), names, index)
            output.resize_(result.shape)
            _on_cpu(output).copy_(result)
        if not schema.returns:
            return None
        results = found if len(same) > 1 else (found,)
        if found is None:
            results = (None,) * len(same)
        made = tuple(
            _argument(before, names, kept) if kept is not None else _on_gpu(one, device)
            for kept, one in zip(same, results, strict=True)
        )
        return made if len(made) > 1 else made[0]

    return do


def _argument(before: tuple[Sequence[Any], dict[str, Any]], names: list[str], index: int) -> Any:
    arguments, named = before
    return arguments[index] if index < len(arguments) else named[names[index]]


def _empty_outputs(before: Any, written: list[bool], names: list[str]) -> dict[int, torch.Tensor]:
    """Return the arguments that are written and may be too small, by their place: an `out` made by
    torch.empty(0) gets its memory from the operator."""
    found = {}
    for index, one in enumerate(written):
        if one and (index < len(before[0]) or names[index] in before[1]):
            argument = _argument(before, names, index)
            if isinstance(argument, torch.Tensor) and argument.numel() == 0:
                found[index] = argument
    return found


def _device_of(arguments: Any, named: dict[str, Any]) -> torch.device:
    leaves = torch.utils._pytree.tree_leaves((arguments, named))
    for one in leaves:
        if isinstance(one, torch.Tensor) and one.device.type == "cuda":
            return one.device
    for one in leaves:
        if isinstance(one, torch.device) and one.type == "cuda" and one.index is not None:
            return one
    return torch.device("cuda", torch.cuda.current_device())


def _on_cpu(value: Any) -> Any:
    """Return the same memory as a tensor of the CPU's."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return value
    storage = value.untyped_storage()
    seen = torch.empty(0, dtype=value.dtype)
    if storage.nbytes() == 0:
        return seen.new_empty(value.shape)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    plain = torch.frombuffer(memory, dtype=torch.uint8)
    return seen.set_(plain.untyped_storage(), value.storage_offset(), value.size(), value.stride())


def _on_gpu(value: Any, device: torch.device) -> Any:
    if isinstance(value, (list, tuple)):
        return [_on_gpu(one, device) for one in value]
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    if value.numel():
        _on_cpu(made).copy_(value)
    return made


def _generator(device: torch.device, given: Any) -> torch.Generator:
    """Return a generator of the CPU's that goes on from one of a GPU, which goes on by itself."""
    if given is not None and given.device.type == "cpu":
        return given  # type: ignore[no-any-return]
    one = given if given is not None else torch.cuda.default_generators[device.index]
    offset = one.get_offset()
    one.set_offset(offset + 4)
    seed = (one.initial_seed() * 1_000_003 + offset) % (1 << 63)
    return torch.Generator().manual_seed(seed)


def _raise_error() -> None:
    """Raise the error that a call of CUDA's has left, as torch does at each kernel: whoever has met
    it before must have asked for it."""
    if error := _runtime.cudaGetLastError():
        raise RuntimeError(
            f"CUDA error: error {error} of the simulated GPU, left by an earlier call"
        )


def _wait_for(device: int) -> None:
    _runtime.simulated_gpu_wait(device, _stream(device))


def _stream(device: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(device))


def _leave_to(device: int, work: Callable[[], Any]) -> None:
    def run(number: int) -> None:
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            work()
        del _left[number]

    function = _HOST(run)
    number = id(function)
    _left[number] = function
    _runtime.simulated_gpu_run(device, _stream(device), function, ctypes.c_void_p(number))


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`aten::copy_`: by CUDA's own way where that is one copy of memory."""
    if (
        target.dtype == source.dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
    ):
        _native_copy.call_boxed(_CUDA_KEYS, target, source, non_blocking)
        return target
    device = _device_of((target, source), {})
    _wait_for(device.index)
    _on_cpu(target).copy_(_on_cpu(source))
    return target


_native_copy = torch.library.get_kernel("aten::copy_", "CUDA")
_CUDA_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
