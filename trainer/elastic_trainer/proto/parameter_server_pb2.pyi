from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DONE: _ClassVar[Verdict]
    NOT_OWNER: _ClassVar[Verdict]
    LATER: _ClassVar[Verdict]
    NOT_OPEN: _ClassVar[Verdict]
DONE: Verdict
NOT_OWNER: Verdict
LATER: Verdict
NOT_OPEN: Verdict

class OpenRequest(_message.Message):
    __slots__ = ("worker", "tables", "clock", "epoch")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    clock: int
    epoch: str
    def __init__(self, worker: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., clock: _Optional[int] = ..., epoch: _Optional[str] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("clock",)
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    clock: int
    def __init__(self, clock: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("worker", "table", "ids", "clock", "staleness", "history")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    table: str
    ids: bytes
    clock: int
    staleness: int
    history: History
    def __init__(self, worker: _Optional[str] = ..., table: _Optional[str] = ..., ids: _Optional[bytes] = ..., clock: _Optional[int] = ..., staleness: _Optional[int] = ..., history: _Optional[_Union[History, _Mapping]] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("epoch", "adopted")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    adopted: int
    def __init__(self, epoch: _Optional[str] = ..., adopted: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("verdict", "rows")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    rows: bytes
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., rows: _Optional[bytes] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("worker", "sequence", "gradients", "history")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    sequence: int
    gradients: _containers.RepeatedCompositeFieldContainer[Gradients]
    history: History
    def __init__(self, worker: _Optional[str] = ..., sequence: _Optional[int] = ..., gradients: _Optional[_Iterable[_Union[Gradients, _Mapping]]] = ..., history: _Optional[_Union[History, _Mapping]] = ...) -> None: ...

class Gradients(_message.Message):
    __slots__ = ("table", "ids", "seen", "sums", "lr")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    table: str
    ids: bytes
    seen: bytes
    sums: bytes
    lr: float
    def __init__(self, table: _Optional[str] = ..., ids: _Optional[bytes] = ..., seen: _Optional[bytes] = ..., sums: _Optional[bytes] = ..., lr: _Optional[float] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ...) -> None: ...

class FindOwnersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Owners(_message.Message):
    __slots__ = ("epoch", "version", "addresses", "owners", "gone", "lost", "released", "superseded", "keeper", "keeper_life", "adopted", "outdated")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    KEEPER_LIFE_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    OUTDATED_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    version: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    owners: bytes
    gone: _containers.RepeatedScalarFieldContainer[str]
    lost: str
    released: bool
    superseded: _containers.RepeatedScalarFieldContainer[str]
    keeper: str
    keeper_life: str
    adopted: int
    outdated: _containers.RepeatedCompositeFieldContainer[Copy]
    def __init__(self, epoch: _Optional[str] = ..., version: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., owners: _Optional[bytes] = ..., gone: _Optional[_Iterable[str]] = ..., lost: _Optional[str] = ..., released: _Optional[bool] = ..., superseded: _Optional[_Iterable[str]] = ..., keeper: _Optional[str] = ..., keeper_life: _Optional[str] = ..., adopted: _Optional[int] = ..., outdated: _Optional[_Iterable[_Union[Copy, _Mapping]]] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("place", "export", "number", "base", "save", "after", "history")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    place: str
    export: str
    number: int
    base: bool
    save: str
    after: str
    history: History
    def __init__(self, place: _Optional[str] = ..., export: _Optional[str] = ..., number: _Optional[int] = ..., base: _Optional[bool] = ..., save: _Optional[str] = ..., after: _Optional[str] = ..., history: _Optional[_Union[History, _Mapping]] = ...) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("name", "size", "digest", "buckets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    digest: str
    buckets: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[str] = ..., buckets: _Optional[bytes] = ...) -> None: ...

class SavedFile(_message.Message):
    __slots__ = ("path", "size", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    digest: str
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("files", "counts")
    FILES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[SavedFile]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, files: _Optional[_Iterable[_Union[SavedFile, _Mapping]]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadReply(_message.Message):
    __slots__ = ("verdict", "history")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    history: History
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., history: _Optional[_Union[History, _Mapping]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class CloseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("worker", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    values: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ObserveReply(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: str
    def __init__(self, status: _Optional[str] = ...) -> None: ...

class ServerReport(_message.Message):
    __slots__ = ("address", "life", "epoch", "version", "held", "giving_to", "giving", "leaving", "copies", "load", "bucket_rows", "turns", "uncopied", "expects_from")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    GIVING_TO_FIELD_NUMBER: _ClassVar[int]
    GIVING_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ROWS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    UNCOPIED_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_FROM_FIELD_NUMBER: _ClassVar[int]
    address: str
    life: str
    epoch: str
    version: int
    held: bytes
    giving_to: str
    giving: bool
    leaving: bool
    copies: _containers.RepeatedCompositeFieldContainer[Copy]
    load: str
    bucket_rows: bytes
    turns: bytes
    uncopied: bytes
    expects_from: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[str] = ..., life: _Optional[str] = ..., epoch: _Optional[str] = ..., version: _Optional[int] = ..., held: _Optional[bytes] = ..., giving_to: _Optional[str] = ..., giving: _Optional[bool] = ..., leaving: _Optional[bool] = ..., copies: _Optional[_Iterable[_Union[Copy, _Mapping]]] = ..., load: _Optional[str] = ..., bucket_rows: _Optional[bytes] = ..., turns: _Optional[bytes] = ..., uncopied: _Optional[bytes] = ..., expects_from: _Optional[_Iterable[str]] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("life", "buckets", "turns", "given")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    life: str
    buckets: bytes
    turns: bytes
    given: bool
    def __init__(self, life: _Optional[str] = ..., buckets: _Optional[bytes] = ..., turns: _Optional[bytes] = ..., given: _Optional[bool] = ...) -> None: ...

class GiveRequest(_message.Message):
    __slots__ = ("buckets", "address", "life", "epoch", "turn")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    buckets: bytes
    address: str
    life: str
    epoch: str
    turn: int
    def __init__(self, buckets: _Optional[bytes] = ..., address: _Optional[str] = ..., life: _Optional[str] = ..., epoch: _Optional[str] = ..., turn: _Optional[int] = ...) -> None: ...

class GiveReply(_message.Message):
    __slots__ = ("given",)
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    given: bool
    def __init__(self, given: _Optional[bool] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("move", "life", "table", "buckets", "ids", "entries", "source", "whole")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    move: str
    life: str
    table: str
    buckets: bytes
    ids: bytes
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    source: str
    whole: _containers.RepeatedCompositeFieldContainer[Bucket]
    def __init__(self, move: _Optional[str] = ..., life: _Optional[str] = ..., table: _Optional[str] = ..., buckets: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., entries: _Optional[_Iterable[bytes]] = ..., source: _Optional[str] = ..., whole: _Optional[_Iterable[_Union[Bucket, _Mapping]]] = ...) -> None: ...

class Bucket(_message.Message):
    __slots__ = ("number", "counts", "parts")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ..., parts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ReceiveReply(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: _Optional[bool] = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("move", "life", "buckets", "applied", "steps", "epoch", "turn", "adopted")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    move: str
    life: str
    buckets: bytes
    applied: _containers.RepeatedCompositeFieldContainer[Applied]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    epoch: str
    turn: int
    adopted: bytes
    def __init__(self, move: _Optional[str] = ..., life: _Optional[str] = ..., buckets: _Optional[bytes] = ..., applied: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., epoch: _Optional[str] = ..., turn: _Optional[int] = ..., adopted: _Optional[bytes] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("worker", "sequences")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    sequences: bytes
    def __init__(self, worker: _Optional[str] = ..., sequences: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("table", "step")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    table: str
    step: int
    def __init__(self, table: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class TakeReply(_message.Message):
    __slots__ = ("taken", "life")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    life: str
    def __init__(self, taken: _Optional[bool] = ..., life: _Optional[str] = ...) -> None: ...

class KeepRequest(_message.Message):
    __slots__ = ("life", "source", "copy", "epoch", "rows", "last", "buckets", "applied", "steps", "first", "turns", "ends")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    life: str
    source: str
    copy: str
    epoch: str
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    last: bool
    buckets: bytes
    applied: _containers.RepeatedCompositeFieldContainer[Applied]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    first: bool
    turns: bytes
    ends: bool
    def __init__(self, life: _Optional[str] = ..., source: _Optional[str] = ..., copy: _Optional[str] = ..., epoch: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., last: _Optional[bool] = ..., buckets: _Optional[bytes] = ..., applied: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., first: _Optional[bool] = ..., turns: _Optional[bytes] = ..., ends: _Optional[bool] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("table", "ids", "entries")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    table: str
    ids: bytes
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, table: _Optional[str] = ..., ids: _Optional[bytes] = ..., entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class KeepReply(_message.Message):
    __slots__ = ("kept",)
    KEPT_FIELD_NUMBER: _ClassVar[int]
    kept: bool
    def __init__(self, kept: _Optional[bool] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("life", "source", "buckets", "epoch", "turn", "given", "number")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    life: str
    source: str
    buckets: bytes
    epoch: str
    turn: int
    given: bool
    number: int
    def __init__(self, life: _Optional[str] = ..., source: _Optional[str] = ..., buckets: _Optional[bytes] = ..., epoch: _Optional[str] = ..., turn: _Optional[int] = ..., given: _Optional[bool] = ..., number: _Optional[int] = ...) -> None: ...

class AdoptReply(_message.Message):
    __slots__ = ("adopted",)
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    adopted: bool
    def __init__(self, adopted: _Optional[bool] = ...) -> None: ...
