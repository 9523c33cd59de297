"""Slots of named shared memory, in which a rank's states outlive its process.

    0      LABEL  length, JSON, digest: whose state, of which step, and the sizes of what follows
    2048   SEAL   digest of the label and of the payload, and of both: written by the agent
    4096   payload: skeleton, tensors (see blob.py)

The label is taken away before the payload is touched and comes back after it is whole, so what a
killed writer leaves has none. The seal takes as long as reading the payload; the agent does it, so
that training doesn't wait. Only a sealed slot that still verifies is believed.

A rank uses its slots in turn. One that is being copied to storage is locked (`flock`, so that the
lock dies with its holder) and passed over; a third slot is then made, so no save waits for storage.
A sealed slot can be copied to another node's memory as it is, and is as good there.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.device_mesh import DeviceMesh

from elastic_trainer.store.blob import ALIGNMENT, Blob, BlobError, MeshKey, read, read_parts
from elastic_trainer.store.digest import digest_of_replicated

MEMORY_VARIABLE = "VOLCANO_ELASTIC_MEMORY"
"""The agent's folder of slots, on shared memory."""

MORE = (
    "make it larger: a pod's by the annotation volcano-elastic.io/shared-memory, for all its ranks "
    "together; outside Kubernetes by docker run --shm-size, or mount -o remount,size=… /dev/shm"
)
"""The repair where shared memory is too small."""

SEAL = 2048
PAYLOAD = 4096
SLOTS = 8
"""Two in turn, one more for each that is being copied, to storage and to a peer's memory, and those
that are spared: of a mirror, parts of all nodes that left. Each is made when it is needed."""
TURNS = 2

_EMPTY = (-1, -1, False)
_LENGTH = struct.Struct("<I")
_DIGEST = 16


class SlotError(Exception):
    """A slot can't be written, or isn't what was written."""


@dataclass(frozen=True, slots=True)
class Label:
    training: str
    """Training that it belongs to, see Storage.training."""
    run: int
    step: int
    rank: int
    world: int
    sharded: bool
    skeleton: int
    tensors: int
    """Bytes of the payload's parts."""
    part: int = 0
    """Number of a sharded state's part: equal for ranks that hold the same."""
    parts: int = 1
    """So many make the state."""
    round: int = 0
    """Round in which it was sealed, as in Commit.round."""
    place: str = ""
    """Digest of the folder that the training keeps its commits in, see `digest_of_location`."""
    layout: str = ""
    """Digest of how a sharded state is spread over its ranks, alike on all of them."""

    @property
    def identity(self) -> tuple[int, int]:
        return (self.run, self.step)

    @property
    def payload(self) -> int:
        """Bytes of skeleton and tensors together."""
        return _payload_start(self.skeleton) - PAYLOAD + self.tensors


class Slot:
    """One slot's file; made by the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._inode = 0
        """Inode of the file that is mapped, which another may have replaced."""

    def prepare(self, size: int) -> None:
        """Make room for a payload of `size` bytes, so that a write only copies.

        Raises:
            SlotError: the shared memory is too small.
        """
        whole = PAYLOAD + size
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                found = os.fstat(file)
                if found.st_size < whole:
                    os.posix_fallocate(file, 0, whole)  # else a full memory would be a SIGBUS
                if self._map is None or len(self._map) < whole or self._inode != found.st_ino:
                    # The old one is unmapped once nobody views it.
                    self._map = mmap.mmap(file, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
                    self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
                    self._inode = found.st_ino
            finally:
                os.close(file)
        except OSError as error:
            raise SlotError(
                f"{self.path} can't hold {whole} bytes: {error.strerror}; {MORE}"
            ) from error

    def write(self, label: Label, blob: Blob) -> None:
        """Raises SlotError as `prepare`; what the slot held is lost then only if it was smaller."""
        blob.write(self.open(label, blob.skeleton))
        self.close(label)

    @property
    def memory(self) -> torch.Tensor:
        """Return all of the slot's memory, as it is mapped now."""
        return self._bytes

    def open(self, label: Label, skeleton: bytes) -> torch.Tensor:
        """Write all of a state but its tensors, and return the place for these; who has filled it
        calls `close`. Raises SlotError as `write`."""
        self.prepare(label.payload)
        assert self._map is not None
        self._map[:PAYLOAD] = bytes(PAYLOAD)
        self._map[PAYLOAD : PAYLOAD + len(skeleton)] = skeleton
        return self._bytes[_payload_start(label.skeleton) :]

    def close(self, label: Label) -> None:
        """Label what was written since `open`: it is whole."""
        assert self._map is not None
        body = json.dumps(asdict(label)).encode()
        head = _LENGTH.pack(len(body)) + body
        head += xxhash.xxh3_128_digest(head)
        assert len(head) <= SEAL
        self._map[: len(head)] = head

    def content(self, label: Label) -> tuple[torch.Tensor, torch.Tensor]:
        """Head and payload as they are, of a slot that holds `label`; for `copy` elsewhere.

        Raises:
            SlotError: it isn't there any more.
        """
        end = PAYLOAD + label.payload
        if self._opened() is None or self.sealed() != label or end > len(self._bytes):
            raise SlotError(f"{self.path} no longer holds step {label.step}")
        return self._bytes[:PAYLOAD].clone(), self._bytes[PAYLOAD:end]

    def copy(self, size: int, fill: Callable[[torch.Tensor], None]) -> None:
        """Becomes a copy of another slot: `fill` is called for `size` bytes of payload, then for
        the head. Raises SlotError as `prepare`."""
        self.prepare(size)
        assert self._map is not None
        self._map[:PAYLOAD] = bytes(PAYLOAD)
        fill(self._bytes[PAYLOAD : PAYLOAD + size])
        head = torch.empty(PAYLOAD, dtype=torch.uint8)
        fill(head)
        self._map[:PAYLOAD] = head.numpy().tobytes()

    @contextlib.contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[bool]:
        """Lock the slot against the other kind, without waiting; yield whether it could be done."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SlotError(f"{self.path} can't be opened: {error.strerror}") from error
        try:
            try:
                fcntl.flock(
                    descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
                )
            except BlockingIOError:
                yield False
            else:
                try:
                    yield True
                finally:
                    # Closing is not enough: a process that was forked meanwhile, such as a data
                    # loader's, has the descriptor, too, and would keep the lock as long as it runs.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def label(self) -> Label | None:
        """Return None where it is empty, being written, damaged, or another version's."""
        view = self._opened()
        return _label(view[:SEAL]) if view is not None else None

    def verify(self) -> Label | None:
        """Note the payload's digest; None if there is no whole state, or it changed meanwhile."""
        label = self.label()
        if label is None:
            return None
        digest = _digest(label) + self._payload_digest(label)
        if self.label() != label:
            return None
        assert self._map is not None
        self._map[SEAL : SEAL + 3 * _DIGEST] = digest + xxhash.xxh3_128_digest(digest)
        return label

    def sealed(self) -> Label | None:
        """The label, where there is a seal of it; the payload isn't looked at."""
        label = self.label()
        return label if label is not None and self._seal()[:_DIGEST] == _digest(label) else None

    def read(self, meshes: Mapping[MeshKey, DeviceMesh] | None = None) -> Any:
        """The state, its tensors being views of the slot.

        Raises:
            SlotError: it isn't what was sealed, or was never sealed.
        """
        return self._read(lambda skeleton, tensors: read(skeleton, tensors, meshes))

    def read_parts(self) -> Any:
        """Return the state as `read`, with a ShardPart in place of each DTensor."""
        return self._read(read_parts)

    def _read(self, read_blob: Callable[[bytes, memoryview], Any]) -> Any:
        label = self.sealed()
        if label is None:
            raise SlotError(f"{self.path} holds no state that was verified")
        if self._seal()[_DIGEST:] != self._payload_digest(label):
            raise SlotError(f"{self.path} is damaged: its digest doesn't match its content")
        return self._state(label, read_blob)

    def replicated_digest(self, label: Label) -> str:
        """Return the digest of what the state that it holds has alike on every rank; empty where
        nothing is, or the slot was taken for another state meanwhile.

        Raises:
            SlotError: it can't be read.
        """
        if label.sharded or self.label() != label or PAYLOAD + label.payload > len(self._bytes):
            return ""
        digest = digest_of_replicated(self._state(label, read))
        return digest if self.label() == label else ""

    def discard(self) -> None:
        """Make it one that holds no state. Raises SlotError where it can't be mapped."""
        if self._opened() is not None:
            assert self._map is not None
            self._map[:PAYLOAD] = bytes(PAYLOAD)

    def _state(self, label: Label, read_blob: Callable[[bytes, memoryview], Any]) -> Any:
        assert self._map is not None
        start = _payload_start(label.skeleton)
        skeleton = self._map[PAYLOAD : PAYLOAD + label.skeleton]
        try:
            return read_blob(skeleton, memoryview(self._map)[start : start + label.tensors])
        except BlobError as error:
            raise SlotError(f"{self.path} can't be read: {error}") from error

    def _seal(self) -> bytes:
        """Digests of label and payload; empty if it is damaged."""
        assert self._map is not None
        content = self._map[SEAL : SEAL + 2 * _DIGEST]
        seal = self._map[SEAL + 2 * _DIGEST : SEAL + 3 * _DIGEST]
        return content if xxhash.xxh3_128_digest(content) == seal else b""

    def _payload_digest(self, label: Label) -> bytes:
        assert self._map is not None
        end = PAYLOAD + label.payload
        if end > len(self._map):
            raise SlotError(f"{self.path} is shorter than its label says")
        # Large updates let go of the interpreter's lock.
        return xxhash.xxh3_128_digest(memoryview(self._map)[PAYLOAD:end])

    def _opened(self) -> mmap.mmap | None:
        """The mapping, as large as the file is now."""
        try:
            size = os.stat(self.path).st_size
        except OSError:
            return None
        if size < PAYLOAD:
            return None
        self.prepare(size - PAYLOAD)
        return self._map


class Slots:
    """A rank's slots in its agent's folder; `kind` tells them from others of the same rank."""

    def __init__(self, folder: Path, local_rank: int, kind: str = "rank") -> None:
        self.folder = folder
        self.slots = [Slot(folder / f"{kind}-{local_rank}-{number}") for number in range(SLOTS)]
        self.turns = TURNS
        """Slots in turn. Of one, what it holds is lost as the next write begins."""
        self.spared: frozenset[Slot] = frozenset()
        """Slots that nothing is written to: they hold what may be needed until a newer state is as
        safe."""

    def renew(self) -> Slots:
        """Return the same slots, mapped as they are, of which none is spared and all are to be
        used in turn."""
        renewed = copy.copy(self)
        renewed.turns, renewed.spared = TURNS, frozenset()
        return renewed

    def has_room(self, size: int) -> bool:
        """Return whether there is memory for one more payload of `size` bytes."""
        files = os.statvfs(self.folder)
        return files.f_bavail * files.f_frsize >= PAYLOAD + size

    def check(self, size: int, turns: int = TURNS) -> None:
        """Raises SlotError where there is no room for so many payloads of `size` bytes; says what
        there is and what is needed."""
        files = os.statvfs(self.folder)
        there = sum(_size(slot.path) for slot in self.slots[:turns])
        free = files.f_bavail * files.f_frsize
        wanted = turns * (PAYLOAD + size)
        if wanted > free + there:
            raise SlotError(
                f"the shared memory at {self.folder.parent} has {free + there} bytes for this "
                f"rank's checkpoints: expected {wanted}, {turns} times the state; {MORE}"
            )

    def reserve(self, training: str, sizes: Sequence[int]) -> None:
        """Have room for `copy` of payloads of these sizes, in this order, beside what is spared and
        the newest, and places left for those that follow.

        Raises:
            SlotError: there isn't.
        """
        sealed = list(self.sealed())[:1]
        places = [one for one in self.slots if one not in self.spared and one not in sealed]
        files = os.statvfs(self.folder)
        wanted = sum(PAYLOAD + size for size in sizes)
        there = files.f_bavail * files.f_frsize + sum(_size(one.path) for one in places)
        left = max(0, len(places) - (TURNS if len(sizes) > 1 else 0))
        if len(sizes) > left or wanted > there:
            raise SlotError(
                f"the shared memory at {self.folder.parent} has {there} bytes in {left} places: "
                f"expected {wanted} in {len(sizes)}; {MORE}"
            )
        spared = self.spared
        try:
            for size in sizes:  # the node's other ranks take of the same memory meanwhile
                self.spared |= {self._put(training, partial(Slot.prepare, size=size))}
        finally:
            self.spared = spared

    def prepare(self, size: int) -> None:
        """Make room for payloads of `size` bytes: writes then only copy. Raises SlotError."""
        for slot in self.slots[: self.turns]:
            slot.prepare(size)

    def write(self, label: Label, blob: Blob) -> Slot:
        """Save into the slot that holds the oldest state and isn't locked; the slot.

        Raises:
            SlotError: there is no room; the newest state is as it was.
        """
        return self._put(label.training, lambda slot: slot.write(label, blob))

    def open(self, label: Label, skeleton: bytes) -> tuple[Slot, torch.Tensor]:
        """Choose a slot as `write`, and return it with what its `open` returns."""
        places = []
        slot = self._put(label.training, lambda one: places.append(one.open(label, skeleton)))
        return slot, places[-1]

    def copy(self, training: str, size: int, fill: Callable[[torch.Tensor], None]) -> Slot:
        """Write another slot's content, as Slot.copy does."""
        return self._put(training, lambda slot: slot.copy(size, fill))

    def _put(self, training: str, put: Callable[[Slot], None]) -> Slot:
        """The newest sealed one is left alone, as it may be all that is committed; the newest of
        all, if it is still to be sealed, is taken only where there is no room for another."""
        ages = {slot: self._age(slot, training) for slot in self.slots}
        verified = [slot for slot in self.slots if ages[slot][2]]
        sealed = max(verified, key=lambda slot: ages[slot], default=None)
        newest = max(ages.values())

        def order(slot: Slot) -> tuple[bool, bool, tuple[int, int, bool]]:
            unmade = slot in self.slots[TURNS:] and not slot.path.exists()
            return (ages[slot] == newest != _EMPTY, unmade, ages[slot])

        refused = SlotError(f"all slots at {self.folder} are in use")
        left = [slot for slot in self.slots if slot is not sealed and slot not in self.spared]
        if self.turns == 1:
            left = self.slots[:1]
        for slot in sorted(left, key=order):
            with slot.locked(exclusive=True) as ours:
                if ours and slot not in self.spared:  # which the lock's last holder may have said
                    try:
                        put(slot)
                    except SlotError as error:
                        refused = error
                    else:
                        return slot
        raise refused

    def _age(self, slot: Slot, training: str) -> tuple[int, int, bool]:
        """Run, step, and whether it is sealed; another training's is older than anything."""
        found = slot.label()
        if found is None or found.training != training:
            return _EMPTY
        return (*found.identity, slot.sealed() is not None)

    def sealed(self) -> dict[Slot, Label]:
        """The slots that may be read, newest first."""
        found = {}
        for slot in self.slots:
            with contextlib.suppress(SlotError):
                label = slot.sealed()
                if label is not None:
                    found[slot] = label
        return dict(sorted(found.items(), key=lambda item: item[1].identity, reverse=True))


def find_labels(folder: Path) -> list[Label]:
    """Return the labels of all slots of an agent's folder, without mapping or verifying any."""
    found, paths = [], list[Path]()
    with contextlib.suppress(OSError):
        paths = sorted(folder.glob("*-*-*"))
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            found.append(_label(file.read(SEAL)))
    return [label for label in found if label is not None]


def payload_size(blob: Blob) -> int:
    """Bytes that a slot needs for it."""
    return _payload_start(len(blob.skeleton)) - PAYLOAD + blob.size


def _payload_start(skeleton: int) -> int:
    """Return the offset at which the tensors begin, in bytes."""
    return PAYLOAD + -(-skeleton // ALIGNMENT) * ALIGNMENT


def digest_of_location(location: str) -> str:
    """Return what tells a folder's path or URL from others in a slot's label."""
    return xxhash.xxh3_64_hexdigest(location.encode())


def _label(head: bytes) -> Label | None:
    """Return the label that a slot's first bytes hold; None as `Slot.label`."""
    if len(head) < SEAL:
        return None
    (length,) = _LENGTH.unpack_from(head)
    end = _LENGTH.size + length
    if end + _DIGEST > SEAL or xxhash.xxh3_128_digest(head[:end]) != head[end : end + _DIGEST]:
        return None
    return _parse_label(head[_LENGTH.size : end])


def _parse_label(body: bytes) -> Label | None:
    """Return None where another version wrote it: a pod is upgraded while its memory stays."""
    found = json.loads(body)
    expected = {field.name for field in fields(Label)}
    return Label(**found) if isinstance(found, dict) and found.keys() == expected else None


def _digest(label: Label) -> bytes:
    return xxhash.xxh3_128_digest(json.dumps(asdict(label)).encode())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
