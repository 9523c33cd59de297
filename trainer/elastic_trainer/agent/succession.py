"""This agent's part in who hosts the coordinator: it votes, stands, hosts, and follows.

All on the agent's event loop. What it believes and decides is elastic_trainer.succession's, where
it is said why no two sides go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from elastic_trainer.agent.coordinator_process import CoordinatorProcess
from elastic_trainer.agent.host_search import Answers, HostSearch
from elastic_trainer.agent.hosted_coordinator import HostedCoordinator, free_port
from elastic_trainer.agent.succession_service import Requests, SuccessionService
from elastic_trainer.identity import Identity
from elastic_trainer.protocol.message import (
    AgentMessage,
    Electorate,
    Heartbeat,
    Member,
    Round,
    Taken,
)
from elastic_trainer.succession.agent_status import AgentStatus, EndedPods, read_address
from elastic_trainer.succession.ballot import Ballot, Vote
from elastic_trainer.succession.candidacy import JITTER_SECONDS, Count
from elastic_trainer.succession.electorate import electorate_of, voters
from elastic_trainer.succession.follower import RETRY_SECONDS, Follower
from elastic_trainer.succession.pace import LONGEST_SECONDS, next_wait
from elastic_trainer.succession.peers import PORT_OFFSET, Place
from elastic_trainer.succession.service import GoneError, announce, ask_vote, look

log = logging.getLogger(__name__)

VOTE_SECONDS = 0.3
"""For the votes of all who are not known to be silent; more than half is enough by then."""
ANNOUNCE_SECONDS = 0.25
UNHEARD_SECONDS = 3 * ANNOUNCE_SECONDS
"""For a new worker 0 that knows no peers to be told where the coordinator is."""
MOST_UNHEARD_SECONDS = 5.0
"""For one whose peers may be training, and don't answer."""
UNHEARD_POLL_SECONDS = 0.02
SEEK_SECONDS = 0.5


@dataclass(frozen=True)
class Hooks:
    """The rest of the agent, as its succession needs it."""

    connected: Callable[[], bool]
    """A coordinator's stream is open."""
    ended_by: Callable[[], tuple[str, int] | None]
    """The place of the newest one's other end, if that ended it: it did not fall silent."""
    address: Callable[[], str]
    """Where this node can be reached; empty until it is known."""
    dial_anew: Callable[[tuple[str, int] | None], None]
    """Leaves the stream for another's; not one that leads to the place given already."""
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
        self._identity, self._coordinator, self._hooks = identity, coordinator, hooks
        self._random = chance or random.Random()
        self._follower = Follower(
            identity.agent,
            identity.heartbeat_timeout,
            first_host=identity.may_host,
            heard_at=time.monotonic(),
        )
        self._service = SuccessionService(
            identity, Requests(self._status, self._vote, self._hear_of, self._hear_of_gone)
        )
        self._search = HostSearch(identity, self._random)
        self._began = time.monotonic()
        """Since when others can tell it where the coordinator is."""
        self._others_may_train = True
        """There may be a coordinator elsewhere, of which a new worker 0 has not heard yet."""
        self._answered = False
        """A coordinator has, since the last one was lost."""
        self._tries = 0
        self._hurried = False
        """It has not waited with a try since its stream ended, as the host said that it serves."""
        self._look_wait = LONGEST_SECONDS
        """Until the host is asked again, where the coordinator is in doubt."""
        self._nodes = (identity.min_nodes, identity.max_nodes)
        """Fewest and most of a round, as the coordinator told them."""
        self._stands = False
        """It has asked for votes, and is going to host if it gets them."""
        self._hosted: HostedCoordinator | None = None
        self._own_places = {(identity.host, identity.port)} if identity.may_host else set()
        """Where coordinators of this agent's listened."""
        self._wake = asyncio.Event()

    # ---- what the rest of the agent asks

    @property
    def port(self) -> int:
        """The port of its service; 0: it serves none."""
        return self._service.port

    @property
    def term(self) -> int:
        return self._follower.voter.sworn

    @property
    def electorate(self) -> Electorate | None:
        return self._follower.voter.electorate

    @property
    def hosts_by_right(self) -> bool:
        """Return whether the coordinator of the job's beginning is this agent's to run."""
        if self._coordinator.deposed and self._follower.first_host:
            self._follower = replace(self._follower, first_host=False)
        return self._follower.hosts_by_right

    def unheard_seconds(self, now: float) -> float:
        """Return how long worker 0's agent is still to wait, before it asks for its first round,
        for word of a coordinator elsewhere: others may be training."""
        if not (self.port and self.hosts_by_right) or self.electorate is not None:
            return 0.0
        if not self._identity.peers:
            return self._began + UNHEARD_SECONDS - now
        if not self._others_may_train:
            return 0.0
        return min(UNHEARD_POLL_SECONDS, self._began + MOST_UNHEARD_SECONDS - now)

    def where(self) -> tuple[str, int]:
        """Return the coordinator to dial: the one it follows, else that of the job's beginning."""
        self._tries += 1
        address = self._follower.address
        if not address or (self._tries % 2 == 0 and self._hosted is None):
            return self._identity.host, self._identity.port
        return read_address(address)

    def heard(self, message: Any) -> None:
        """Takes note of what came from the coordinator."""
        self._follower = self._follower.hears(time.monotonic())
        self._tries, self._hurried, self._answered = 0, False, True
        if isinstance(message, Heartbeat):
            host, port = self._hooks.dialled()
            self._follower = self._follower.hears_beat(message, _written(host, port))
            if message.max_nodes:
                self._nodes = (message.min_nodes, message.max_nodes)
        elif isinstance(message, Round):
            self._take(electorate_of(message))
        elif isinstance(message, Electorate):
            self._take(message)

    def lost(self) -> None:
        """Looks at once whether the host is still there: the stream has ended."""
        if self._answered and self.electorate is None:
            # Its own coordinator, perhaps, which others had told of a round; the next one has
            # forgotten that, and they may elect another.
            self._began, self._others_may_train = time.monotonic(), True
        self._answered = False
        self._wake.set()

    def _take(self, known: Electorate) -> None:
        self._follower = self._follower.takes(known)
        self._hooks.tell(Taken(known.round))

    # ---- what others ask and tell

    async def serve(self) -> None:
        await self._service.serve()
        self._began = time.monotonic()

    def _status(self) -> AgentStatus:
        hosts = self._hosted is not None or self._stands or self.hosts_by_right
        heard = self._hooks.connected()
        own = self._follower.status(self._identity.job, hosts=hosts, heard=heard)
        return replace(own, stays=self._hooks.stays())

    def _vote(self, ballot: Ballot) -> Vote:
        leaves = not self._hooks.stays()
        after, answer = self._follower.votes(ballot, leaves, time.monotonic())
        self._adopt(after)
        return answer

    def _hear_of_gone(self, ended: EndedPods) -> None:
        self._follower = self._follower.hears_of_gone(ended)
        self._wake.set()

    def _hear_of(self, other: AgentStatus) -> None:
        if other.job != self._identity.job:
            return
        after = self._follower.hears_of(other, time.monotonic())
        if after.led != self._follower.led:
            log.info("the coordinator is at %s now, in term %d", other.address, other.term)
        self._adopt(after)

    def _adopt(self, after: Follower) -> None:
        """Goes where it was led to."""
        before, self._follower = self._follower, after
        if after.led == before.led:
            return
        self._tries = 0
        if self._hosted is not None:
            self._hosted.stop()
        if self._identity.may_host:
            self._coordinator.depose()
        self._hooks.dial_anew(read_address(after.address))

    # ---- watching

    async def watch(self) -> None:
        """Sees to it, for ever, that this agent has a coordinator."""
        sought = announced = -SEEK_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._look_wait)
            self._wake.clear()
            waited, self._look_wait = self._look_wait, LONGEST_SECONDS
            now = time.monotonic()
            if self._hosted is not None:
                if now - announced >= ANNOUNCE_SECONDS:
                    announced = now
                    await self._announce()
                continue
            if self._hesitates:
                await self._seek()
                continue
            connected = self._hooks.connected()
            if not (self._follower.doubts(now, connected) and self._hooks.stays()):
                continue
            try:
                await self._look_at_host(now, waited)
                if not self._hooks.connected() and now - sought >= SEEK_SECONDS:
                    sought = now
                    await self._begin_anew_if_alone(await self._seek())
                if self._follower.host_lost:
                    await self._stand_in_turn()
            except OSError as error:  # no port is free, or no address is known
                log.warning("cannot take the coordinator over: %s", error)

    @property
    def _hesitates(self) -> bool:
        """Return whether it is to begin the job, as far as it knows, but others may be training."""
        waits = self.unheard_seconds(time.monotonic()) > 0.0
        return waits and bool(self._identity.peers)

    async def _look_at_host(self, now: float, waited: float) -> None:
        """Finds out whether the coordinator's host is there, `waited` after the last time."""
        before = self._follower
        asked, found = before.asks, None
        if asked is not None:
            patience = max(0.1, before.limit - (now - before.heard_at))
            ended = self._ended_by_host
            found = await look(asked, self._identity.token, patience, ended=ended)
            self._look_wait = next_wait(found, waited)
            if found.status is not None:
                self._hear_of(found.status)
                self._dial_at_once_if_it_serves(found.status)
        after = self._follower
        if after.host is before.host and after.heard_at <= before.heard_at:
            self._follower = after.judges(found, time.monotonic())

    def _dial_at_once_if_it_serves(self, host: AgentStatus) -> None:
        """Tries its coordinator anew without a wait: one that was elected just now begins to serve
        soon after its voters' first try."""
        serves = self._follower.is_served_by(host)
        if serves and not (self._hurried or self._hooks.connected()):
            self._tries, self._hurried = 0, True
            self._hooks.dial_anew(read_address(host.address))

    async def _announce(self) -> None:
        """Tells worker 0's pod, which may have been made anew, where the coordinator is."""
        identity = self._identity
        with contextlib.suppress(OSError, ValueError, TimeoutError, EOFError):
            place = identity.host, identity.port + PORT_OFFSET
            await announce(*place, self._status(), identity.token)

    async def _seek(self) -> Answers:
        """Asks other agents where the coordinator is; returns what they said."""
        identity = self._identity
        places: set[Place] = set(identity.peers)
        if not self._hesitates:  # all it knows of are its peers
            places |= {(m.address, m.port) for m in self._electors}
            places.add((identity.host, identity.port + PORT_OFFSET))
        places.discard((self._hooks.address(), self.port))
        answers = await self._search.ask(places)
        for status in answers.statuses:
            self._hear_of(status)
        self._others_may_train = answers.others_may_train
        return answers

    async def _begin_anew_if_alone(self, answers: Answers) -> None:
        """Forgets the coordinator that it had once nobody is left who could elect another."""
        follower = self._follower
        if not (follower.has_no_vote and follower.host_lost) or answers.others_know:
            return
        if (known := self.electorate) is not None:  # who of them has ended?
            await self._count(follower.ballot(_written(self._hooks.address(), 0)), known)
        now = time.monotonic()
        if not self._follower.may_begin_anew(answers.others_know, now):
            return
        log.warning("nobody is left who could elect a coordinator's host: this agent begins anew")
        self._follower = self._follower.begins_anew(self._identity.may_host, now)
        self._tries = 0
        if self._identity.may_host:
            self._coordinator.reinstate()
        self._hooks.dial_anew(None)

    @property
    def _electors(self) -> list[Member]:
        known = self.electorate
        return list(voters(known).values()) if known is not None else []

    # ---- status, hosting

    async def _stand_in_turn(self) -> None:
        now = time.monotonic()
        if not self.port:
            return
        self._follower = self._follower.takes_turn(now, self._random.uniform(0.0, JITTER_SECONDS))
        if self._follower.may_stand(now):
            await self._stand()

    async def _stand(self) -> None:
        """Asks the others whether they would vote for it, then for their votes."""
        known, sworn = self.electorate, self.term
        assert known is not None
        address = self._hooks.address()
        port = free_port(address, self._identity.port)
        ballot = self._follower.ballot(_written(address, port))
        asked = await self._count(ballot, known)
        self._follower = self._follower.asks_again(time.monotonic())
        moved = self.term != sworn or not self._follower.host_lost
        if moved or not self._hooks.stays():
            return
        if not asked.won:
            log.debug("not elected: %s", {name: one.why for name, one in asked.votes.items()})
            return
        wait = self._random.uniform(0.0, RETRY_SECONDS)
        self._follower = self._follower.stands(asked).waits(time.monotonic(), wait)
        term = self.term
        self._hooks.dial_anew(None)
        self._stands = True
        try:
            counted = await self._count(replace(ballot, term=term, trial=False), known)
        finally:
            self._stands = False
        if self._follower.has_won(term, counted):
            self._host(term, (address, port), counted)

    @property
    def _ended_by_host(self) -> bool:
        """Return whether another node ended the stream, so that nothing but processes ended there:
        who refuses connections then isn't behind a partition that does so."""
        by = self._hooks.ended_by()
        return by is not None and by not in self._own_places

    async def _count(self, ballot: Ballot, known: Electorate) -> Count:
        count = Count(self._identity.agent, known, set(self._follower.gone))
        away = {self._identity.agent, *self._follower.silent}
        asked = [member for member in voters(known).values() if member.agent not in away]
        token, ended = self._identity.token, self._ended_by_host

        async def poll(member: Member) -> None:
            try:
                answer = await ask_vote(member, ballot, token, VOTE_SECONDS, ended=ended)
            except GoneError:
                count.gone.add(member.agent)
                return
            if answer is not None:
                count.votes[member.agent] = answer

        await asyncio.gather(*(poll(member) for member in asked))
        self._follower = self._follower.learns(count)
        return count

    def _host(self, term: int, place: Place, count: Count) -> None:
        address = _written(*place)

        def ended(deposed: int) -> None:
            self._follower = self._follower.hosts_no_more(address, deposed)
            self._hosted = None
            self._wake.set()

        self._coordinator.depose()
        self._own_places.add(place)
        self._hosted = HostedCoordinator(self._identity, term, place, count, self._nodes, ended)
        self._follower = self._follower.hosts(address)
        self._tries = 0
        self._hooks.dial_anew(None)

    # ---- the end

    @property
    def is_awaited(self) -> bool:
        """Return whether others may wait for this agent until they know that it has ended."""
        hosts = self._hosted is not None or self.hosts_by_right
        return not hosts and not self._follower.has_no_vote

    async def nobody_stays(self) -> None:
        """Returns once no coordinator is heard, and nobody is there who would elect one or wait for
        its return. Until then it looks for the coordinator, wherever it is now."""
        while True:
            await asyncio.sleep(SEEK_SECONDS)
            if not self._hooks.connected() and not (await self._seek()).others_may_stay:
                return

    async def close(self, *, failures_seconds: float, end_seconds: float) -> None:
        """Ends the service, and the coordinator it runs, once others have been told the last."""
        if self._hosted is not None:
            await self._hosted.close(failures_seconds=failures_seconds, end_seconds=end_seconds)
        self._service.close()


def _written(host: str, port: int) -> str:
    return f"{host}:{port}"
