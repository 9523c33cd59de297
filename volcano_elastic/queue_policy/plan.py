"""From one snapshot to the size of every elastic job: a plan is a list of moves.

`plan` is pure and deterministic, and the order of its input does not matter. In turn:

  group      the snapshot becomes values: jobs, nodes, queues, claims (`cluster_state`); what the
             plan changes is a `draft` on top of them
  correct    sizes outside [min, max] or off nodeUnit; a measured slowdown undoes the last step;
             surplus that found no place in time goes, and units that will never be whole;
             surplus of queues that hold more than their capability goes
  claim      minimums that wait, in Volcano's order, take idle and releasing room, then surplus
  unblock    of gangs that have blocked each other for long, one gives up all its pods
  reserve    pods that exist or are about to exist keep the room they will bind to
  leave      pods on nodes that failed, or are about to go, move to idle room; surplus without any
             goes
  move       what is still idle goes to the jobs that gain most, then what others gain less from
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter

from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.grouping import cluster_state
from volcano_elastic.cluster_state.job_pods import eviction_order
from volcano_elastic.cluster_state.queue_figures import queue_figures
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.backoff import Backoff
from volcano_elastic.queue_policy.claim_queue import ClaimQueue
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.queue_policy.departures import Departures
from volcano_elastic.queue_policy.draft import Draft, JobDraft
from volcano_elastic.queue_policy.messages import Needs, message
from volcano_elastic.queue_policy.moves import Moves
from volcano_elastic.queue_policy.node_room import Room
from volcano_elastic.queue_policy.report import unchanged
from volcano_elastic.queue_policy.waiting_pods import WaitingPods
from volcano_elastic.snapshot.snapshot import Memory, Snapshot

UNPLACED_AFTER = timedelta(seconds=30)
"""Surplus without a node for this long is given up: something we don't model is in its way."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Return the changes to make at `now`, which must be aware if the snapshot's times are."""
    return Planner().plan(snapshot, now)


class Planner:
    """Plans as `plan` does, quicker: groups anew only what changed since the last snapshot."""

    def __init__(self, *, reports: bool = True) -> None:
        """`reports`: whether plans say why sizes change or stay, and give figures of queues."""
        self._reports = reports
        self._cluster: ClusterState | None = None
        self._trial: Planner | None = None
        self._memory = Memory()

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Return what `plan` returns. A snapshot without memory gets that of the last plan."""
        if snapshot.memory == Memory():
            snapshot = replace(snapshot, memory=self._memory)
        made = self._plan(snapshot, now)
        self._memory = made.memory
        trials = {p.queue for p in snapshot.policies if p.mode is Mode.DRY_RUN}
        if not trials or trials.isdisjoint(job.queue for job in snapshot.jobs):
            return made
        self._trial = self._trial or Planner(reports=self._reports)
        active = tuple(
            replace(p, mode=Mode.ACTIVE) if p.mode is Mode.DRY_RUN else p for p in snapshot.policies
        )
        # Nothing is remembered that is only shown.
        trial = self._trial._plan(replace(snapshot, policies=active), now)
        return _with_trial(made, snapshot, trials, trial)

    def _plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """With the snapshot's memory, whatever this planner's is."""
        collects = gc.isenabled()
        # Little of what a plan makes is garbage before its end, and to look for some meanwhile
        # takes a quarter of a first plan's time.
        gc.disable()
        try:
            self._cluster = cluster_state(snapshot, self._cluster)
            return _Planning(self._cluster, now, self._reports).plan()
        finally:
            if collects:
                gc.enable()


def _with_trial(made: Plan, snapshot: Snapshot, trials: set[str], trial: Plan) -> Plan:
    """Adds what queues in mode DryRun would do: what a plan that is free to do it says of them."""
    inside = {job.key for job in snapshot.jobs if job.queue in trials}
    done = {decision.job for decision in made.decisions}
    shown = {d.job: replace(d, dry_run=True) for d in trial.decisions if d.job in inside - done}
    ordered = sorted((*made.decisions, *shown.values()), key=lambda decision: decision.job)
    kept = {
        key: trial.unchanged.get(key, reasons) if key in inside else reasons
        for key, reasons in made.unchanged.items()
        if key not in shown
    }
    return replace(made, decisions=tuple(ordered), unchanged=kept)


class _Planning:
    def __init__(self, cluster: ClusterState, now: datetime, reports: bool) -> None:
        self._cluster, self._now, self._reports = cluster, now, reports
        self._draft = Draft(cluster, now)
        self._backoff = Backoff(cluster, now)
        self._waiting_pods = WaitingPods(self._draft, self._backoff)
        self._needs = Needs(cluster.dimensions)

    def plan(self) -> Plan:
        cluster, draft = self._cluster, self._draft
        for job in draft.unsettled:
            draft.release(job, job.state.by_role.excess)
            self._correct(job)
        self._lower_to_capabilities()
        asking = self._asking()
        asked = bool(asking or cluster.waiting)
        if asked:
            self._waiting_pods.give_up_units(asking)
        claims = self._claims = ClaimQueue(draft, self._backoff, asking)
        claims.run()
        self._unblock()
        self._reserve()
        departures = Departures(draft)
        departures.run()
        resting = self._backoff.resting()
        moves = self._move({*resting, *departures.jobs})
        decisions, blocked = self._decisions(), claims.reasons()
        for forget in draft.at_end:
            forget()
        return Plan(
            decisions=tuple(decisions),
            unchanged=unchanged(
                draft,
                changed=[decision.job for decision in decisions],
                why=moves.why,
                resting=resting,
                asked=asked,
                served=bool(claims.served),
            )
            if self._reports
            else {},
            admitted=cluster.keys - claims.blocked.keys(),
            blocked=blocked.minimums,
            blocked_pods=blocked.pods,
            resting=resting,
            queues=queue_figures(cluster, asking) if self._reports else {},
            memory=self._backoff.memory(
                from_idle=claims.from_idle | self._waiting_pods.kept_idle,
                ahead=claims.ahead(),
                waiting=claims.stuck,
                leaving=claims.leaving,
                decisions=decisions,
            ),
        )

    # Correct

    def _correct(self, draft: JobDraft) -> None:
        job, state, mode = draft.job, draft.state, draft.state.policy.mode
        if state.movable:
            if draft.size < job.min:
                draft.size, draft.reason = job.min, Reason.RAISED_TO_MIN
                return
            if draft.size > state.cap:
                self._draft.lower(draft, state.cap, Reason.LOWERED_TO_MAX)
            elif state.floor(draft.size) != draft.size:
                self._draft.lower(draft, state.floor(draft.size), Reason.ROUNDED_TO_UNIT)
            if mode is Mode.HOLD_AND_DRAIN and draft.size > job.min:
                self._draft.lower(draft, job.min, Reason.DRAINED)
            elif mode is Mode.ACTIVE and job.scaler == "volcano":
                self._undo_slowdown(draft)
        if draft.unbound:
            self._give_up_late(draft)

    def _undo_slowdown(self, draft: JobDraft) -> None:
        """Only what was measured at this very size tells that it is too large."""
        job, state = draft.job, draft.state
        best = state.curve.best if job.desired in job.speeds else None
        whole = len(draft.bound) == draft.size == job.desired and not state.by_role.departing
        if best is None or draft.size <= best or not whole or state.cooling(self._now):
            return
        size = state.floor(max(best, job.min))
        if size < draft.size:
            self._draft.lower(draft, size, Reason.SLOWED_DOWN)

    def _give_up_late(self, draft: JobDraft) -> None:
        before = self._now - UNPLACED_AFTER
        old = [pod for pod in draft.unbound.values() if pod.created and pod.created < before]
        late = eviction_order(old, worker_0=draft.goes_on_without_first)
        # As many as the minimum lacks are a claim, not surplus, and so is worker 0.
        claimed = max(0, draft.job.min - draft.held - draft.leader_pending)
        late = late[: max(0, len(late) - claimed)]
        if late:
            # Those that don't exist would fare no better.
            absent = draft.absent - draft.leader_missing
            size = draft.size_without(len(late) + absent)
            if size < draft.size:
                self._draft.lower(draft, size, Reason.SURPLUS_UNPLACED, late)

    def _lower_to_capabilities(self) -> None:
        """Volcano keeps a queue from growing beyond what an admin has set, and takes nothing back.
        Here surplus leaves, its children's included; minimums stay."""
        tree = self._draft.queues.tree
        # Who leaves for a child leaves for its parents too.
        for queue in sorted(tree.queues, key=lambda name: (-len(tree.chains[name]), name)):
            if self._draft.queues.beyond_capability(queue):
                self._lower_to_capability(queue)

    def _lower_to_capability(self, queue: str) -> None:
        """A unit at a time leaves the job that has most."""
        draft = self._draft
        jobs = [draft.job(state.job.key) for state in self._cluster.jobs_within(queue)]
        givers = [(-job.weighted_surplus, job.job.key) for job in jobs if job.gives_units]
        heapq.heapify(givers)
        while givers and (beyond := draft.queues.beyond_capability(queue)):
            job = draft.job(heapq.heappop(givers)[1])
            if any(job.state.shape.vector[i] for i in beyond):
                draft.lower(job, job.size - job.state.unit, Reason.LOWERED_TO_CAPABILITY)
                job.queue_beyond = queue
                if job.gives_units:
                    heapq.heappush(givers, (-job.weighted_surplus, job.job.key))

    # Claim

    def _asking(self) -> list[Claim]:
        """Claims of jobs and gangs that have started."""
        found = [job.claim() for job in self._draft.unsettled]
        found += [claim for claim in self._cluster.gang_claims if claim.runs]
        return [claim for claim in found if claim is not None]

    def _unblock(self) -> None:
        """Gangs below minimum that hold room and wait for each other: the least entitled job gives
        up all its pods if that lets another start. One job at a time."""
        waiting = self._claims.stuck
        stuck = [claim for claim in waiting if claim.key in self._backoff.stuck]
        for loser in reversed(stuck):
            if loser.job is None:
                continue
            job = self._draft.job(loser.key)
            others = [claim for claim in waiting if claim.runs and claim.order < loser.order]
            if job.state.movable and job.bound and others and self._give_up_all(job, others):
                return

    def _give_up_all(self, job: JobDraft, others: list[Claim]) -> bool:
        mark, pods = self._draft.journal.mark(), list(job.bound.values())
        self._draft.release(job, pods)
        helped = self._claims.serve_first(others)
        if helped is None:
            self._draft.journal.rollback(mark)
            return False
        job.removed = [*pods, *job.unbound.values()]
        job.bound, job.unbound = {}, {}
        job.size, job.reason = job.job.min, Reason.GAVE_UP_MINIMUM
        job.served[helped.key] = None
        # Its own claim was for what its pods lacked, and they leave.
        self._claims.set_aside(job.job.key)
        # Whoever else fits now is served too.
        self._claims.run()
        return True

    def _reserve(self) -> None:
        claims, waiting = self._claims, self._waiting_pods
        waiting.keep_for_others()
        while not waiting.surplus(claims.served, retry=bool(claims.blocked)):
            # Whole units left, which was more than anybody had asked for.
            claims.run()

    # Move

    def _move(self, resting: Collection[str]) -> Moves:
        draft = self._draft
        draft.nodes.kept = self._claims.kept_for_others()
        if draft.queues.tree.keeps_free:
            draft.queues.open_growth(draft.nodes.free(Room.IDLE), draft.nodes.free(Room.RELEASING))
        served = self._claims.served.values()
        started = [draft.job(c.key) for c in served if c.job is not None and not c.runs]
        newcomers = [*filter(self._may_grow_first, started)]
        moves = Moves(draft, resting, self._backoff.rebalanced, newcomers)
        moves.run()
        return moves

    def _may_grow_first(self, job: JobDraft) -> bool:
        """Return whether a job that this plan lets start may start larger."""
        state = job.state
        return (
            job.size == job.job.desired
            and not job.waiting_surplus
            # Pods that are told to leave would be kept instead, whatever they wait for.
            and not state.by_role.excess
            and not job.job.unmodelled
            and state.policy.mode is Mode.ACTIVE
        )

    # Say

    def _decisions(self) -> list[Decision]:
        drafts = self._draft.jobs.values()
        changed = [d for d in drafts if d.size != d.job.desired or d.removed or d.moved]
        turns = {key: turn for turn, key in enumerate(self._claims.served)}
        made = [self._decision(draft, turns) for draft in changed]
        return sorted(made, key=attrgetter("job"))

    def _decision(self, draft: JobDraft, turns: Mapping[str, int]) -> Decision:
        job = draft.job
        reason = draft.reason or Reason.GREW_INTO_IDLE
        helped = [self._claims.served[key] for key in draft.served if key in turns]
        helped.sort(key=lambda claim: turns[claim.key])
        if draft.served and reason not in (Reason.REBALANCED, Reason.GAVE_UP_MINIMUM):
            for_pods = bool(helped) and all(claim.pod is not None for claim in helped)
            reason = Reason.SHRUNK_FOR_POD if for_pods else Reason.SHRUNK_FOR_MINIMUM
        given, waits = (draft, reason, helped, self._needs), bool(self._claims.blocked)
        return Decision(
            job=job.key,
            old=job.desired,
            new=draft.size,
            reason=reason,
            message=message(*given, waits=waits) if self._reports else "",
            remove=tuple([pod.key for pod in eviction_order(draft.removed, worker_0=True)]),
            move=tuple(sorted([pod.key for pod in draft.moved])),
            protect=draft.successors() if draft.removed or draft.moved else (),
        )
