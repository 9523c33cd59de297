"""Which coordinator an agent follows, when it takes its host for lost, and when it stands for
election itself; pure.

    follows ─► doubts    the stream has ended, or is silent: the host's agent is asked
    doubts  ─► follows   it answers that it hosts, or the coordinator is heard again
    doubts  ─► lost      it has ended, or was silent for too long: this agent votes, and stands
    lost    ─► follows   it is elected, has voted for another, or hears of a later coordinator
    lost    ─► new       it has no vote, and whoever had one has ended: as if it had just begun
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elastic_trainer.protocol.message import Electorate, Heartbeat, Member
from elastic_trainer.protocol.pace import silence
from elastic_trainer.succession.agent_status import AgentStatus, EndedPods, Found
from elastic_trainer.succession.ballot import Ballot, Vote, Voter, swear, take, vote
from elastic_trainer.succession.candidacy import TURN_SECONDS, Count, turn
from elastic_trainer.succession.electorate import TERMS_OF_A_HOST, missing, next_election, voters

PROBE_SHARE = 0.7
"""Part of the limit of silence, after which the host's agent is asked whether it is still there."""
UNKNOWN_HOST_LIMITS = 3.0
"""Times the limit of silence, for a coordinator whose host isn't known to this agent."""
UNPROVEN_LIMITS = 10.0
"""Times the limit of silence, for a host that nobody has proven gone, and of whose coordinator
no other agent knows."""
RETRY_SECONDS = 0.2
"""Before an agent that was not elected stands again; up to twice as long, by chance."""
ASK_AGAIN_SECONDS = 0.05
"""Before one that would not be elected asks again: others may not have seen yet that the host is
lost. So much longer for each ASKED voters."""
ASKED = 20


@dataclass(frozen=True)
class Follower:
    """An agent's knowledge of the coordinator and its host. Times are of one monotonic clock."""

    agent: str
    least_limit: float
    """Seconds of silence after which a coordinator whose host is silent, too, is lost, where it
    does not beat more slowly, see `limit`."""
    first_host: bool = False
    """The coordinator of the job's beginning is this agent's to run."""
    voter: Voter = field(default_factory=Voter)
    address: str = ""
    """HOST:PORT of the coordinator that it follows; empty: it knows none but the job's first."""
    led: int = 0
    """How often it was led to another coordinator."""
    host: Member | None = None
    """The agent that runs that coordinator, once it was told."""
    heard_at: float = 0.0
    lost_since: float | None = None
    """Since when it may vote for another host; None: it won't."""
    host_silent: bool = False
    """Its agent gave no answer when it was asked last."""
    stand_at: float | None = None
    """When it stands for election next; None: it has no turn yet."""
    highest: int = 0
    """The highest term that voters have told it."""
    gone: frozenset[str] = frozenset()
    """Electors that are proven to have ended."""
    beat: float = 0.0
    """Seconds between two signs of life, as the coordinator has told."""

    @property
    def limit(self) -> float:
        return silence(self.least_limit, self.beat)

    @property
    def host_lost(self) -> bool:
        return self.lost_since is not None

    @property
    def hosts_by_right(self) -> bool:
        """Return whether the coordinator of the job's beginning is still this agent's to run."""
        return self.first_host and self.voter.sworn < TERMS_OF_A_HOST

    def doubts(self, now: float, connected: bool) -> bool:
        """Tell whether the host's agent is to be asked."""
        return not connected or now - self.heard_at >= PROBE_SHARE * self.limit

    def is_served_by(self, host: AgentStatus) -> bool:
        """Tell whether the coordinator that it follows serves already, as its host's agent says."""
        return host.hosts and host.heard and host.address == self.address

    # ---- what it hears

    def hears(self, now: float) -> Follower:
        """Return it after any word of the coordinator that it follows."""
        return replace(self, heard_at=now, lost_since=None)

    def hears_beat(self, told: Heartbeat, dialled: str) -> Follower:
        """Return it after the coordinator at `dialled` has said who it is."""
        voter = swear(self.voter, told.term)
        beat, host = told.beat_seconds or self.beat, told.host or self.host
        return replace(self, voter=voter, address=dialled, host=host, beat=beat)

    def takes(self, known: Electorate) -> Follower:
        """Return it after the coordinator has told who elects."""
        voter = take(self.voter, known)
        assert voter.electorate is not None
        return replace(self, voter=voter, gone=self.gone & voters(voter.electorate).keys())

    def hears_of(self, other: AgentStatus, now: float) -> Follower:
        """Return it after another agent told of itself.

        An agent that knows no round, and hears no coordinator, only repeats what it was told.
        It follows a later coordinator than its own, and if it knows none, or has lost it, that of
        its own term, where the other hears it. It goes to an earlier one, too, while its own is
        lost: that ends as it hears of the later term, and all elect anew. Otherwise an agent that
        alone took part in an election would stay alone. Where neither knows a round, there is
        nobody to elect: the one that is alone begins anew, and the other is left in peace.
        """
        sworn = self.voter.sworn
        known = other.heard or other.hosts
        later = other.term > sworn and (known or other.round > 0)
        if self.first_host and other.term < TERMS_OF_A_HOST:
            return self  # they speak of its own coordinator, or of its predecessor's
        lost = not self.address or (self.host_lost and other.address != self.address)
        first = other.term == sworn and lost and known
        elects = self.voter.electorate is not None or other.round > 0
        stranded = other.term < sworn and elects and self.host_lost and known
        if not other.address or not (later or first or stranded):
            return self
        return replace(self, voter=swear(self.voter, other.term))._led_to(other.address, None, now)

    def hears_of_gone(self, ended: EndedPods) -> Follower:
        """Return it after the job's owner said which pods have ended."""
        known = [*_voters(self.voter.electorate).values(), *((self.host,) if self.host else ())]
        gone = {member.agent for member in known if ended.have(member)}
        return replace(self, gone=self.gone | gone - {self.agent})

    def votes(self, ballot: Ballot, leaves: bool, now: float) -> tuple[Follower, Vote]:
        """Return it after a ballot, and its answer. It follows whom it has elected."""
        objection = "" if self.host_lost else "its coordinator is there, or may be back soon"
        voter, answer = vote(self.voter, ballot, "it leaves" if leaves else objection)
        if voter == self.voter:
            return self, answer
        host = _voters(voter.electorate).get(ballot.candidate)
        return replace(self, voter=voter)._led_to(ballot.address, host, now), answer

    def _led_to(self, address: str, host: Member | None, now: float) -> Follower:
        # The coordinator has its time to begin.
        heard = replace(self, heard_at=now, lost_since=None, stand_at=None)
        return replace(heard, address=address, host=host, led=self.led + 1, first_host=False)

    # ---- whether its host is lost

    @property
    def asks(self) -> Member | None:
        """Return whom to ask, in doubt, whether the coordinator's host is there; None: nobody."""
        host = self.host
        known = host is not None and host.port and host.agent not in {self.agent, *self.gone}
        return host if known else None

    def judges(self, found: Found | None, now: float) -> Follower:
        """Return it after its doubts.

        Args:
            found: what came of asking `asks`; None: there was nobody to ask.
        """
        host = self.host
        silence = now - self.heard_at
        gone = self.gone
        if host is None or not host.port:
            ended, silent = False, silence >= UNKNOWN_HOST_LIMITS * self.limit
        elif host.agent == self.agent:
            ended, silent = not self.hosts_by_right, False
        elif found is None:
            ended, silent = host.agent in gone, False
        else:
            if found.gone:
                gone |= {host.agent}
            ended = found.gone or (found.status is not None and not found.status.hosts)
            silent = found.status is None and silence >= self.limit
        unheard = found is not None and found.status is None
        after = replace(self, gone=gone, host_silent=unheard)
        if not (ended or silent):
            return replace(after, lost_since=None)
        if self.lost_since is not None:
            return after
        return replace(after, lost_since=now, stand_at=None)

    @property
    def has_no_vote(self) -> bool:
        return self.agent not in _voters(self.voter.electorate)

    def may_begin_anew(self, others_know: bool, now: float) -> bool:
        """Tell whether nobody is left of those who could elect a host, so that it may take part in
        a new beginning of the job, as an agent does that was started just now.

        Args:
            others_know: some of the agents that it asked know a round, or gave no answer.
        """
        if not self.has_no_vote or others_know or self.lost_since is None:
            return False
        known, host, lost = self.voter.electorate, self.host, now - self.lost_since
        if known is not None:
            proven = not missing(known, (), self.gone)
        else:
            proven = host is not None and host.agent in {self.agent, *self.gone}
        return lost >= (1.0 if proven else UNPROVEN_LIMITS) * self.limit

    def begins_anew(self, first_host: bool, now: float) -> Follower:
        """Return it as it was when it began."""
        new = Follower(self.agent, self.least_limit, first_host=first_host, heard_at=now)
        return replace(new, led=self.led + 1)

    # ---- its own election

    def takes_turn(self, now: float, jitter: float) -> Follower:
        """Return it with the time when it stands, once its host is lost.

        Args:
            jitter: seconds that it waits longer, unless it is the first.
        """
        known = self.voter.electorate
        if known is None or self.lost_since is None or self.stand_at is not None:
            return self
        before = turn(known, self.agent, self.silent)
        if before is None:
            return self
        wait = before * TURN_SECONDS + jitter if before else 0.0
        return replace(self, stand_at=self.lost_since + wait)

    def may_stand(self, now: float) -> bool:
        return self.host_lost and self.stand_at is not None and now >= self.stand_at

    @property
    def silent(self) -> frozenset[str]:
        """Other agents whose votes it need not ask for."""
        host = {self.host.agent} if self.host is not None and self.host_silent else set()
        return self.gone | host

    def ballot(self, address: str) -> Ballot:
        """Return what it asks the voters first: whether they would elect it."""
        known = self.voter.electorate
        assert known is not None, "agents that know no round have no turn"
        term = next_election(max(self.voter.sworn, self.highest), self.agent)
        return Ballot(term, self.agent, address, known.term, known.round, trial=True)

    def learns(self, count: Count) -> Follower:
        """Return it after an answer to its ballot: who is gone, and the terms of the others."""
        terms = (vote.term for vote in count.votes.values())
        highest = max((self.highest, *terms))
        return replace(self, highest=highest, gone=self.gone | count.gone)

    def stands(self, count: Count) -> Follower:
        """Return it once it has voted for itself, in a term above all that it was told of."""
        term = count.next_term(self.voter.sworn)
        voter = replace(self.voter, sworn=term, voted_for=self.agent)
        return replace(self, voter=voter, address="", led=self.led + 1)

    def has_won(self, term: int, count: Count) -> bool:
        voted_for_itself = self.voter.sworn == term and self.voter.voted_for == self.agent
        return count.won and voted_for_itself

    def asks_again(self, now: float) -> Follower:
        """Return it after others said that they would not elect it."""
        wait = ASK_AGAIN_SECONDS * (1 + len(_voters(self.voter.electorate)) / ASKED)
        return replace(self, stand_at=now + wait)

    def waits(self, now: float, jitter: float) -> Follower:
        """Return it after an election that it did not win."""
        return replace(self, stand_at=now + RETRY_SECONDS + jitter)

    def hosts(self, address: str) -> Follower:
        """Return it with a coordinator of its own."""
        return replace(self, address=address, led=self.led + 1, first_host=False)

    def hosts_no_more(self, address: str, deposed: int) -> Follower:
        """Return it after its own coordinator has ended, as of a later term if it was deposed."""
        kept = "" if self.address == address else self.address
        return replace(self, voter=swear(self.voter, deposed), address=kept)

    def status(self, job: str, *, hosts: bool, heard: bool) -> AgentStatus:
        """Return what it tells of itself."""
        known = self.voter.electorate
        number = known.round if known is not None else 0
        hosts = hosts or self.hosts_by_right
        return AgentStatus(job, self.agent, self.voter.sworn, self.address, hosts, heard, number)


def _voters(known: Electorate | None) -> Mapping[str, Member]:
    return voters(known) if known is not None else {}
