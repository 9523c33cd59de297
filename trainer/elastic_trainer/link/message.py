"""Messages between a node's workers and their agent, as values, and their way over the socket.

One JSON object a line: the value's class in `type`, its fields beside it. Both ends refuse what
is not exactly such a line, in words.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

LINE_BYTES = 1 << 16
"""Most bytes of one message."""
GREATEST = 2**31 - 1
"""Greatest number in a message, which then fits every field that it is passed on in."""


class MessageError(ValueError):
    """A line is no message of this protocol; says what was expected and what was found."""


# ---- worker to agent


@dataclass(frozen=True, slots=True)
class Hello:
    """Begins a connection. The worker's ProgressPage comes with it, as a descriptor; its process id
    is the kernel's word."""

    round: int
    """It was started in."""
    rank: int
    local_rank: int
    local_world_size: int
    recovers: bool
    """A round that is over doesn't end it: it waits for its next place."""
    error_file: str
    """Where it would write its error; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The first step of this process in its round was applied."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """It stands at the fence's stop step, about to commit."""


@dataclass(frozen=True, slots=True)
class StepInProgress:
    """The answer to AskStep."""

    fence: int
    step: int
    """-1: none begun yet."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """It has committed, and waits for the end of its round."""

    fence: int
    """The number of the stop that it did so for."""
    step: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit for `step` is in storage."""

    round: int
    """That made it."""
    step: int
    place: str
    """Digest of the storage's path or URL."""
    size: int = 0
    """Bytes of its files, or about that; 0: not known."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The script reports figures of training; rank 0 says it."""

    figures: str
    """JSON, as `link.figures` encodes them."""


@dataclass(frozen=True, slots=True)
class Tables:
    """It holds parts of embedding tables; each of them says it, once in some seconds."""

    loads: str
    """JSON, as `metrics.table_load` encodes them."""


@dataclass(frozen=True, slots=True)
class AskNewestCommit:
    """Asks for NewestCommit, of the storage whose path or URL has this digest."""

    place: str


@dataclass(frozen=True, slots=True)
class AskFeeders:
    """Asks for Feeders."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A slot of the memory folder holds a new state, for the agent to verify and to store."""

    round: int
    slot: str
    """Its file's name; the folder is the agent's own."""
    step: int
    savers: int
    """How many of this node's workers save."""
    folder: str
    """The storage to bring it to; empty: none."""
    keep: int
    """Commits to keep there."""
    run: int
    """It was saved in, or restored."""
    claim: str
    """The token of the worker's claim to the storage for that run."""
    retry_seconds: float
    """How long to try a storage that doesn't answer again; negative: the default."""


@dataclass(frozen=True, slots=True)
class Digested:
    """The digest of the state that a rank has alike with every other. One that saves to memory
    tells none: its agent finds it there."""

    round: int
    step: int
    digest: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Asks for Settled once all that was saved is verified, or in storage too."""

    storage: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """It is out of the training loop; its script may still fail."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A collective has failed, or all of it ends in an exception, maybe because a peer vanished."""

    asks: bool
    """It waits for RoundOver or RoundStands."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Its process is on its way to end by an exception: connections may be closed before it is
    gone."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """This process can't leave its round, which is over: a collective waits for what no peer will
    take any more."""

    round: int


@dataclass(frozen=True, slots=True)
class Idle:
    """It is out of any round, and waits for its next place."""

    round: int
    """The last that is over."""


@dataclass(frozen=True, slots=True)
class Joined:
    """It is in its round: connected, and with the common state."""

    round: int
    run: int
    """That begins; see checkpoint/recovery.py."""
    feed_port: int
    """Where newcomers may follow its state, see feed/; 0: nowhere."""
    sharded: bool = False
    """It has a part of the state that others may not have."""


@dataclass(frozen=True, slots=True)
class SecondaryFailure:
    """Its exception followed from the end of its round."""


@dataclass(frozen=True, slots=True)
class Parked:
    """It only waits for its end."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Another try would only repeat its error: no worker is to be started again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The answer to AskWhereabouts."""

    step: int
    """The last that it has applied in its round; -1: none."""
    collectives: int
    """How many it has begun in the round; -1: not known."""
    flight: str
    """The newest of them, by torch's flight recorder; empty: that is off."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """It is about to end, by itself."""


# ---- agent to worker


@dataclass(frozen=True, slots=True)
class AskStep:
    """Asks for the step in progress; it holds at the end of the step after that."""

    fence: int
    at_once: bool
    """It holds at the end of the step in progress already."""


@dataclass(frozen=True, slots=True)
class StopAt:
    """Tells all ranks the step at which to stop."""

    fence: int
    """Another number where it is told anew, as somebody else begins to leave."""
    step: int
    leaving: bool
    """It leaves there."""
    commit: bool
    """Too few stay to go on with the live state, so that all commit it to storage."""
    memory_stays: bool = False
    """Its node's memory will be there for the next round."""
    displaced: bool = False
    """It stays, and waits beside the job, as the next round has no place for it."""


@dataclass(frozen=True, slots=True)
class StopCancelled:
    """There is no fence any more."""


@dataclass(frozen=True, slots=True)
class RoundOver:
    """The round broke, or its fence is complete."""

    round: int


@dataclass(frozen=True, slots=True)
class Place:
    """A rank in a round's world."""

    round: int
    rank: int
    world: int
    address: str
    port: int
    """Where an agent serves the round's store."""
    contested: bool = False
    """Others may have gone on from the state that is live here, and have ended since: their commits
    are in storage."""
    last_run: int = 0
    """The greatest number of a run that the job's nodes know of; 0: none."""
    diverged: bool = False
    """Its state was found to be another than the others', so it isn't to be gone on from."""
    shares: str = ""
    """Ranks that take fewer samples than most, see data/division.py."""
    stepless: bool = False
    """No step is made: the round begins with its fence, where leavers give what they have."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to Settle."""

    error: str
    """Why the newest is not where it was asked for; empty: it is."""


@dataclass(frozen=True, slots=True)
class NewestCommit:
    """The answer to AskNewestCommit: the newest step that the job is known to have committed."""

    step: int
    """-1: none."""


@dataclass(frozen=True, slots=True)
class Feeders:
    """The answer to AskFeeders."""

    addresses: str
    """HOST PORT, several with commas between: whom a newcomer may follow; empty: nobody."""


@dataclass(frozen=True, slots=True)
class RoundStands:
    """The answer to Failing: no peer was lost before it."""


@dataclass(frozen=True, slots=True)
class AskWhereabouts:
    """Asks for Whereabouts, while its main thread may hang."""


@dataclass(frozen=True, slots=True)
class NoNextRound:
    """Training is complete: an idle worker has nothing to wait for."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The agent won't have this connection, and closes it."""

    reason: str


FromWorker = (
    Hello
    | Stepped
    | Stopped
    | StepInProgress
    | Fenced
    | Committed
    | Reported
    | Tables
    | AskNewestCommit
    | AskFeeders
    | Saved
    | Digested
    | Settle
    | Finished
    | Failing
    | Ending
    | Stuck
    | Idle
    | Joined
    | SecondaryFailure
    | Parked
    | GivenUp
    | Whereabouts
    | Goodbye
)
FromAgent = (
    AskStep
    | StopAt
    | StopCancelled
    | RoundOver
    | Place
    | Settled
    | NewestCommit
    | Feeders
    | RoundStands
    | AskWhereabouts
    | NoNextRound
    | Refused
)

FROM_WORKER: tuple[type[FromWorker], ...] = FromWorker.__args__
FROM_AGENT: tuple[type[FromAgent], ...] = FromAgent.__args__

_TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool, "float": float}
_EXPECTED = {
    int: f"a number from -1 to {GREATEST}",
    str: "text in Unicode",
    bool: "true or false",
    float: "a finite number with a point",
}


def encode(message: FromWorker | FromAgent) -> bytes:
    """Return the message's line; what is no Unicode in a text, as of a file's name, is replaced."""
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = value.encode(errors="replace").decode()
    return json.dumps({"type": type(message).__name__, **fields}).encode() + b"\n"


def decode_from_worker(line: bytes) -> FromWorker:
    """Return the message that a worker's line holds. Raises MessageError."""
    message: FromWorker = _decode(line, FROM_WORKER)
    if isinstance(message, Hello) and not 0 <= message.local_rank < message.local_world_size:
        raise MessageError(
            f"Hello: expected a local_rank below local_world_size, found {message.local_rank} of "
            f"{message.local_world_size}"
        )
    return message


def decode_from_agent(line: bytes) -> FromAgent:
    """Return the message that the agent's line holds. Raises MessageError."""
    message: FromAgent = _decode(line, FROM_AGENT)
    return message


def _decode(line: bytes, kinds: tuple[type[Any], ...]) -> Any:
    if len(line) > LINE_BYTES:
        raise MessageError(f"expected {LINE_BYTES} bytes at most, found {len(line)}")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"expected a JSON object, found {line[:80]!r} ({error})") from None
    if not isinstance(found, dict):
        raise MessageError(f"expected a JSON object, found {line[:80]!r}")
    name = found.pop("type", None)
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise MessageError(f"expected one of {known}, found {str(name)[:80]!r}")
    fields = {field.name: _TYPES[str(field.type)] for field in dataclasses.fields(kind)}
    if fields.keys() != found.keys():
        raise MessageError(
            f"{name}: expected the fields {', '.join(fields) or '(none)'}, "
            f"found {', '.join(found)[:200] or '(none)'}"
        )
    for field, type_ in fields.items():
        value = found[field]
        if type(value) is not type_ or not _can_be_passed_on(value):
            raise MessageError(f"{name}.{field}: expected {_EXPECTED[type_]}, found {value!r:.80}")
    return kind(**found)


def _can_be_passed_on(value: Any) -> bool:
    if type(value) is int:
        return -1 <= value <= GREATEST
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is not str or not any("\ud800" <= one <= "\udfff" for one in value)
