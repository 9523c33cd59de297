"""The coordinator's edge: gRPC streams in and out of the pure state machine, HTTP beside them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from elastic_trainer.coordinator import node_range
from elastic_trainer.coordinator.agent_session import BEAT, CLOSE, OUTBOX, PER_SECOND, AgentSession
from elastic_trainer.coordinator.goodput import Ledger
from elastic_trainer.coordinator.last_word import leave_last_word
from elastic_trainer.coordinator.lease_server import LeaseService
from elastic_trainer.coordinator.model import (
    Checking,
    Event,
    FaultyNodes,
    Gone,
    Lost,
    Phase,
    Received,
    Send,
    Settings,
    State,
    Tick,
)
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.state import step
from elastic_trainer.coordinator.status import metrics, status
from elastic_trainer.coordinator.whole_values import MismatchError, WholeValues
from elastic_trainer.metrics.exposition import exposition
from elastic_trainer.metrics.http import (
    Answer,
    Request,
    json_answer,
    misdirected,
    serve_http,
    text_answer,
)
from elastic_trainer.node_check.message import (
    PATH,
    Order,
    Over,
    decode_presence,
    encode_order,
)
from elastic_trainer.node_check.session import Limits, Session, summary
from elastic_trainer.proto import coordinator_pb2
from elastic_trainer.proto.leases_pb2_grpc import add_LeasesServicer_to_server
from elastic_trainer.protocol.auth import (
    HEADER,
    check_compatible,
    check_token,
)
from elastic_trainer.protocol.encoding import decode, encode_agent, encode_coordinator
from elastic_trainer.protocol.guarded_server import guarded_server
from elastic_trainer.protocol.keepalive import SERVER_SECONDS, options
from elastic_trainer.protocol.message import (
    MESSAGE_BYTES,
    AgentMessage,
    CoordinatorMessage,
    Electorate,
    Heartbeat,
    Hello,
    Member,
    Round,
)
from elastic_trainer.protocol.pace import beat_seconds
from elastic_trainer.succession.electorate import voters
from elastic_trainer.succession.service import GONE_PATH, look, read_gone

log = logging.getLogger("elastic_trainer.coordinator")

TICK_SECONDS = 0.05
HEARTBEAT_SECONDS = 0.25
LAST_WORD_SECONDS = 1.0
"""At the end, for agents to read what they were told."""
PROBE_SECONDS = 1.0
"""Between two questions to members that are missed, whether they are still there."""
HELLO_SECONDS = 5.0
"""For a stream's first message to come."""
STREAMS = 1 << 16
"""At a time, whatever the range, which may grow: one a node, one a worker with leases, and those
that come back before we see them go."""
_SERVED = {"/status": "GET", "/metrics": "GET", "/range": "PUT", PATH: "PUT", GONE_PATH: "PUT"}


_BEAT = bytes(encode_agent(Heartbeat()).SerializeToString())
"""An agent's, which says nothing."""


def _encoded(message: CoordinatorMessage) -> bytes:
    return bytes(encode_coordinator(message).SerializeToString())


def _decoded(envelope: bytes) -> Any:
    return decode(coordinator_pb2.AgentMessage.FromString(envelope))


async def _next_message(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """Return an agent's next message. Raises EOFError at its stream's end."""
    envelope = await context.read()
    if envelope is grpc.aio.EOF:
        raise EOFError("the stream ended")
    return _decoded(envelope)


@dataclass(frozen=True)
class Succeeds:
    """An elected coordinator's knowledge from its agent."""

    electorate: Electorate
    gone: frozenset[str]
    returning: frozenset[str]
    """Agents that have granted its election."""


class CoordinatorServer:
    """Holds the state; every change to it is one call of `_apply`, on one event loop."""

    def __init__(
        self,
        job: str,
        settings: Settings,
        token: str = "",
        check_limits: Limits | None = None,
        succeeds: Succeeds | None = None,
        program: str = "",
    ) -> None:
        self.job = job
        self._program = program
        keeper = uuid.uuid4().hex[:16]
        ledger = Ledger(keeper, keeper)
        self.state = State(settings=settings, started=time.monotonic(), ledger=ledger)
        if succeeds is not None:
            self.state = replace(
                self.state,
                electorate=succeeds.electorate,
                gone=succeeds.gone,
                returning=succeeds.returning,
            )
        self.deposed = 0
        """The term of a later coordinator, once it was heard of; this one's word counts no more."""
        self._stopped: asyncio.Event | None = None
        self._probing: set[str] = set()
        self._probed = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = token
        self._whole = WholeValues(self._own_values)
        self._check_limits = check_limits or Limits()
        self._check = self._new_check(self._check_limits)
        """The newest: before the first round of those agents that ask for it; later of all that
        would be in a round, see recheck.py."""
        self._sessions: dict[str, AgentSession] = {}
        self._ended = set(succeeds.returning) if succeeds is not None else set()
        """Agents whose refusal proves that they have ended: their streams ended by their doing, or
        they voted just now and have not come yet."""
        self._beat = b""
        self._beat_made: tuple[Settings, Member | None, int] | None = None
        """Parts that the newest heartbeat was made of; None: the next one is to be made anew."""
        self._last_seen: dict[str, float] = {}
        self._refusal_said = ""
        """The last one that was logged: who is refused tries again ten times a second."""
        self._failures_delivered = asyncio.Event()
        """Nobody is left to be told of a failure."""
        self._failures_delivered.set()
        self._deserted = asyncio.Event()
        """No agent has a stream open."""
        self._deserted.set()

    def _new_check(self, limits: Limits) -> Session:
        return Session(uuid.uuid4().hex[:16], limits)

    def _apply(self, event: Event) -> None:
        before = self.state.phase, self.state.last_round
        known, recheck = self.state.failures_total, self.state.recheck
        self.state, effects = step(self.state, event, time.monotonic())
        if self.state.recheck is not None and self.state.recheck is not recheck:
            longest = self.state.settings.recheck_seconds
            self._check = self._new_check(self._check_limits.between_rounds(longest))
        if self.state.failures_total > known:
            self._failures_delivered.clear()
        # A round goes to all its members, and names them all: it is encoded once.
        encoded: dict[int, bytes] = {}
        for effect in effects:
            session = self._sessions.get(effect.agent)
            if session is None:
                continue
            if not isinstance(effect, Send):
                session.closed = True
                session.put(CLOSE)
                continue
            envelope = encoded.get(id(effect.message))
            if envelope is None:
                envelope = encoded[id(effect.message)] = _encoded(effect.message)
            session.put(envelope)
        if self.state.phase is Phase.FINISHED and before[0] is not Phase.FINISHED:
            leave_last_word(self.status())  # agents, and then pods, end when they hear of it
        if before != (self.state.phase, self.state.last_round):
            log.info(
                "%s: %s, round %d, %d nodes, step %d, for: %s",
                self.job,
                self.state.phase.value,
                self.state.last_round,
                len(self.state.round.members) if self.state.round else 0,
                self.state.step,
                self.state.round.reason if self.state.round else self.state.reason,
            )

    def status(self) -> dict[str, Any]:
        answer = status(self.state, self.job, time.monotonic(), time.time())
        return {**answer, "check": self._check.as_json(), "pid": os.getpid()}

    def respond(self, request: Request) -> Answer:
        """`/status`, `/range` and `/check` for those who have the token; `/metrics`, which are
        numbers, for anybody."""
        if (refusal := misdirected(request, _SERVED)) is not None:
            return refusal
        if request.path == "/metrics":
            found = metrics(self.state, time.monotonic())
            return text_answer(exposition(found, {"job": self.job}))
        why = check_token(self._token, request.headers.get(HEADER))
        if why is not None:
            return json_answer("401 Unauthorized", {"error": why})
        if request.path == "/range":
            return self._change_range(request.body)
        if request.path == PATH:
            return self._lead_check(request.body)
        if request.path == GONE_PATH:
            return self._strike_off(request.body)
        self._failures_delivered.set()
        return json_answer("200 OK", self.status())

    def _change_range(self, body: bytes) -> Answer:
        before = node_range.as_json(self.state.settings)
        try:
            self._apply(node_range.read(body))
        except ValueError as error:
            return json_answer("400 Bad Request", {"error": str(error)})
        now = node_range.as_json(self.state.settings)
        if now != before:
            log.info("%s: rounds of %s nodes from now on, not %s", self.job, now, before)
        return json_answer("200 OK", now)

    def _strike_off(self, body: bytes) -> Answer:
        """The job's owner knows that some pods have ended, or will never be heard of again."""
        try:
            ended = read_gone(body)
        except ValueError as error:
            return json_answer("400 Bad Request", {"error": str(error)})
        known = self.state.electorate
        members = voters(known).values() if known is not None else ()
        found = {member.agent for member in members if ended.have(member)} - set(self.state.agents)
        if found - self.state.gone:
            self._apply(Gone(frozenset(found)))
        return json_answer("200 OK", {"gone": len(found)})

    def _lead_check(self, body: bytes) -> Answer:
        try:
            presence = decode_presence(body)
        except ValueError as error:
            return json_answer("400 Bad Request", {"error": str(error)})
        order: Order
        now = time.monotonic()
        was_over = bool(self._check.over)
        begun = self.state.phase is not Phase.FORMING or self.state.last_round > 0
        if begun and self.state.recheck is None:
            self._check.end("a round has begun", now)
        if begun and not self._takes_part(presence.agent):
            order = Over(reason="the first round has begun")
        else:
            order = self._check.poll(presence, now, self._may_check)
        checking = not self._check.over
        if checking is not self.state.checking:
            self._apply(Checking(checking))
        told = self._check.as_json()
        if self._check.over and not was_over and told is not None:
            log.info("%s: node check: %s", self.job, summary(told))
            self._apply(FaultyNodes(self._check.faulty()))
        return json_answer("200 OK", encode_order(order))

    def _takes_part(self, agent: str) -> bool:
        recheck = self.state.recheck
        return self._check.knows(agent) or (recheck is not None and agent in recheck.agents)

    def _may_check(self, present: int, quiet: bool) -> bool:
        """Return whether a check begins: with the agents that also would make the round."""
        if (recheck := self.state.recheck) is not None:
            there = sum(name in self.state.agents for name in recheck.agents)
            return present > 1 and (quiet or present >= there)
        settings = self.state.settings
        joined = sum(agent.joined_at is not None for agent in self.state.agents.values())
        size = settings.size(present + joined)
        return size > 0 and (quiet or size == settings.size(settings.max_nodes))

    async def failures_delivered(self, seconds: float) -> None:
        """Returns once somebody has been told of all failures, or after so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._failures_delivered.wait(), seconds)

    async def end_delivered(self, seconds: float) -> None:
        """Returns at once unless training is complete; then once all agents have gone, as they do
        when they hear of it, or after so long."""
        if self.state.phase is Phase.FINISHED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), seconds)

    async def Attend(  # noqa: N802  # the service's name
        self, _: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        hello, early = await self._admit(context)
        older = self._sessions.get(hello.agent)
        if older is not None:
            older.cut()
            self._apply(Lost(hello.agent, "it connected anew"))
        session = AgentSession(
            hello.agent, time.monotonic(), lambda cut: self._keep(self._cut(cut, context))
        )
        self._sessions[hello.agent] = session
        self._ended.discard(hello.agent)
        self._deserted.clear()
        reader = asyncio.ensure_future(self._read(session, context))
        try:
            session.put(BEAT)  # first, that it knows the term; with its own time counted
            for message in (hello, *early):
                self._apply(Received(hello.agent, message))
            while (envelope := await session.outbox.get()) is not CLOSE:
                await context.write(envelope or self._heartbeat())
        finally:
            reader.cancel()
            self._end(session)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it beside all else; asyncio itself would not hold on to it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, session: AgentSession) -> None:
        if self._sessions.get(session.agent) is session:
            del self._sessions[session.agent]
            if not self._sessions:
                self._deserted.set()
            if not session.closed:
                self._ended.add(session.agent)
            self._apply(Lost(session.agent))
            self._check.leave(session.agent)
            self._probe({session.agent})

    async def _cut(
        self, session: AgentSession, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Ends the stream from outside: it may hang in a write that nobody reads."""
        self._end(session)
        with contextlib.suppress(Exception):
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this stream ends: a newer one took its place, or over {PER_SECOND:.0f} messages "
                f"a second came, or {OUTBOX} were not read",
            )

    async def _admit(
        self, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[Hello, list[AgentMessage]]:
        """The stream's first message, whole, and what came before it was; refuses whoever has no
        business here."""
        first = None
        with contextlib.suppress(TimeoutError, EOFError, DecodeError):
            async with asyncio.timeout(HELLO_SECONDS):
                first = await _next_message(context)
        await self._check_hello(first, context)
        assert isinstance(first, Hello)
        whole = None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                whole, early = await self._whole.complete(
                    first,
                    lambda question: context.write(_encoded(question)),
                    lambda: _next_message(context),
                )
        except (TimeoutError, EOFError) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"expected a Whole: {error!r}")
        except (MismatchError, DecodeError) as error:
            await self._refuse(str(error), context)
        await self._check_hello(whole, context)  # others came meanwhile
        assert whole is not None
        return whole, early

    async def _check_hello(self, first: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if isinstance(first, Hello) and first.agent:
            others = self._other_nodes_workers(first)
            refusal = check_compatible(first, self.job, others, self._program)
        else:
            refusal = f"expected a Hello that names its agent first, found {type(first).__name__}"
        if refusal is not None:
            await self._refuse(refusal, context)
        if first.term > self.state.settings.term:
            self._depose(first.term)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "there is a later coordinator")

    async def _refuse(self, refusal: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if refusal != self._refusal_said:
            self._refusal_said = refusal
            log.warning("refused %s: %s", context.peer(), refusal)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)

    def _other_nodes_workers(self, hello: Hello) -> list[tuple[int, int]]:
        """Return pod index and number of workers of the nodes that have another number of them."""
        agents = self.state.agents
        if set(agents.numbers_of_workers()) <= {hello.processes}:  # nearly always
            return []
        return [
            (agent.pod_index, agent.processes)
            for agent in agents.values()
            if agent.agent != hello.agent and agent.pod_index != hello.pod_index
        ]

    def _own_values(self) -> list[Round | Electorate]:
        return [one for one in (self.state.round, self.state.electorate) if one is not None]

    def _depose(self, term: int) -> None:
        if not self.deposed:
            self.deposed = term
            log.warning("%s: deposed: a coordinator of term %d was elected", self.job, term)
            if self._stopped is not None:
                self._stopped.set()

    def _heartbeat(self) -> bytes:
        """Return a beat that is no older than HEARTBEAT_SECONDS, and says what holds now."""
        state, now = self.state, time.monotonic()
        settings = state.settings
        host = state.agents.get(settings.host) if settings.host else None
        known = None
        if host is not None:
            known = Member(host.agent, host.pod_index, host.address, host.port)
        made = settings, known, int(now / HEARTBEAT_SECONDS)
        if made != self._beat_made:
            beat = Heartbeat(
                goodput=state.ledger.tell(int(now * 1000)),
                beat_seconds=beat_seconds(state.fewest_agents),
            )
            if settings.host:
                beat = replace(
                    beat,
                    term=settings.term,
                    host=known,
                    min_nodes=settings.min_nodes,
                    max_nodes=settings.max_nodes,
                )
            self._beat, self._beat_made = _encoded(beat), made
        return self._beat

    def _probe(self, names: Iterable[str]) -> None:
        """Asks electors that have no stream whether they are still there."""
        known = self.state.electorate
        members = voters(known) if known is not None else {}
        for name in set(names) & members.keys() - self._probing - self.state.gone:
            self._probing.add(name)
            self._keep(self._ask_whether_there(members[name]))

    async def _ask_whether_there(self, member: Member) -> None:
        try:
            found = await look(member, self._token, ended=member.agent in self._ended)
        finally:
            self._probing.discard(member.agent)
        if found.term > self.state.settings.term:
            self._depose(found.term)
        elif found.gone and member.agent not in self._sessions:
            self._apply(Gone(frozenset({member.agent})))

    async def _read(
        self, session: AgentSession, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        with contextlib.suppress(grpc.RpcError, DecodeError):
            while (envelope := await context.read()) is not grpc.aio.EOF:
                now = time.monotonic()
                if not session.may_speak(now):
                    log.warning(
                        "closing the stream of %s: over %.0f messages a second",
                        session.agent,
                        PER_SECOND,
                    )
                    session.cut()
                    return
                if self._sessions.get(session.agent) is not session:
                    return
                if envelope == _BEAT:
                    self._last_seen[session.agent] = now  # most of what a large job says
                    continue
                message = _decoded(envelope)
                if message is not None:
                    self._apply(Received(session.agent, message))
        session.put(CLOSE)

    async def _tick(self) -> None:
        beaten = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            seen, self._last_seen = self._last_seen, {}
            self._apply(Tick(seen))
            if self.state.missing and time.monotonic() - self._probed >= PROBE_SECONDS:
                self._probed = time.monotonic()
                self._probe(member.agent for member in self.state.missing)
            wait = max(HEARTBEAT_SECONDS, beat_seconds(self.state.fewest_agents))
            if time.monotonic() - beaten >= wait:
                beaten = time.monotonic()
                self._beat_made = None
                heartbeat = self._heartbeat()
                for session in self._sessions.values():
                    session.put(heartbeat)

    def _serve_agents(self, server: grpc.aio.Server) -> None:
        """Adds the service as the generated code would, but for messages that come and go as bytes:
        one encoding does for all who are told the same, and one decoding for what all say."""
        handlers = {"Attend": grpc.stream_stream_rpc_method_handler(self.Attend)}
        name = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        server.add_registered_method_handlers(name, handlers)

    async def run(self, host: str, port: int, stopped: asyncio.Event) -> None:
        """Serves gRPC on `port` and HTTP on `port + 1` until `stopped`.

        Raises:
            OSError: an address can't be bound.
            PermissionError: others could reach it, and there is no token.
        """
        server = guarded_server(
            (host, port),
            self._token,
            log,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
                ("grpc.max_metadata_size", 16384),
                # It would ping each agent beside nearly each message, to widen a window that what
                # agents say has room in.
                ("grpc.http2.bdp_probe", 0),
                *options(SERVER_SECONDS),
            ],
            most_calls=STREAMS,
        )
        self._serve_agents(server)
        add_LeasesServicer_to_server(LeaseService(), server)  # type: ignore[no-untyped-call]
        http = await serve_http(host, port + 1, self.respond)
        await server.start()
        self._stopped = stopped
        where = f"{host}:{port}, status on :{port + 1}"
        log.info("%s: coordinator of term %d on %s", self.job, self.state.settings.term, where)
        ticking = asyncio.ensure_future(self._tick())
        try:
            waiting = asyncio.ensure_future(stopped.wait())
            await asyncio.wait({ticking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if ticking.done():
                ticking.result()
        finally:
            ticking.cancel()
            http.close()
            for session in self._sessions.values():
                session.put(CLOSE)
            with contextlib.suppress(TimeoutError):  # the last word may be a verdict
                await asyncio.wait_for(self._deserted.wait(), LAST_WORD_SECONDS)
            await server.stop(0.2)
