"""This agent's part in who hosts the coordinator: it votes, stands, hosts, and follows.

All on the agent's event loop. What is granted and who has won is decided in
elastic_trainer.succession, where it is said why no two sides go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from elastic_trainer.agent.coordinator_process import CoordinatorProcess
from elastic_trainer.agent.identity import Identity
from elastic_trainer.coordinator.__main__ import deadlines
from elastic_trainer.coordinator.model import Settings
from elastic_trainer.coordinator.server import CoordinatorServer, Succeeds
from elastic_trainer.metrics.http import Answer, Request, json_answer, misdirected, serve_http
from elastic_trainer.protocol.auth import HEADER, check_token, is_loopback
from elastic_trainer.protocol.message import (
    AgentMessage,
    Electorate,
    Heartbeat,
    Member,
    Round,
    Taken,
)
from elastic_trainer.succession.ballot import Ballot, Voter, swear, take, vote
from elastic_trainer.succession.candidacy import JITTER_SECONDS, TURN_SECONDS, Count, turn
from elastic_trainer.succession.electorate import (
    TERMS_OF_A_HOST,
    electorate_of,
    next_election,
    voters,
)
from elastic_trainer.succession.service import (
    GONE_PATH,
    HOST_PATH,
    VOTE_PATH,
    Found,
    Standing,
    announce,
    ask,
    ask_vote,
    look,
    read_address,
    read_ballot,
    read_gone,
    read_standing,
)

log = logging.getLogger(__name__)

PORT_OFFSET = 2
"""From the rendezvous port to the succession service's, where it is free."""
WATCH_SECONDS = 0.05
PROBE_SHARE = 0.7
"""Of the limit of silence: then the host's agent is asked whether it is still there."""
VOTE_SECONDS = 0.3
"""For the votes of all who are not known to be silent; more than half is enough by then."""
UNKNOWN_HOST_LIMITS = 3.0
"""As often the limit of silence, for a coordinator whose host isn't known to this agent."""
RETRY_SECONDS = 0.2
"""Before an agent that was not elected stands again, at random up to twice as long."""
ANNOUNCE_SECONDS = 0.25
UNHEARD_SECONDS = 3 * ANNOUNCE_SECONDS
SEEK_SECONDS = 0.5
SEEK = 5
"""Agents asked at a time, by one that has no coordinator."""


@dataclass(frozen=True)
class Hooks:
    """The rest of the agent, as its succession needs it."""

    connected: Callable[[], bool]
    """A coordinator's stream is open."""
    address: Callable[[], str]
    """Where this node can be reached; empty until it is known."""
    dial_anew: Callable[[], None]
    dialled: Callable[[], tuple[str, int]]
    tell: Callable[[AgentMessage], None]
    stays: Callable[[], bool]
    """It takes part in further rounds."""


class Succession:
    def __init__(
        self,
        identity: Identity,
        coordinator: CoordinatorProcess,
        hooks: Hooks,
        chance: random.Random | None = None,
    ) -> None:
        self.port = 0
        """Of its service; 0: it serves none."""
        self._began = time.monotonic()
        """Since when others can tell it where the coordinator is."""
        self._identity, self._coordinator, self._hooks = identity, coordinator, hooks
        self._random = chance or random.Random()
        self._voter = Voter()
        self._limit = identity.heartbeat_timeout
        self._address: tuple[str, int] | None = None
        """Of the coordinator that it follows."""
        self._tries = 0
        self._host: Member | None = None
        """The agent that runs that coordinator."""
        self._range = (identity.min_nodes, identity.max_nodes)
        self._heard_at = time.monotonic()
        self._host_lost = False
        """It may vote for another: its coordinator's host has ended, or both are silent."""
        self._lost_since = 0.0
        self._stand_at = 0.0
        self._stands = False
        """It has asked for votes, and is going to host if it gets them."""
        self._highest = 0
        """Of the terms that voters have told it."""
        self._gone: set[str] = set()
        self._hosting: asyncio.Task[None] | None = None
        self._server: CoordinatorServer | None = None
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._service: asyncio.Server | None = None

    # ---- what the rest of the agent asks

    @property
    def term(self) -> int:
        return self._voter.sworn

    @property
    def electorate(self) -> Electorate | None:
        return self._voter.electorate

    @property
    def hosts_by_right(self) -> bool:
        """Whether the coordinator of the job's beginning is this agent's to run."""
        if not self._identity.may_host or self._coordinator.deposed:
            return False
        return self._voter.sworn < TERMS_OF_A_HOST

    def unheard_seconds(self, now: float) -> float:
        """Return how long worker 0's agent is still to wait, before it asks for its first round,
        for word of a coordinator elsewhere: others may be training."""
        if not (self.port and self.hosts_by_right) or self._voter.electorate is not None:
            return 0.0
        return self._began + UNHEARD_SECONDS - now

    def where(self) -> tuple[str, int]:
        """Return the coordinator to dial: the one it follows, else that of the job's beginning."""
        endpoint = self._identity.host, self._identity.port
        self._tries += 1
        if self._address is None or (self._tries % 2 == 0 and not self._hosting):
            return endpoint
        return self._address

    def heard(self, message: Any) -> None:
        """Takes note of what came from the coordinator."""
        if not self._identity.succession:
            return
        self._heard_at = time.monotonic()
        self._host_lost = False
        self._tries = 0
        if isinstance(message, Heartbeat):
            self._voter = swear(self._voter, message.term)
            self._address = self._hooks.dialled()
            self._host = message.host or self._host
            if message.max_nodes:
                self._range = (message.min_nodes, message.max_nodes)
        elif isinstance(message, Round):
            self._take(electorate_of(message))
        elif isinstance(message, Electorate):
            self._take(message)

    def lost(self) -> None:
        """Looks at once whether the host is still there: the stream has ended."""
        self._wake.set()

    def _take(self, known: Electorate) -> None:
        self._voter = take(self._voter, known)
        self._gone.clear()
        self._hooks.tell(Taken(known.round))

    # ---- the service

    async def serve(self) -> None:
        """Serves others where they may ask: on loopback, or with the job's token."""
        identity = self._identity
        if not identity.succession:
            return
        host = identity.address or ("0.0.0.0" if identity.token else "127.0.0.1")
        if not identity.token and not is_loopback(host):
            return
        wished = identity.port + PORT_OFFSET
        for port in (wished if wished < 65536 else 0, 0):
            try:
                self._service = await serve_http(host, port, self._respond)
            except OSError as error:
                log.debug("succession service: cannot serve %s:%d: %s", host, port, error)
                continue
            self.port = int(self._service.sockets[0].getsockname()[1])
            self._began = time.monotonic()
            return

    def _respond(self, request: Request) -> Answer:
        method = request.method if request.path == HOST_PATH else "PUT"
        served = {
            HOST_PATH: method if method in ("GET", "PUT") else "GET",
            VOTE_PATH: "PUT",
            GONE_PATH: "PUT",
        }
        if (refusal := misdirected(request, served)) is not None:
            return refusal
        why = check_token(self._identity.token, request.headers.get(HEADER))
        if why is not None:
            return json_answer("401 Unauthorized", {"error": why})
        try:
            if request.path == VOTE_PATH:
                return self._vote(*read_ballot(request.body))
            if request.path == GONE_PATH:
                self._strike_off(read_gone(request.body))
            elif request.method == "PUT":
                self._hear_of(read_standing(request.body))
        except ValueError as error:
            return json_answer("400 Bad Request", {"error": str(error)})
        return json_answer("200 OK", vars(self.standing()))

    def standing(self) -> Standing:
        """Return what it tells of itself."""
        host, port = self._address or ("", 0)
        return Standing(
            job=self._identity.job,
            agent=self._identity.agent,
            term=self._voter.sworn,
            address=f"{host}:{port}" if host else "",
            hosts=self._hosting is not None or self._stands or self.hosts_by_right,
            heard=self._hooks.connected(),
        )

    def _vote(self, voter: str, ballot: Ballot) -> Answer:
        if voter != self._identity.agent:
            text = f"expected a ballot for agent {self._identity.agent}, found one for {voter}"
            return json_answer("400 Bad Request", {"error": text})
        objection = "" if self._host_lost else "its coordinator is there, or may be back soon"
        if not self._hooks.stays():
            objection = "it leaves"
        before = self._voter
        self._voter, answer = vote(before, ballot, objection)
        if self._voter != before:
            self._follow(ballot.address)
            known = self._voter.electorate
            self._host = voters(known).get(ballot.candidate) if known is not None else None
        return json_answer("200 OK", vars(answer))

    def _strike_off(self, addresses: frozenset[str]) -> None:
        """The job's owner knows that the pods at some addresses will never be heard of again."""
        known = self._voter.electorate
        for member in voters(known).values() if known is not None else ():
            if member.address in addresses and member.agent != self._identity.agent:
                self._gone.add(member.agent)
        self._wake.set()

    def _hear_of(self, other: Standing) -> None:
        """Follows a later coordinator than its own."""
        if other.job != self._identity.job or not other.address:
            return
        sworn = self._voter.sworn
        unknown = other.term == sworn and self._address is None
        if other.term > sworn or unknown:
            log.info("the coordinator is at %s now, in term %d", other.address, other.term)
            self._voter = swear(self._voter, other.term)
            self._follow(other.address)

    def _follow(self, address: str) -> None:
        self._address = read_address(address)
        self._host = None
        self._heard_at = time.monotonic()  # it has its time to begin
        self._host_lost = False
        self._tries = 0
        self._stop.set()  # its own, if it ran one
        if self._identity.may_host:
            self._coordinator.depose()
        self._hooks.dial_anew()

    # ---- watching, standing, hosting

    async def watch(self) -> None:
        """Sees to it, for ever, that this agent has a coordinator."""
        if not self._identity.succession:
            await asyncio.Event().wait()
        sought = announced = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), WATCH_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            if self._hosting is not None:
                if now - announced >= ANNOUNCE_SECONDS:
                    announced = now
                    await self._announce()
                continue
            silence = now - self._heard_at
            if self._hooks.connected() and silence < PROBE_SHARE * self._limit:
                continue
            if not self._hooks.stays():
                continue
            try:
                await self._look_at_host(now)
                if not self._hooks.connected() and now - sought >= SEEK_SECONDS:
                    sought = now
                    await self._seek()
                if self._host_lost:
                    await self._stand_in_turn(time.monotonic())
            except OSError as error:  # no port is free, or no address is known
                log.warning("cannot take the coordinator over: %s", error)

    async def _look_at_host(self, now: float) -> None:
        host = self._host
        silence = now - self._heard_at
        if host is None or not host.port:  # it was told of a coordinator, and never heard it
            ended, silent = False, silence >= UNKNOWN_HOST_LIMITS * self._limit
        elif host.agent == self._identity.agent:
            ended, silent = not self.hosts_by_right, False
        else:
            found = Found(gone=True)
            if host.agent not in self._gone:
                found = await look(host, self._identity.token, max(0.1, self._limit - silence))
            if found.standing is not None:
                self._hear_of(found.standing)
            if found.gone:
                self._gone.add(host.agent)
            ended = found.gone or (found.standing is not None and not found.standing.hosts)
            silent = found.standing is None and time.monotonic() - self._heard_at >= self._limit
        if self._host is not host or time.monotonic() - self._heard_at < silence:
            return  # it has heard of one meanwhile
        if not (ended or silent):
            self._host_lost = False
        elif not self._host_lost:
            self._host_lost, self._lost_since = True, time.monotonic()
            self._stand_at = 0.0

    async def _stand_in_turn(self, now: float) -> None:
        known = self._voter.electorate
        if known is None or not self.port:
            return
        before = turn(known, self._identity.agent, self._gone | self._silent())
        if before is None:
            return
        if not self._stand_at:
            jitter = self._random.uniform(0.0, JITTER_SECONDS) if before else 0.0
            self._stand_at = self._lost_since + before * TURN_SECONDS + jitter
        if now < self._stand_at:
            return
        await self._stand(known)
        self._stand_at = time.monotonic() + self._random.uniform(RETRY_SECONDS, 2 * RETRY_SECONDS)

    def _silent(self) -> set[str]:
        return {self._host.agent} if self._host is not None and self._host_lost else set()

    async def _stand(self, known: Electorate) -> None:
        """Asks the others whether they would vote for it, then for their votes."""
        me = self._identity.agent
        address = self._hooks.address()
        port = free_port(address, self._identity.port)
        sworn = self._voter.sworn
        ballot = Ballot(
            term=next_election(max(sworn, self._highest)),
            candidate=me,
            address=f"{address}:{port}",
            electorate_term=known.term,
            electorate_round=known.round,
            trial=True,
        )
        asked = await self._count(ballot, known)
        self._highest = max(self._highest, *(one.term for one in asked.votes.values()), 0)
        if self._voter.sworn != sworn or not self._host_lost or not self._hooks.stays():
            return
        term = asked.next_term(sworn)
        if not asked.won:
            log.debug("not elected: %s", {name: one.why for name, one in asked.votes.items()})
            return
        self._voter = replace(self._voter, sworn=term, voted_for=me)
        self._address = None
        self._hooks.dial_anew()
        self._stands = True
        try:
            counted = await self._count(replace(ballot, term=term, trial=False), known)
        finally:
            self._stands = False
        if counted.won and self._voter.sworn == term and self._voter.voted_for == me:
            self._begin_to_host(term, port, counted)

    async def _count(self, ballot: Ballot, known: Electorate) -> Count:
        count = Count(self._identity.agent, known, set(self._gone))
        away = {self._identity.agent, *self._gone, *self._silent()}
        asked = [member for name, member in voters(known).items() if name not in away]

        async def poll(member: Member) -> None:
            try:
                answer = await ask_vote(member, ballot, self._identity.token, VOTE_SECONDS)
            except ConnectionRefusedError:
                count.gone.add(member.agent)
                self._gone.add(member.agent)
                return
            if answer is not None:
                count.votes[member.agent] = answer

        await asyncio.gather(*(poll(member) for member in asked))
        return count

    def _begin_to_host(self, term: int, port: int, count: Count) -> None:
        identity = self._identity
        low, high = self._range
        settings = Settings(
            low,
            high,
            identity.node_unit,
            lost_after=identity.heartbeat_timeout,
            term=term,
            host=identity.agent,
            **deadlines(os.environ),
        )
        log.warning(
            "this agent's coordinator takes over, in term %d, with the votes of %d agents",
            term,
            len(count.granted),
        )
        succeeds = Succeeds(count.electorate, frozenset(count.gone), frozenset(count.granted))
        server = CoordinatorServer(identity.job, settings, identity.token, succeeds=succeeds)
        address = self._hooks.address()
        self._server, self._stop = server, asyncio.Event()
        self._hosting = asyncio.ensure_future(self._run(server, address, port, self._stop))
        self._address, self._tries = (address, port), 0
        self._coordinator.depose()
        self._hooks.dial_anew()

    async def _run(
        self, server: CoordinatorServer, host: str, port: int, stop: asyncio.Event
    ) -> None:
        try:
            await server.run(host, port, stop)
        except OSError as error:
            log.error("the coordinator taken over has ended: %s", error)
        finally:
            self._voter = swear(self._voter, server.deposed)
            self._address = None
            self._hosting = self._server = None
            self._wake.set()

    async def _announce(self) -> None:
        """Tells worker 0's pod, which may have been made anew, where the coordinator is."""
        identity = self._identity
        with contextlib.suppress(OSError, ValueError, TimeoutError, EOFError):
            await announce(
                identity.host, identity.port + PORT_OFFSET, self.standing(), identity.token
            )

    async def _seek(self) -> None:
        """Asks other agents where the coordinator is."""
        identity = self._identity
        known = self._voter.electorate
        places = {(m.address, m.port) for m in (voters(known).values() if known else ())}
        places.add((identity.host, identity.port + PORT_OFFSET))
        if self._host is not None and self._host.port:
            places.add((self._host.address, self._host.port))
        places.discard((self._hooks.address(), self.port))
        asked = self._random.sample(sorted(places), min(SEEK, len(places)))
        for standing in await asyncio.gather(*(self._ask(place) for place in asked)):
            if standing is not None:
                self._hear_of(standing)

    async def _ask(self, place: tuple[str, int]) -> Standing | None:
        try:
            body = await ask(*place, "GET", HOST_PATH, None, self._identity.token, SEEK_SECONDS)
            return read_standing(body)
        except (OSError, ValueError, TimeoutError, EOFError):
            return None

    # ---- the end

    async def close(self, *, failures_seconds: float, end_seconds: float) -> None:
        """Ends the service, and the coordinator it runs, once others have been told the last."""
        hosting, server = self._hosting, self._server
        if hosting is not None and server is not None:
            if failures_seconds:
                await server.failures_delivered(failures_seconds)
            if end_seconds:
                await server.end_delivered(end_seconds)
            self._stop.set()
            with contextlib.suppress(Exception):
                await hosting
        if self._service is not None:
            self._service.close()


def free_port(host: str, wished: int) -> int:
    """Return a port of `host` that is free, and whose next one is; the wished one if it can be.

    Raises OSError if there is none.
    """
    for port in (wished, *(random.randrange(20_000, 32_000) for _ in range(50))):
        if _is_free(host, port) and _is_free(host, port + 1):
            return port
    raise OSError(f"{host}: expected two neighbouring ports that are free, found none")


def _is_free(host: str, port: int) -> bool:
    try:
        found: Iterable[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError:
        return False
    return True
