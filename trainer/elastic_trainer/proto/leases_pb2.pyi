from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseRequest(_message.Message):
    __slots__ = ("open", "own", "tell", "fetch")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    TELL_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    open: Open
    own: Own
    tell: Tell
    fetch: Fetch
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., own: _Optional[_Union[Own, _Mapping]] = ..., tell: _Optional[_Union[Tell, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ...) -> None: ...

class Bounds(_message.Message):
    __slots__ = ("bounds",)
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bounds: _Optional[_Iterable[int]] = ...) -> None: ...

class Shards(_message.Message):
    __slots__ = ("samples", "epochs", "size", "seed")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    samples: int
    epochs: int
    size: int
    seed: int
    def __init__(self, samples: _Optional[int] = ..., epochs: _Optional[int] = ..., size: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("data", "client", "shards", "life", "held")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    data: str
    client: str
    shards: Shards
    life: str
    held: Bounds
    def __init__(self, data: _Optional[str] = ..., client: _Optional[str] = ..., shards: _Optional[_Union[Shards, _Mapping]] = ..., life: _Optional[str] = ..., held: _Optional[_Union[Bounds, _Mapping]] = ...) -> None: ...

class Own(_message.Message):
    __slots__ = ("data", "client", "shards", "life", "held", "consumed", "committed", "step", "again")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    data: str
    client: str
    shards: Shards
    life: str
    held: Bounds
    consumed: Bounds
    committed: Bounds
    step: int
    again: bool
    def __init__(self, data: _Optional[str] = ..., client: _Optional[str] = ..., shards: _Optional[_Union[Shards, _Mapping]] = ..., life: _Optional[str] = ..., held: _Optional[_Union[Bounds, _Mapping]] = ..., consumed: _Optional[_Union[Bounds, _Mapping]] = ..., committed: _Optional[_Union[Bounds, _Mapping]] = ..., step: _Optional[int] = ..., again: _Optional[bool] = ...) -> None: ...

class Tell(_message.Message):
    __slots__ = ("life", "consumed", "committed", "step")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    life: str
    consumed: Bounds
    committed: bool
    step: int
    def __init__(self, life: _Optional[str] = ..., consumed: _Optional[_Union[Bounds, _Mapping]] = ..., committed: _Optional[bool] = ..., step: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("count", "wait_seconds")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    wait_seconds: float
    def __init__(self, count: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("refusal", "life", "leases", "complete", "below")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    life: str
    leases: Bounds
    complete: bool
    below: int
    def __init__(self, refusal: _Optional[str] = ..., life: _Optional[str] = ..., leases: _Optional[_Union[Bounds, _Mapping]] = ..., complete: _Optional[bool] = ..., below: _Optional[int] = ...) -> None: ...
