"""One node check as the coordinator leads it: who is there, who meets whom, when it is over.

It does no I/O: each call brings the time, and what it knows is what agents said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from elastic_trainer.node_check import message, verdict
from elastic_trainer.node_check.message import Order, Over, Presence, Report, Wait
from elastic_trainer.node_check.pairing import Group, next_groups
from elastic_trainer.node_check.verdict import Evidence, Verdict

POLL_SECONDS = 0.1
SWEEP_SECONDS = 0.1
"""Between looks at all agents and groups, for those whose time is over."""
POLLS_PER_SECOND = 500.0
"""Questions of all agents together; those of a large check ask less often."""


@dataclass(frozen=True)
class Limits:
    quiet: float = 2.0
    """Seconds without a further agent after which a check begins with those that are enough."""
    silent: float = 30.0
    """Seconds after which an agent that says nothing is gone."""
    least: float = 30.0
    """The least (seconds) that a trial may take."""
    times: float = 5.0
    """How often a trial may take as long as those of its round that passed: so the limit follows
    the machines, and how busy they are."""
    longest: float = 180.0
    """The most (seconds) that a trial may take while none has passed in its round."""
    check: float = 900.0
    """The most (seconds) that all rounds may take; what is unknown then stays so."""

    def between_rounds(self, check: float) -> Limits:
        """Return the limits of a check that holds up a training: its nodes were at work a moment
        ago, so that none has much to wait for, and where a device hangs all wait for it."""
        return replace(self, least=self.least / 3, longest=self.longest / 6, check=check)


@dataclass(frozen=True)
class _Judgement:
    """The judgement on all trials so far; worked out once a round."""

    trials: int
    evidence: Evidence
    slow: Mapping[str, float]
    failed_beside: Mapping[str, Set[str]]
    """By agent, the others of its trials that failed."""

    @classmethod
    def of(cls, trials: Sequence[verdict.Trial]) -> _Judgement:
        failed: dict[str, set[str]] = {}
        for trial in trials:
            if trial.passed is False:
                for agent in trial.members:
                    failed.setdefault(agent, set()).update(trial.members)
        for agent, others in failed.items():
            others.discard(agent)
        return cls(len(trials), Evidence.of(trials), verdict.stragglers(trials), failed)


@dataclass
class _Member:
    presence: Presence
    seen: float


class Session:
    """A check: `poll` it with what agents say.

    Args:
        check: its name, another than of checks before it.
        limits: how long things may take.
    """

    def __init__(self, check: str, limits: Limits) -> None:
        self.check = check
        self.limits = limits
        self.trials: list[verdict.Trial] = []
        self.over = ""
        """Why it is over; empty while it isn't."""
        self.seconds = 0.0
        """From the first round's begin to the end."""
        self._members: dict[str, _Member] = {}
        self._known: dict[str, Presence] = {}
        """Also those that have gone."""
        self._arrived = 0.0
        """When the newest agent came."""
        self._began = 0.0
        self._round = 0
        self._round_since = 0.0
        self._groups: tuple[Group, ...] = ()
        self._open: set[int] = set()
        """The groups of this round that are not decided."""
        self._swept = 0.0
        self._judgement = _Judgement.of(())
        self._places: dict[str, tuple[int, int]] = {}
        """By agent, its group and its rank there."""
        self._reports: dict[str, tuple[Report, float]] = {}
        """Reports of this round, with the seconds since its begin."""
        self._notes: dict[str, str] = {}
        """By agent, what went wrong with it last."""

    @property
    def present(self) -> int:
        return len(self._members)

    def knows(self, agent: str) -> bool:
        """Return whether an agent has ever taken part."""
        return agent in self._known

    def leave(self, agent: str) -> None:
        """An agent is gone: nobody waits for its report."""
        if self._members.pop(agent, None) is not None and not self.over:
            self._notes[agent] = "its agent was lost"

    def poll(self, presence: Presence, now: float, start: Callable[[int, bool], bool]) -> Order:
        """Return what an agent is to do.

        Args:
            presence: of the agent, as it says.
            now: seconds of a monotonic clock.
            start: tells whether so many agents are enough to begin with; True with it: nobody
                else came for a while.
        """
        if self.over:
            return self._end_of(presence.agent)
        arrives = presence.agent not in self._members
        if arrives:
            self._arrived = now
        self._members[presence.agent] = _Member(presence, now)
        self._known[presence.agent] = presence
        self._note(presence, now)
        if arrives or now - self._swept >= SWEEP_SECONDS:
            self._sweep(now)
        if not self._round:
            self._begin_check(now, start)
        elif not self._open:
            self._end_round(now)
        if self.over:
            return self._end_of(presence.agent)
        return self._trial_of(presence.agent)

    def end(self, reason: str, now: float) -> None:
        """No further round is held."""
        if not self.over:
            self.over = reason
            self.seconds = now - self._began if self._round else 0.0

    def faulty(self) -> dict[str, str]:
        """Return the nodes to keep out, and why."""
        found = {}
        evidence = self._judged.evidence
        for agent in sorted(evidence.faulty, key=self._order):
            known = self._known[agent]
            found[known.node] = f"worker {known.pod_index} {self._reason(agent, evidence)}"
        return found

    def as_json(self) -> dict[str, Any] | None:
        """Return what /status tells; None before anybody came."""
        if not self._known:
            return None
        evidence, slow = self._judged.evidence, self._judged.slow
        return {
            "rounds": self._round,
            "seconds": round(self.seconds, 3),
            "over": self.over or None,
            "nodes": [
                {
                    "node": self._known[agent].node,
                    "worker": self._known[agent].pod_index,
                    "verdict": evidence.verdict(agent).value,
                    "straggler": agent in slow,
                    "note": self._note_on(agent, evidence),
                }
                for agent in sorted(self._known, key=self._order)
            ],
        }

    # ---- what agents say

    def _note(self, presence: Presence, now: float) -> None:
        report = presence.report
        if report is None or (report.check, report.round) != (self.check, self._round):
            return
        if presence.agent in self._places and presence.agent not in self._reports:
            self._reports[presence.agent] = (report, now - self._round_since)
            if report.note:
                self._notes[presence.agent] = report.note
            number, _ = self._places[presence.agent]
            if self._is_decided(number):
                self._open.discard(number)

    def _sweep(self, now: float) -> None:
        """Finds who says nothing any more, and whose trial takes too long."""
        self._swept = now
        for agent, member in list(self._members.items()):
            if now - member.seen > self.limits.silent:
                del self._members[agent]
                self._notes[agent] = f"it said nothing for {self.limits.silent:g} s"
        self._open = {number for number in self._open if not self._is_decided(number)}
        if self._open and self._is_late(now):
            self._open = set()

    def _begin_check(self, now: float, start: Callable[[int, bool], bool]) -> None:
        quiet = now - self._arrived >= self.limits.quiet
        if start(self.present, quiet):
            self._began = now
            self._begin_round(now)

    def _end_round(self, now: float) -> None:
        self.trials += [self._outcome(group) for group in self._groups]
        if now - self._began >= self.limits.check:
            self.end(f"it took over {self.limits.check:g} s", now)
        else:
            self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        groups = next_groups(sorted(self._members, key=self._order), self.trials)
        if not groups:
            self.end("nothing is left to find out" if self.trials else "there is no pair", now)
            return
        self._round += 1
        self._round_since = now
        self._groups = groups
        self._reports = {}
        self._open = set(range(len(groups)))
        self._places = {
            agent: (number, rank)
            for number, group in enumerate(groups)
            for rank, agent in enumerate(group)
        }

    def _order(self, agent: str) -> tuple[int, str]:
        return (self._known[agent].pod_index, agent)

    # ---- trials

    def _is_late(self, now: float) -> bool:
        took = [
            max(self._reports[agent][1] for agent in group)
            for group in self._groups
            if self._outcome(group).passed
        ]
        limits = self.limits
        limit = max(limits.least, limits.times * median(took)) if took else limits.longest
        return now - self._round_since >= limit

    def _is_decided(self, number: int) -> bool:
        group = self._groups[number]
        if any(agent not in self._members and agent not in self._reports for agent in group):
            return True
        reports = [self._reports[agent][0] for agent in group if agent in self._reports]
        return len(reports) == len(group) or any(not report.passed for report in reports)

    def _outcome(self, group: Group) -> verdict.Trial:
        """Judges a group as if its round were over: who has not reported has failed."""
        reports = {a: self._reports[a][0] for a in group if a in self._reports}
        unable = frozenset(agent for agent, report in reports.items() if report.unable)
        passed: bool | None = len(reports) == len(group) and all(
            report.passed for report in reports.values()
        )
        if unable:
            passed = None
        seconds = {agent: report.seconds for agent, report in reports.items()} if passed else {}
        return verdict.Trial(self._round, group, passed, seconds, unable)

    def _trial_of(self, agent: str) -> Order:
        place = self._places.get(agent)
        if place is None or agent in self._reports:
            return Wait(self._poll_seconds)
        number, rank = place
        group = self._groups[number]
        if number not in self._open:
            return Wait(self._poll_seconds)
        first = self._known[group[0]]
        return message.Trial(
            self.check,
            self._round,
            number,
            rank,
            len(group),
            first.address,
            first.port,
            self._poll_seconds,
        )

    @property
    def _poll_seconds(self) -> float:
        return max(POLL_SECONDS, self.present / POLLS_PER_SECOND)

    # ---- verdicts

    @property
    def _judged(self) -> _Judgement:
        if self._judgement.trials != len(self.trials):
            self._judgement = _Judgement.of(self.trials)
        return self._judgement

    def _end_of(self, agent: str) -> Over:
        if agent not in self._known:
            return Over(Verdict.UNKNOWN.value, "it came after the check was over")
        evidence = self._judged.evidence
        found = evidence.verdict(agent)
        reason = self.over
        if found is Verdict.FAULTY:
            reason = self._reason(agent, evidence)
        elif agent in self._judged.slow:
            reason = f"slower than {verdict.SLOW:g} times a quick node, twice"
        elif found is Verdict.UNKNOWN:
            reason = self._note_on(agent, evidence) or reason
        return Over(found.value, reason)

    def _note_on(self, agent: str, evidence: Evidence) -> str:
        """Return the failure of a node that is not proven; of one that is, others were the
        cause."""
        if agent in evidence.proven:
            return ""
        beside = self._judged.failed_beside.get(agent, set())
        if agent in self._notes or not beside:
            return self._notes.get(agent, "")
        return f"failed beside {self._workers(beside)}"

    def _workers(self, agents: Iterable[str]) -> str:
        indexes = [str(self._known[agent].pod_index) for agent in sorted(agents, key=self._order)]
        return f"worker{'s' * (len(indexes) > 1)} {' and '.join(indexes)}"

    def _reason(self, agent: str, evidence: Evidence) -> str:
        others = self._judged.failed_beside[agent] & evidence.proven
        reason = f"failed the node check beside {self._workers(others)}, which are sound"
        note = self._notes.get(agent)
        return f"{reason}: {note}" if note else reason


def summary(session: Mapping[str, Any]) -> str:
    """Return a check's result in a line, from what `as_json` tells."""
    counts: dict[str, int] = {}
    for node in session["nodes"]:
        counts[node["verdict"]] = counts.get(node["verdict"], 0) + 1
    told = ", ".join(f"{count} {found}" for found, count in counts.items())
    return f"{told}; {session['rounds']} rounds, {session['seconds']:.1f} s; {session['over']}"
