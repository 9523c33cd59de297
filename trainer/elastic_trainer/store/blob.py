"""A state as one run of bytes: a skeleton that lists its tensors, then the tensors' own bytes.

    skeleton    pickle of the state; a tensor in it is a dtype, shape, offset, size and strides
    tensors     each at a multiple of ALIGNMENT from the beginning of this part

A tensor's bytes are those of the memory that it spans, in the order they lie there, so that it
comes back with its strides: channels_last stays channels_last. Only where it leaves gaps (every
second column of another) are its elements gathered, and it comes back contiguous. Tensors that are
the same memory are stored once and come back as the same memory.

A skeleton is read back by an unpickler that knows plain values and what `_GLOBALS` lists, so that
neither a damaged nor a malicious one runs code.
"""

from __future__ import annotations

import collections
import io
import pickle
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Replicate, Shard

ALIGNMENT = 64
"""Bytes: a cache line, and more than any dtype needs."""

_Place = tuple[str, tuple[int, ...], int, int, tuple[int, ...]]
"""A tensor's dtype, shape, offset, bytes and strides."""
MeshKey = tuple[str, tuple[int, ...], tuple[int, ...], tuple[str, ...] | None]

_GLOBALS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "Counter"): collections.Counter,
    ("collections", "deque"): collections.deque,
    ("builtins", "set"): set,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
}


class BlobError(ValueError):
    """The state holds something that no blob can, or a skeleton isn't one."""


@dataclass(frozen=True, slots=True)
class Blob:
    skeleton: bytes
    tensors: tuple[tuple[int, torch.Tensor], ...]
    """Offset and content of each tensor, in order: views of the state, on its own devices."""
    size: int
    """Bytes of the tensors' part, padding included."""

    def write(self, target: torch.Tensor, *, waits: bool = True) -> None:
        """Copies the tensors' part to the beginning of `target` (uint8), with torch's threads.

        Args:
            waits: for devices that copy by themselves.
        """
        for offset, piece in self.pieces():
            target[offset : offset + piece.numel()].copy_(piece, non_blocking=not waits)

    def parted(self, addresses: Collection[int]) -> tuple[Blob, Blob]:
        """Return the blob with those of its tensors that begin at these addresses, and with the
        others."""
        chosen = tuple(one for one in self.tensors if one[1].data_ptr() in addresses)
        others = tuple(one for one in self.tensors if one[1].data_ptr() not in addresses)
        return replace(self, tensors=chosen), replace(self, tensors=others)

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields offset and bytes (uint8, on the tensor's own device) of each tensor, in order.

        The bytes of a tensor with gaps are a copy, made when its turn comes: never of all at once.
        """
        for offset, tensor in self.tensors:
            yield offset, tensor.contiguous().reshape(-1).view(torch.uint8)


def lay_out(state: Any) -> Blob:
    """The blob of nested dicts, lists, tuples and tensors, which it goes on to share.

    Raises:
        BlobError: it holds something else; said by its type.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(state)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BlobError(f"the state can't be saved: {error}") from error
    return Blob(file.getvalue(), tuple(pickler.tensors), pickler.size)


@dataclass(frozen=True, slots=True)
class ShardPart:
    """One rank's part of a DTensor whose mesh isn't here."""

    local: torch.Tensor
    mesh: MeshKey
    placements: tuple[int, ...]
    """By dimension of the mesh: the tensor's dimension that it shards; -1 for a replica."""
    shape: tuple[int, ...]
    """The whole tensor's."""


def read(
    skeleton: bytes, tensors: memoryview, meshes: Mapping[MeshKey, DeviceMesh] | None = None
) -> Any:
    """The state, its tensors sharing the memory of `tensors`, the tensors' part.

    Args:
        meshes: of this process, by `mesh_key`, where the state holds DTensors.

    Raises:
        BlobError: `skeleton` is damaged, needs what a state doesn't, or a mesh that isn't here.
    """
    return _read(skeleton, tensors, meshes or {})


def read_parts(skeleton: bytes, tensors: memoryview) -> Any:
    """Return the state with a ShardPart in place of each DTensor. Raises BlobError as `read`."""
    return _read(skeleton, tensors, None)


def read_onto(skeleton: bytes, size: int, memory: Mapping[tuple[int, int], torch.Tensor]) -> Any:
    """Return the state, its tensors being those of another that is laid out alike.

    Args:
        size: bytes of the tensors' part.
        memory: by offset and size of what is stored, its bytes (uint8), on any device.

    Raises:
        BlobError: as `read`, or a tensor isn't there.
    """

    class Onto(_Unpickler):
        def _memory(self, offset: int, size: int) -> torch.Tensor:
            try:
                return memory[offset, size]
            except KeyError:
                raise BlobError(f"no tensor at {offset} of {size} bytes") from None

    return _load(Onto(io.BytesIO(skeleton), size, None))


def _read(skeleton: bytes, tensors: memoryview, meshes: Mapping[MeshKey, DeviceMesh] | None) -> Any:
    return _load(_InOne(io.BytesIO(skeleton), tensors, meshes))


def _load(unpickler: pickle.Unpickler) -> Any:
    try:
        return unpickler.load()
    except BlobError:
        raise
    except Exception as error:  # pickle raises nearly anything for bytes that are no pickle
        raise BlobError(f"not the skeleton of a state: {error!r}") from error


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements of memory a tensor spans, from its first to its last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the memory that a tensor spans as one dimension; None where it leaves gaps."""
    length = span(tensor.shape, tensor.stride())
    return tensor.as_strided((length,), (1,)) if length <= tensor.numel() else None


def mesh_key(mesh: DeviceMesh) -> MeshKey:
    """Return a key that tells one mesh from another, in every process alike."""
    ranks = mesh.mesh
    return (
        mesh.device_type,
        tuple(ranks.shape),
        tuple(ranks.flatten().tolist()),
        mesh.mesh_dim_names,
    )


class _Pickler(pickle.Pickler):
    """Tensors are left out of the pickle."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[tuple[int, torch.Tensor]] = []
        self.size = 0
        self._places: dict[Any, int] = {}
        """Offsets by the memory that is stored, so that tied tensors are stored once."""

    def persistent_id(self, obj: Any) -> Any:
        if _is_distributed(obj):
            local = obj.to_local()
            spec = (
                mesh_key(obj.device_mesh),
                tuple(encode_placement(placement) for placement in obj.placements),
                tuple(obj.shape),
                tuple(obj.stride()),
            )
            return ("shard", self._place(local), spec)
        if isinstance(obj, torch.Tensor):
            return ("tensor", self._place(obj), None)
        if isinstance(obj, torch.dtype):
            return ("dtype", str(obj).removeprefix("torch."), None)
        return None

    def reducer_override(self, obj: Any) -> Any:
        kind = obj if isinstance(obj, type) or callable(obj) else type(obj)
        if (kind.__module__, getattr(kind, "__qualname__", "")) not in _GLOBALS:
            raise BlobError(
                f"the state holds a {kind.__module__}.{getattr(kind, '__qualname__', kind)}: "
                "expected tensors, numbers, strings, dicts, lists, tuples and sets; leave it out "
                "of state_dict()"
            )
        return NotImplemented

    def _place(self, tensor: torch.Tensor) -> _Place:
        if tensor.layout is not torch.strided:
            raise BlobError(
                f"the state holds a tensor of layout {tensor.layout}: expected a dense one"
            )
        tensor = tensor.detach().resolve_conj().resolve_neg()
        memory, strides = flat(tensor), tuple(tensor.stride())
        key: Any = (tensor.device, tensor.data_ptr())
        if memory is None:
            key = (*key, tensor.dtype, tensor.shape, strides)
            memory, strides = tensor, torch.empty(tensor.shape, device="meta").stride()
        size = memory.numel() * memory.element_size()
        offset = self._places.setdefault((*key, size), self.size)
        if offset == self.size and size:
            self.tensors.append((offset, memory))
            self.size = _aligned(offset + size)
        name = str(tensor.dtype).removeprefix("torch.")
        return (name, tuple(tensor.shape), offset, size, strides)


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        size: int,
        meshes: Mapping[MeshKey, DeviceMesh] | None,
    ) -> None:
        super().__init__(file)
        self._size = size
        self._meshes = meshes

    def _memory(self, offset: int, size: int) -> torch.Tensor:
        """Return the bytes at an offset."""
        raise NotImplementedError

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise BlobError(f"a state doesn't need {module}.{name}: not read") from None

    def persistent_load(self, pid: Any) -> Any:
        kind, content, spec = pid
        if kind == "dtype":
            return _dtype(content)
        local = self._tensor(*content)
        if kind == "tensor":
            return local
        key, placements, global_shape, stride = spec
        if self._meshes is None:
            return ShardPart(local, key, placements, global_shape)
        if key not in self._meshes:
            raise BlobError(f"the state is sharded over mesh {key}, here is {list(self._meshes)}")
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            local,
            self._meshes[key],
            [_decoded(placement) for placement in placements],
            run_check=False,
            shape=torch.Size(global_shape),
            stride=stride,
        )

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        offset: int,
        size: int,
        strides: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        """Without strides, as older versions saved it: contiguous."""
        if not 0 <= offset <= offset + size <= self._size:
            raise BlobError(f"a tensor at {offset}..{offset + size}, of {self._size} bytes")
        dtype = _dtype(name)
        if not size:
            return torch.empty(shape, dtype=dtype)
        memory = self._memory(offset, size).view(dtype)
        if strides is None:
            return memory.reshape(shape)
        fits = len(strides) == len(shape) and min(strides, default=0) >= 0
        if not fits or span(shape, strides) > len(memory):
            raise BlobError(f"a tensor of shape {shape} and strides {strides} in {size} bytes")
        return memory.as_strided(shape, strides)


class _InOne(_Unpickler):
    """All tensors lie in one memory."""

    def __init__(
        self,
        file: io.BytesIO,
        tensors: memoryview,
        meshes: Mapping[MeshKey, DeviceMesh] | None,
    ) -> None:
        super().__init__(file, len(tensors), meshes)
        self._tensors = tensors
        self._read: dict[tuple[int, int], torch.Tensor] = {}
        """The bytes at an offset and of a size: tied tensors share them."""

    def _memory(self, offset: int, size: int) -> torch.Tensor:
        if (offset, size) not in self._read:
            # Each its own storage: torch.save would write a shared one whole.
            part = self._tensors[offset : offset + size]
            self._read[offset, size] = torch.frombuffer(part, dtype=torch.uint8)
        return self._read[offset, size]


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise BlobError(f"no dtype of this torch: {name!r}")
    return found


def _is_distributed(obj: object) -> TypeGuard[DTensor]:
    """Return whether it is a DTensor; import nothing for it, as an agent has none and would take
    half a second."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(obj, getattr(tensor, "DTensor", ()))


def encode_placement(placement: Any) -> int:
    """Return the sharded dimension; -1 for a replica.

    Raises:
        BlobError: it is neither.
    """
    from torch.distributed.tensor import Replicate, Shard

    if type(placement) is Replicate:
        return -1
    if type(placement) is Shard:
        return placement.dim
    raise BlobError(f"the state holds a DTensor placed as {placement}: expected Shard or Replicate")


def _decoded(dimension: int) -> Replicate | Shard:
    from torch.distributed.tensor import Replicate, Shard

    return Replicate() if dimension < 0 else Shard(dimension)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
