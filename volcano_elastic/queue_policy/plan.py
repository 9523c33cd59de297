"""From one snapshot to the size of every elastic job: create last, delete first.

`plan` is pure and deterministic, and the order of its input does not matter. In turn:

  stand      each job's pods are sorted into those that hold room, wait, or leave; sizes outside
             [min, max] or off nodeUnit are put right; a measured slowdown undoes the last step;
             surplus that found no place in time goes
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
from volcano_elastic.queue_policy.figures import figures, with_owed
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.growth import Growth
from volcano_elastic.queue_policy.inventory import Inventory
from volcano_elastic.queue_policy.patience import Patience
from volcano_elastic.queue_policy.rebalance import Rebalance
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
        self.kept_idle: set[str] = set()
        """`pod KEY` of others' pods that wait though there is idle room for them."""
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
            queues=with_owed(queues, asked, self.dimensions),
            memory=self.patience.memory(
                from_idle=self.shrink.from_idle | self.kept_idle,
                waiting=self.serving.waiting,
                decisions=decisions,
                standings=self.standings,
            ),
        )

    # Stand

    def _leave(self, standing: Standing, pods: Iterable[Pod]) -> None:
        """These pods, already dropped, give up their room."""
        for pod in pods:
            if pod.node is None:
                continue
            self.queues.use(standing.job.queue, standing.shape.vector, -1)
            n = self.nodes.index(pod.node)
            if n is not None:
                self.nodes.leave(n, standing.shape.vector)

    def _lower(self, standing: Standing, size: int, reason: Reason) -> None:
        self._leave(standing, standing.lower(size, reason))

    def _put_right(self, standing: Standing) -> None:
        job, mode = standing.job, standing.policy.mode
        changeable = mode not in (Mode.OFF, Mode.DRY_RUN) and not job.unmodelled
        if changeable:
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
        # Those of the minimum are a claim, not surplus.
        late = late[: max(0, standing.size - max(standing.job.min, standing.held))]
        if late:
            # Those that don't exist would fare no better.
            size = self._without(standing, standing.size - len(late) - standing.absent)
            if size < standing.size:
                self._leave(standing, standing.lower(size, Reason.SURPLUS_UNPLACED, first=late))

    @staticmethod
    def _without(standing: Standing, size: int) -> int:
        """The size to give up surplus to that has no place: `size` in whole units. Of a job that
        is to be left alone nothing that has a place goes with it, even if that is half a unit."""
        size = standing.floor(size)
        if not standing.movable:
            placed, unit = len(standing.bound) + standing.job.succeeded, standing.unit
            size = max(size, min(standing.size, -(-placed // unit) * unit))
        return size

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
        """Room for pods that wait and are nobody's claim; surplus without room is given up."""
        loose = chain.from_iterable(self.inventory.loose.values())
        for shape, key, queue in sorted(
            loose, key=lambda found: (found[0].vector, found[1]), reverse=True
        ):
            if queue is None or self.queues.closed(queue) is None:
                self._keep_for(shape, key, queue)
        while not self._reserve_surplus():
            # Whole units left, which was more than anybody had asked for.
            self.shrink.forget_failures()
            self.serving.run()

    def _keep_for(self, shape: Shape, key: str, queue: str | None) -> None:
        """Keep room for another's pod, unless its queue is full, or it had room and did not take
        it: nobody may wait for ever for a pod that something we don't model keeps away."""
        if queue is not None and not self.queues.fits_often(queue, shape.vector):
            return
        known = f"pod {key}"
        if self.patience.set_aside(known) is not None:
            return
        idle = bool(self.nodes.place(shape, 1, Room.IDLE))
        if idle:
            self.kept_idle.add(known)
        if (idle or self.nodes.place(shape, 1, Room.COMING)) and queue is not None:
            self.queues.use(queue, shape.vector)

    def _reserve_surplus(self) -> bool:
        """False if pods with a node left, so that claims called blocked may start after all; then
        nothing is reserved."""
        ordered = sorted(
            (s for s in self.restless if s.waiting_surplus),
            key=lambda s: (
                # Last, since others may yet free what they need.
                s.blocked,
                [-amount for amount in s.shape.vector],
                # Who may go to few nodes first: the others have more to choose from.
                len(self.nodes.eligible(s.shape)),
                s.job.created.timestamp(),
                s.job.key,
            ),
        )
        reserved: list[tuple[Standing, list[int]]] = []
        for standing in ordered:
            if standing.blocked:
                self._give_up_blocked(standing)
                continue
            places = self._place_waiting(standing)
            gone = self._give_up_unplaced(standing, len(places))
            # With a unit go those of its workers that had a place.
            keep = standing.waiting_surplus
            self._free(standing, places[keep:])
            if not self.serving.blocked:
                continue
            reserved.append((standing, places[:keep]))
            if any(pod.node is not None for pod in gone):
                for other, found in reserved:
                    self._free(other, found)
                return False
        return True

    def _free(self, standing: Standing, places: list[int]) -> None:
        for n in places:
            self.nodes.give_back(n, standing.shape.vector)
        self.queues.use(standing.job.queue, standing.shape.vector, -len(places))

    def _give_up_blocked(self, standing: Standing) -> None:
        """Surplus of a job that cannot start finds no place either, however young it is."""
        size = self._without(standing, min(standing.size, standing.held + standing.headless))
        if size < standing.size:
            self._lower(standing, size, Reason.SURPLUS_UNPLACED)

    def _place_waiting(self, standing: Standing) -> list[int]:
        """Reserve room for the surplus that waits; the nodes, one for each that has a place."""
        job, vector = standing.job, standing.shape.vector
        count = standing.waiting_surplus
        count = min(count, self.queues.fits_often(job.queue, vector))
        if self.queues.closed(job.queue) is not None:
            count = 0
        placed = self.nodes.place(standing.shape, count, Room.COMING)
        self.queues.use(job.queue, vector, len(placed))
        return placed

    def _give_up_unplaced(self, standing: Standing, placed: int) -> list[Pod]:
        """The pods that leave because some of the job's surplus has no place."""
        without = standing.waiting_surplus - placed
        served, own = self.serving.served, standing.job.key
        for_minimum = len(served) > 1 or any(claim.key != own for claim in served)
        if for_minimum:
            # Whatever is in the way is a minimum: nobody may compete with it for a place.
            hopeless, reason = without, Reason.SHRUNK_FOR_MINIMUM
        else:
            # Pods that exist get their 30 s; those that don't (evicted, say) are not made again.
            hopeless, reason = min(without, standing.absent_surplus), Reason.SURPLUS_UNPLACED
        size = self._without(standing, standing.size - hopeless)
        if size == standing.size:
            return []
        if reason is Reason.SHRUNK_FOR_MINIMUM:
            standing.served.update((claim.key, None) for claim in served if claim.key != own)
        gone = standing.lower(size, reason)
        self._leave(standing, gone)
        return gone

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
