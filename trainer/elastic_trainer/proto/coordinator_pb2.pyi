from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("hello", "join", "heartbeat", "linked", "progress", "fence_reply", "fenced", "committed", "workers_failed", "leave", "finished", "goodbye", "failed", "workers_succeeded", "stopped", "transferring", "taken", "inspected", "digested", "load", "whole", "reported", "tables", "doubted", "standing")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FENCE_REPLY_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FAILED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRING_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    INSPECTED_FIELD_NUMBER: _ClassVar[int]
    DIGESTED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    DOUBTED_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    join: Join
    heartbeat: Heartbeat
    linked: Linked
    progress: Progress
    fence_reply: FenceReply
    fenced: Fenced
    committed: Committed
    workers_failed: WorkersFailed
    leave: Leave
    finished: Finished
    goodbye: Goodbye
    failed: Failed
    workers_succeeded: WorkersSucceeded
    stopped: Stopped
    transferring: Transferring
    taken: Taken
    inspected: Inspected
    digested: Digested
    load: Load
    whole: Whole
    reported: Reported
    tables: Tables
    doubted: Doubted
    standing: Standing
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., linked: _Optional[_Union[Linked, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., fence_reply: _Optional[_Union[FenceReply, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., workers_failed: _Optional[_Union[WorkersFailed, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., workers_succeeded: _Optional[_Union[WorkersSucceeded, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ..., transferring: _Optional[_Union[Transferring, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., inspected: _Optional[_Union[Inspected, _Mapping]] = ..., digested: _Optional[_Union[Digested, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., whole: _Optional[_Union[Whole, _Mapping]] = ..., reported: _Optional[_Union[Reported, _Mapping]] = ..., tables: _Optional[_Union[Tables, _Mapping]] = ..., doubted: _Optional[_Union[Doubted, _Mapping]] = ..., standing: _Optional[_Union[Standing, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent", "pod_index", "address", "last_round", "round", "step", "committed_step", "linked", "leaving", "finished", "fence", "stop_step", "fenced", "pids", "recovers", "version", "job", "processes", "succeeded", "node", "grace_seconds", "commits", "term", "port", "electorate", "goodput", "uncounted_milliseconds", "last_run", "alive_milliseconds", "keepers", "round_digest", "electorate_digest", "feed_port", "stop_commits", "holds", "sharded", "program")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    POD_INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEP_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STOP_STEP_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    RECOVERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ELECTORATE_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    KEEPERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ELECTORATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FEED_PORT_FIELD_NUMBER: _ClassVar[int]
    STOP_COMMITS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    SHARDED_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    agent: str
    pod_index: int
    address: str
    last_round: int
    round: bytes
    step: int
    committed_step: int
    linked: bool
    leaving: bool
    finished: bool
    fence: int
    stop_step: int
    fenced: bool
    pids: _containers.RepeatedScalarFieldContainer[int]
    recovers: bool
    version: int
    job: str
    processes: int
    succeeded: bool
    node: str
    grace_seconds: float
    commits: _containers.RepeatedCompositeFieldContainer[NewestCommit]
    term: int
    port: int
    electorate: bytes
    goodput: Goodput
    uncounted_milliseconds: int
    last_run: int
    alive_milliseconds: int
    keepers: _containers.RepeatedCompositeFieldContainer[Moment]
    round_digest: bytes
    electorate_digest: bytes
    feed_port: int
    stop_commits: bool
    holds: bool
    sharded: bool
    program: str
    def __init__(self, agent: _Optional[str] = ..., pod_index: _Optional[int] = ..., address: _Optional[str] = ..., last_round: _Optional[int] = ..., round: _Optional[bytes] = ..., step: _Optional[int] = ..., committed_step: _Optional[int] = ..., linked: _Optional[bool] = ..., leaving: _Optional[bool] = ..., finished: _Optional[bool] = ..., fence: _Optional[int] = ..., stop_step: _Optional[int] = ..., fenced: _Optional[bool] = ..., pids: _Optional[_Iterable[int]] = ..., recovers: _Optional[bool] = ..., version: _Optional[int] = ..., job: _Optional[str] = ..., processes: _Optional[int] = ..., succeeded: _Optional[bool] = ..., node: _Optional[str] = ..., grace_seconds: _Optional[float] = ..., commits: _Optional[_Iterable[_Union[NewestCommit, _Mapping]]] = ..., term: _Optional[int] = ..., port: _Optional[int] = ..., electorate: _Optional[bytes] = ..., goodput: _Optional[_Union[Goodput, _Mapping]] = ..., uncounted_milliseconds: _Optional[int] = ..., last_run: _Optional[int] = ..., alive_milliseconds: _Optional[int] = ..., keepers: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., round_digest: _Optional[bytes] = ..., electorate_digest: _Optional[bytes] = ..., feed_port: _Optional[int] = ..., stop_commits: _Optional[bool] = ..., holds: _Optional[bool] = ..., sharded: _Optional[bool] = ..., program: _Optional[str] = ...) -> None: ...

class Whole(_message.Message):
    __slots__ = ("encoded_round", "encoded_electorate")
    ENCODED_ROUND_FIELD_NUMBER: _ClassVar[int]
    ENCODED_ELECTORATE_FIELD_NUMBER: _ClassVar[int]
    encoded_round: bytes
    encoded_electorate: bytes
    def __init__(self, encoded_round: _Optional[bytes] = ..., encoded_electorate: _Optional[bytes] = ...) -> None: ...

class NewestCommit(_message.Message):
    __slots__ = ("place", "step")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    place: str
    step: int
    def __init__(self, place: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("store_port", "live", "round", "parts")
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    store_port: int
    live: bool
    round: int
    parts: _containers.RepeatedCompositeFieldContainer[StatePart]
    def __init__(self, store_port: _Optional[int] = ..., live: _Optional[bool] = ..., round: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[StatePart, _Mapping]]] = ...) -> None: ...

class StatePart(_message.Message):
    __slots__ = ("run", "step", "state", "number", "numbers")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    run: int
    step: int
    state: str
    number: int
    numbers: int
    def __init__(self, run: _Optional[int] = ..., step: _Optional[int] = ..., state: _Optional[str] = ..., number: _Optional[int] = ..., numbers: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("term", "host", "min_nodes", "max_nodes", "goodput", "beat_seconds")
    TERM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    BEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    term: int
    host: Member
    min_nodes: int
    max_nodes: int
    goodput: Goodput
    beat_seconds: float
    def __init__(self, term: _Optional[int] = ..., host: _Optional[_Union[Member, _Mapping]] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., goodput: _Optional[_Union[Goodput, _Mapping]] = ..., beat_seconds: _Optional[float] = ...) -> None: ...

class Goodput(_message.Message):
    __slots__ = ("id", "generation", "milliseconds", "keeper", "departed", "earlier")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    id: str
    generation: int
    milliseconds: _containers.RepeatedScalarFieldContainer[int]
    keeper: str
    departed: _containers.RepeatedCompositeFieldContainer[Moment]
    earlier: _containers.RepeatedCompositeFieldContainer[Moment]
    def __init__(self, id: _Optional[str] = ..., generation: _Optional[int] = ..., milliseconds: _Optional[_Iterable[int]] = ..., keeper: _Optional[str] = ..., departed: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., earlier: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("name", "ago")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGO_FIELD_NUMBER: _ClassVar[int]
    name: str
    ago: int
    def __init__(self, name: _Optional[str] = ..., ago: _Optional[int] = ...) -> None: ...

class Linked(_message.Message):
    __slots__ = ("round", "pids", "recovers", "last_run", "feed_port", "sharded")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    RECOVERS_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_FIELD_NUMBER: _ClassVar[int]
    FEED_PORT_FIELD_NUMBER: _ClassVar[int]
    SHARDED_FIELD_NUMBER: _ClassVar[int]
    round: int
    pids: _containers.RepeatedScalarFieldContainer[int]
    recovers: bool
    last_run: int
    feed_port: int
    sharded: bool
    def __init__(self, round: _Optional[int] = ..., pids: _Optional[_Iterable[int]] = ..., recovers: _Optional[bool] = ..., last_run: _Optional[int] = ..., feed_port: _Optional[int] = ..., sharded: _Optional[bool] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("round", "step", "age_seconds", "samples", "step_seconds", "stall_milliseconds", "input_milliseconds", "compute", "waited", "network", "batches", "batch_samples", "total_samples")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALL_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    INPUT_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BATCH_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    age_seconds: float
    samples: int
    step_seconds: float
    stall_milliseconds: int
    input_milliseconds: int
    compute: _containers.RepeatedScalarFieldContainer[int]
    waited: _containers.RepeatedScalarFieldContainer[int]
    network: _containers.RepeatedScalarFieldContainer[int]
    batches: _containers.RepeatedScalarFieldContainer[int]
    batch_samples: _containers.RepeatedScalarFieldContainer[int]
    total_samples: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., age_seconds: _Optional[float] = ..., samples: _Optional[int] = ..., step_seconds: _Optional[float] = ..., stall_milliseconds: _Optional[int] = ..., input_milliseconds: _Optional[int] = ..., compute: _Optional[_Iterable[int]] = ..., waited: _Optional[_Iterable[int]] = ..., network: _Optional[_Iterable[int]] = ..., batches: _Optional[_Iterable[int]] = ..., batch_samples: _Optional[_Iterable[int]] = ..., total_samples: _Optional[int] = ...) -> None: ...

class FenceReply(_message.Message):
    __slots__ = ("fence", "step")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    fence: int
    step: int
    def __init__(self, fence: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    def __init__(self, fence: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("fence", "step", "store_port")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    fence: int
    step: int
    store_port: int
    def __init__(self, fence: _Optional[int] = ..., step: _Optional[int] = ..., store_port: _Optional[int] = ...) -> None: ...

class Transferring(_message.Message):
    __slots__ = ("round", "bytes")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    round: int
    bytes: int
    def __init__(self, round: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("round", "step", "in_memory", "place", "size")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    in_memory: bool
    place: str
    size: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., in_memory: _Optional[bool] = ..., place: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Digested(_message.Message):
    __slots__ = ("round", "step", "digests")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("cpus", "memory_bytes", "gpu_memory_bytes", "gpu_memory_total_bytes", "gpu_percent")
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    cpus: float
    memory_bytes: int
    gpu_memory_bytes: int
    gpu_memory_total_bytes: int
    gpu_percent: int
    def __init__(self, cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ..., gpu_memory_total_bytes: _Optional[int] = ..., gpu_percent: _Optional[int] = ...) -> None: ...

class Reported(_message.Message):
    __slots__ = ("names", "values")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class Tables(_message.Message):
    __slots__ = ("loads",)
    LOADS_FIELD_NUMBER: _ClassVar[int]
    loads: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, loads: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkersFailed(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Doubted(_message.Message):
    __slots__ = ("round", "doubt")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    round: int
    doubt: int
    def __init__(self, round: _Optional[int] = ..., doubt: _Optional[int] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("round", "question")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    round: int
    question: int
    def __init__(self, round: _Optional[int] = ..., question: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("grace_seconds",)
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    grace_seconds: float
    def __init__(self, grace_seconds: _Optional[float] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class WorkersSucceeded(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("round", "pod_index", "rank", "local_rank", "pid", "code", "message", "stack", "time", "log", "error", "step", "node", "node_fault")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POD_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_FAULT_FIELD_NUMBER: _ClassVar[int]
    round: int
    pod_index: int
    rank: int
    local_rank: int
    pid: int
    code: int
    message: str
    stack: str
    time: float
    log: str
    error: str
    step: int
    node: str
    node_fault: str
    def __init__(self, round: _Optional[int] = ..., pod_index: _Optional[int] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., stack: _Optional[str] = ..., time: _Optional[float] = ..., log: _Optional[str] = ..., error: _Optional[str] = ..., step: _Optional[int] = ..., node: _Optional[str] = ..., node_fault: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Taken(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Inspected(_message.Message):
    __slots__ = ("round", "reports")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    reports: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    def __init__(self, round: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("rank", "pid", "step", "collectives", "answers", "committing", "cpus", "stack", "flight")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTING_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    FLIGHT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    step: int
    collectives: int
    answers: bool
    committing: bool
    cpus: float
    stack: str
    flight: str
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., collectives: _Optional[int] = ..., answers: _Optional[bool] = ..., committing: _Optional[bool] = ..., cpus: _Optional[float] = ..., stack: _Optional[str] = ..., flight: _Optional[str] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("heartbeat", "round", "fence_ask", "fence_stop", "fence_cancel", "round_over", "dismissed", "standby", "completed", "electorate", "inspect", "ask_whole", "check_node", "ask_standing", "round_stands")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FENCE_ASK_FIELD_NUMBER: _ClassVar[int]
    FENCE_STOP_FIELD_NUMBER: _ClassVar[int]
    FENCE_CANCEL_FIELD_NUMBER: _ClassVar[int]
    ROUND_OVER_FIELD_NUMBER: _ClassVar[int]
    DISMISSED_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    ELECTORATE_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    ASK_WHOLE_FIELD_NUMBER: _ClassVar[int]
    CHECK_NODE_FIELD_NUMBER: _ClassVar[int]
    ASK_STANDING_FIELD_NUMBER: _ClassVar[int]
    ROUND_STANDS_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    round: Round
    fence_ask: FenceAsk
    fence_stop: FenceStop
    fence_cancel: FenceCancel
    round_over: RoundOver
    dismissed: Dismissed
    standby: Standby
    completed: Completed
    electorate: Electorate
    inspect: Inspect
    ask_whole: AskWhole
    check_node: CheckNode
    ask_standing: AskStanding
    round_stands: RoundStands
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., fence_ask: _Optional[_Union[FenceAsk, _Mapping]] = ..., fence_stop: _Optional[_Union[FenceStop, _Mapping]] = ..., fence_cancel: _Optional[_Union[FenceCancel, _Mapping]] = ..., round_over: _Optional[_Union[RoundOver, _Mapping]] = ..., dismissed: _Optional[_Union[Dismissed, _Mapping]] = ..., standby: _Optional[_Union[Standby, _Mapping]] = ..., completed: _Optional[_Union[Completed, _Mapping]] = ..., electorate: _Optional[_Union[Electorate, _Mapping]] = ..., inspect: _Optional[_Union[Inspect, _Mapping]] = ..., ask_whole: _Optional[_Union[AskWhole, _Mapping]] = ..., check_node: _Optional[_Union[CheckNode, _Mapping]] = ..., ask_standing: _Optional[_Union[AskStanding, _Mapping]] = ..., round_stands: _Optional[_Union[RoundStands, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("agent", "pod_index", "address", "port")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    POD_INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    agent: str
    pod_index: int
    address: str
    port: int
    def __init__(self, agent: _Optional[str] = ..., pod_index: _Optional[int] = ..., address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Electorate(_message.Message):
    __slots__ = ("term", "round", "groups", "contested")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_FIELD_NUMBER: _ClassVar[int]
    term: int
    round: int
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    contested: bool
    def __init__(self, term: _Optional[int] = ..., round: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., contested: _Optional[bool] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("round", "members", "master_address", "master_port", "reason", "commits", "term", "groups", "contested", "last_run", "diverged", "reduced", "shares", "excluded", "stepless")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    REDUCED_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    STEPLESS_FIELD_NUMBER: _ClassVar[int]
    round: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    master_address: str
    master_port: int
    reason: str
    commits: _containers.RepeatedCompositeFieldContainer[NewestCommit]
    term: int
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    contested: bool
    last_run: int
    diverged: _containers.RepeatedScalarFieldContainer[int]
    reduced: _containers.RepeatedScalarFieldContainer[int]
    shares: _containers.RepeatedScalarFieldContainer[int]
    excluded: _containers.RepeatedCompositeFieldContainer[Exclusion]
    stepless: bool
    def __init__(self, round: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., master_address: _Optional[str] = ..., master_port: _Optional[int] = ..., reason: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[NewestCommit, _Mapping]]] = ..., term: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., contested: _Optional[bool] = ..., last_run: _Optional[int] = ..., diverged: _Optional[_Iterable[int]] = ..., reduced: _Optional[_Iterable[int]] = ..., shares: _Optional[_Iterable[int]] = ..., excluded: _Optional[_Iterable[_Union[Exclusion, _Mapping]]] = ..., stepless: _Optional[bool] = ...) -> None: ...

class Exclusion(_message.Message):
    __slots__ = ("node", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class FenceAsk(_message.Message):
    __slots__ = ("fence", "round", "at_once")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    round: int
    at_once: bool
    def __init__(self, fence: _Optional[int] = ..., round: _Optional[int] = ..., at_once: _Optional[bool] = ...) -> None: ...

class FenceStop(_message.Message):
    __slots__ = ("fence", "round", "step", "leaving", "commit", "memory_stays", "displaced")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_STAYS_FIELD_NUMBER: _ClassVar[int]
    DISPLACED_FIELD_NUMBER: _ClassVar[int]
    fence: int
    round: int
    step: int
    leaving: bool
    commit: bool
    memory_stays: bool
    displaced: bool
    def __init__(self, fence: _Optional[int] = ..., round: _Optional[int] = ..., step: _Optional[int] = ..., leaving: _Optional[bool] = ..., commit: _Optional[bool] = ..., memory_stays: _Optional[bool] = ..., displaced: _Optional[bool] = ...) -> None: ...

class FenceCancel(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    def __init__(self, fence: _Optional[int] = ...) -> None: ...

class Standby(_message.Message):
    __slots__ = ("feeders",)
    FEEDERS_FIELD_NUMBER: _ClassVar[int]
    feeders: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, feeders: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class RoundOver(_message.Message):
    __slots__ = ("round", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Completed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskWhole(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckNode(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Inspect(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class AskStanding(_message.Message):
    __slots__ = ("round", "question")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    round: int
    question: int
    def __init__(self, round: _Optional[int] = ..., question: _Optional[int] = ...) -> None: ...

class RoundStands(_message.Message):
    __slots__ = ("round", "doubt")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    round: int
    doubt: int
    def __init__(self, round: _Optional[int] = ..., doubt: _Optional[int] = ...) -> None: ...

class Dismissed(_message.Message):
    __slots__ = ("reason", "failed")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    failed: bool
    def __init__(self, reason: _Optional[str] = ..., failed: _Optional[bool] = ...) -> None: ...
