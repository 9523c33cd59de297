"""From one snapshot to the size of every elastic job: create last, delete first.

`plan` is pure and deterministic, and the order of its input does not matter. In turn:

  stand      each job's pods are sorted into those that hold room, wait, or leave; sizes outside
             [min, max] or off nodeUnit are put right; a measured slowdown undoes the last step;
             surplus that found no place in time goes, and units that will never be whole
  claim      minimums that wait, in Volcano's order, get idle and coming room, then surplus (shrink)
  unblock    of gangs that have blocked each other for long, one gives up all its pods
  reserve    pods that exist or are about to exist keep the room they will bind to
  grow       what is still idle
  rebalance  from who loses least to who gains most
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.queue_policy.claims import Claim, job_claim
from volcano_elastic.queue_policy.decision import Decision, Plan, Reason, Stay
from volcano_elastic.queue_policy.departure import leave
from volcano_elastic.queue_policy.figures import figures, with_owed
from volcano_elastic.queue_policy.growth import Growth
from volcano_elastic.queue_policy.inventory import Inventory
from volcano_elastic.queue_policy.patience import Patience
from volcano_elastic.queue_policy.rebalance import Rebalance
from volcano_elastic.queue_policy.reserve import Reserve
from volcano_elastic.queue_policy.room import Room
from volcano_elastic.queue_policy.serving import Serving
from volcano_elastic.queue_policy.shrink import Shrink
from volcano_elastic.queue_policy.snapshot import Memory, Pod, Snapshot
from volcano_elastic.queue_policy.standing import Standing, leave_order
from volcano_elastic.queue_policy.stays import restless, stays
from volcano_elastic.queue_policy.wording import message

UNPLACED_AFTER = timedelta(seconds=30)
"""Surplus without a node for this long is given up: something we don't model is in its way."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """What to change now. `now` must be aware if the snapshot's times are."""
    return Planner().plan(snapshot, now)


class Planner:
    """`plan`, quicker: keeps what it has sorted, and sorts again only what has changed, told by the
    identity of the snapshot's values. It says what `plan` says.
    """

    def __init__(self) -> None:
        self._inventory = Inventory()
        self._trial: Planner | None = None
        self._memory = Memory()

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """As `plan`. A snapshot without memory is given that of this planner's last plan."""
        if snapshot.memory == Memory():
            snapshot = replace(snapshot, memory=self._memory)
        made = self._plan(snapshot, now)
        self._memory = made.memory
        trials = {p.queue for p in snapshot.policies if p.mode is Mode.DRY_RUN}
        if not trials or trials.isdisjoint(job.queue for job in snapshot.jobs):
            return made
        self._trial = self._trial or Planner()
        active = tuple(
            replace(p, mode=Mode.ACTIVE) if p.mode is Mode.DRY_RUN else p for p in snapshot.policies
        )
        # Of what is only shown nothing is remembered.
        trial = self._trial._plan(replace(snapshot, policies=active), now)
        return _with_trial(made, snapshot, trials, trial)

    def _plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """With the snapshot's memory, whatever this planner's is."""
        self._inventory.update(snapshot, now)
        return _Planning(self._inventory, snapshot.memory).plan()


def _with_trial(made: Plan, snapshot: Snapshot, trials: set[str], trial: Plan) -> Plan:
    """Adds what queues in mode DryRun would do: what a plan that is free to do it says of them."""
    inside = {job.key for job in snapshot.jobs if job.queue in trials}
    done = {decision.job for decision in made.decisions}
    shown = {d.job: replace(d, dry_run=True) for d in trial.decisions if d.job in inside - done}
    ordered = sorted((*made.decisions, *shown.values()), key=lambda decision: decision.job)
    stays = {
        key: trial.stays.get(key, stay) if key in inside else stay
        for key, stay in made.stays.items()
        if key not in shown
    }
    return replace(made, decisions=tuple(ordered), stays=stays)


class _Planning:
    def __init__(self, inventory: Inventory, memory: Memory) -> None:
        self.now = inventory.now
        self.inventory = inventory
        self.dimensions = inventory.dimensions
        self.nodes, self.queues = inventory.nodes, inventory.queues
        self.standings = inventory.standings
        self.restless = [self.standings[key] for key in sorted(inventory.restless)]
        """Only these, and the backlog, can have a claim; only these want something put right."""
        self.patience = Patience(memory, self.now)
        self.reserve = Reserve(self.nodes, self.queues, self.restless, self.patience)
        self._rests: dict[str, bool] = {}
        """Whether a queue takes no part in rebalancing, since it did a moment ago."""

    def plan(self) -> Plan:
        queues = figures(self.inventory)
        for standing in self.restless:
            self._leave(standing, standing.excess)
            self._put_right(standing)
        backlog = self.inventory.backlog
        found = (job_claim(standing, self.dimensions) for standing in self.restless)
        asking = [claim for claim in found if claim is not None]
        asking += self.inventory.started.values()
        if asking or backlog:
            self.reserve.give_up_units(asking)
        self.shrink = Shrink(
            self.nodes,
            self.queues,
            self.standings,
            self.inventory.givers,
            self.restless,
            self.now,
        )
        self.serving = Serving(self.shrink, self.patience, backlog, asking, self.dimensions)
        self.serving.run()
        self._unblock()
        self._reserve()
        why = self._grow()
        changed = [self.standings[key] for key in self.inventory.touched]
        changed += [s for s in self.restless if s.job.key not in self.inventory.touched]
        turns = {claim.key: turn for turn, claim in enumerate(self.serving.served)}
        made = (self._decision(standing, turns) for standing in changed)
        decisions = sorted((d for d in made if d is not None), key=lambda d: d.job)
        blocked = self.serving.blocked
        asked = chain(backlog.requests.items(), ((c.queue, c.request) for c in asking))
        return Plan(
            decisions=tuple(decisions),
            stays=self._stays(decisions, why, asked=bool(backlog or asking)),
            admitted=self.inventory.everybody - blocked.keys(),
            blocked=blocked,
            queues=with_owed(queues, asked, self.inventory),
            memory=self.patience.memory(
                from_idle=self.shrink.from_idle | self.reserve.kept_idle,
                ahead=self.serving.ahead(),
                waiting=self.serving.waiting,
                decisions=decisions,
                standings=self.standings,
            ),
        )

    # Stand

    def _leave(self, standing: Standing, pods: Iterable[Pod]) -> None:
        leave(standing, pods, self.nodes, self.queues)

    def _lower(self, standing: Standing, size: int, reason: Reason) -> None:
        self._leave(standing, standing.lower(size, reason))

    def _put_right(self, standing: Standing) -> None:
        job, mode = standing.job, standing.policy.mode
        if standing.movable:
            if standing.size < job.min:
                standing.size, standing.reason = job.min, Reason.RAISED_TO_MIN
                return
            if standing.size > standing.cap:
                self._lower(standing, standing.cap, Reason.LOWERED_TO_MAX)
            elif standing.floor(standing.size) != standing.size:
                self._lower(standing, standing.floor(standing.size), Reason.ROUNDED_TO_UNIT)
            if mode is Mode.HOLD_AND_DRAIN and standing.size > job.min:
                self._lower(standing, job.min, Reason.DRAINED)
            elif mode is Mode.ACTIVE and job.scaler == "volcano":
                self._undo_slowdown(standing)
        if standing.unbound:
            self._give_up_late(standing)

    def _undo_slowdown(self, standing: Standing) -> None:
        """Only what was measured at this very size tells that it is too large."""
        job = standing.job
        best = standing.curve.best if job.desired in job.speeds else None
        whole = len(standing.bound) == standing.size == job.desired and not standing.departing
        if best is None or standing.size <= best or not whole or standing.cooling(self.now):
            return
        size = standing.floor(max(best, job.min))
        if size < standing.size:
            self._lower(standing, size, Reason.SLOWED_DOWN)

    def _give_up_late(self, standing: Standing) -> None:
        late = leave_order(
            pod
            for pod in standing.unbound.values()
            if pod.created is not None and self.now - pod.created > UNPLACED_AFTER
        )
        # As many as the minimum lacks are a claim, not surplus, and so is worker 0.
        claimed = max(0, standing.job.min - standing.held - standing.first_waits)
        late = late[: max(0, len(late) - claimed)]
        if late:
            # Those that don't exist would fare no better.
            absent = standing.absent - standing.first_missing
            size = standing.without(standing.size - len(late) - absent)
            if size < standing.size:
                self._leave(standing, standing.lower(size, Reason.SURPLUS_UNPLACED, first=late))

    # Unblock

    def _unblock(self) -> None:
        """Gangs below minimum that hold room and wait for each other: the least entitled job gives
        up all its pods if that lets another start. One job at a time."""
        waiting = self.serving.waiting
        stuck = [claim for claim in waiting if claim.key in self.patience.stuck]
        for loser in reversed(stuck):
            standing = loser.standing
            if standing is None or not standing.movable or not standing.bound:
                continue
            others = [claim for claim in waiting if claim.runs and claim.order < loser.order]
            if others and self._give_up_all(standing, others):
                return

    def _give_up_all(self, standing: Standing, others: list[Claim]) -> bool:
        mark, pods = self.nodes.mark(), list(standing.bound.values())
        self._leave(standing, pods)
        self.shrink.forget_failures()
        helped = self.serving.serve_first(others)
        if helped is None:
            self.queues.use(standing.job.queue, standing.shape.vector, len(pods))
            self.nodes.rollback(mark)
            self.shrink.forget_failures()
            return False
        standing.removed = [*pods, *standing.unbound.values()]
        standing.bound, standing.unbound = {}, {}
        standing.size, standing.reason = standing.job.min, Reason.GAVE_UP_MINIMUM
        standing.served[helped.key] = None
        # Its own claim was for what its pods lacked, and they leave.
        self.serving.set_aside(standing.job.key)
        # Whoever else fits now is served too.
        self.serving.run()
        return True

    # Reserve

    def _reserve(self) -> None:
        loose = chain.from_iterable(self.inventory.loose.values())
        for shape, key, queue in sorted(
            loose, key=lambda found: (found[0].vector, found[1]), reverse=True
        ):
            self.reserve.keep_for(shape, key, queue)
        while not self.reserve.surplus(self.serving.served, retry=bool(self.serving.blocked)):
            # Whole units left, which was more than anybody had asked for.
            self.shrink.forget_failures()
            self.serving.run()

    # Grow

    def _grow(self) -> dict[str, Reason]:
        """Why those that had a turn grow no further."""
        if self.queues.keeps_free:
            self.queues.open_growth(self.nodes.free(Room.IDLE), self.nodes.free(Room.COMING))
        lineup = self.inventory.lineup
        self.resting = self.patience.resting(self.standings)
        growth = Growth(lineup, self.resting, self.nodes, self.queues, self.now)
        for standing in self._newcomers():
            growth.welcome(standing)
        growth.run()
        Rebalance(
            growth.lines, lineup.offers.entries, self._trades, self.nodes, self.queues, self.now
        ).run()
        return growth.why

    def _newcomers(self) -> Iterator[Standing]:
        """Jobs that this plan lets start, as far as they may grow."""
        for claim in self.serving.served:
            standing = claim.standing
            if (
                standing is not None
                and not claim.runs
                and standing.size == standing.job.desired
                and not standing.waiting_surplus
                # Pods that are told to leave would be kept instead, whatever they wait for.
                and not standing.excess
                and not standing.job.unmodelled
                and standing.policy.mode is Mode.ACTIVE
                and not standing.cooling(self.now)
            ):
                yield standing

    def _trades(self, standing: Standing) -> bool:
        """Whether the job takes part in rebalancing."""
        rules, job = standing.policy.rebalance, standing.job
        if not rules.gap or job.scaler != "volcano" or job.key in self.resting:
            return False
        rests = self._rests.get(job.queue)
        if rests is None:
            last = self.inventory.last_rebalance(job.queue)
            rests = last is not None and self.now - last < rules.cooldown
            self._rests[job.queue] = rests
        return not rests

    # Say

    def _decision(self, standing: Standing, turns: Mapping[str, int]) -> Decision | None:
        """`turns`: of the claims served, by key."""
        job = standing.job
        if standing.size == job.desired and not standing.removed:
            return None
        reason = standing.reason or Reason.GREW_INTO_IDLE
        if standing.served and reason not in (Reason.REBALANCED, Reason.GAVE_UP_MINIMUM):
            reason = Reason.SHRUNK_FOR_MINIMUM
        served = self.serving.served
        helped = [served[i] for i in sorted(turns[k] for k in standing.served if k in turns)]
        return Decision(
            job=job.key,
            old=job.desired,
            new=standing.size,
            reason=reason,
            message=message(standing, reason, helped, self.dimensions),
            remove=tuple(pod.key for pod in leave_order(standing.removed, worker_0=True)),
            protect=standing.successors() if standing.removed else (),
        )

    def _stays(
        self, decisions: list[Decision], why: dict[str, Reason], asked: bool
    ) -> dict[str, Stay]:
        others = (
            (s.job.key, restless(s, self.queues.closed(s.job.queue) is None, self.now, asked))
            for s in self.restless
            if s.job.elastic
        )
        return stays(
            self.inventory.stays,
            others,
            changed={decision.job for decision in decisions},
            why=why,
            resting=self.resting,
            owed=self.nodes.was_idle if self.serving.served else None,
            asked=asked,
        )
