"""From one snapshot to the size of every elastic job: create last, delete first.

`plan` is pure and deterministic, and the order of its input does not matter. In turn:

  stand    each job's pods are sorted into those that hold room, wait, or leave; sizes outside
           [min, max] or off nodeUnit are put right; surplus that found no place in time goes
  claim    minimums that wait, in Volcano's order, get idle and coming room, then surplus (shrink)
  reserve  pods that exist or are about to exist keep the room they will bind to
  grow     what is still idle
"""

from __future__ import annotations

from datetime import datetime, timedelta

from volcano_elastic.api.queue_policy import effective
from volcano_elastic.queue_policy.claims import Claim, claims
from volcano_elastic.queue_policy.decision import Decision, Plan, Reason, Stay
from volcano_elastic.queue_policy.explain import amount, names, plural, unit_amount
from volcano_elastic.queue_policy.fit import Dimensions, Shape
from volcano_elastic.queue_policy.growth import grow
from volcano_elastic.queue_policy.room import NodeRoom, QueueRoom, Room, leaving
from volcano_elastic.queue_policy.shrink import Surplus
from volcano_elastic.queue_policy.snapshot import Gang, Pod, Resources, Snapshot
from volcano_elastic.queue_policy.standing import Standing, leave_order

UNPLACED_AFTER = timedelta(seconds=30)
"""Surplus without a node for this long is given up: something we don't model is in its way."""
UNPLACED_COOLDOWN = timedelta(seconds=60)
"""The least time after that before the job grows again."""
STABILIZATION = timedelta(seconds=1)
"""The least time between a job's change of size and its next growth, whatever its cooldown."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """What to change now. `now` must be aware if the snapshot's times are."""
    return _Planning(snapshot, now).plan()


class _Planning:
    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.now = now
        requests: list[Resources] = [job.pod_requests for job in snapshot.jobs]
        requests += [j.master_requests for j in snapshot.jobs if j.master_requests is not None]
        requests += [g.pod_requests for g in snapshot.gangs if g.pod_requests is not None]
        requests += [pod.requests for pod in snapshot.pods if pod.node is None]
        self.dimensions = Dimensions(snapshot.nodes, requests)
        self.nodes = NodeRoom(snapshot.nodes, self.dimensions)
        self.queues = QueueRoom(snapshot.queues, self.nodes, effective(snapshot.policies))
        self.standings: dict[str, Standing] = {}
        for job in sorted(snapshot.jobs, key=lambda job: job.key):
            shape = self.dimensions.shape(job.pod_requests, job.node_selector, job.tolerations)
            self.standings[job.key] = Standing(
                job=job, shape=shape, unit_gpus=unit_amount(job.pod_requests), size=job.desired
            )
        self.gangs: dict[str, tuple[Gang, list[Pod]]] = {
            gang.key: (gang, []) for gang in snapshot.gangs if gang.key not in self.standings
        }
        self.others: list[Pod] = []
        """Waiting pods that belong to nobody we know."""
        self.served: list[Claim] = []
        self.blocked: dict[str, str] = {}
        self.waiting: list[Claim] = []
        """The claims that are blocked."""
        self._idle_without_promises: dict[Shape, bool] = {}
        self._sort_pods(snapshot.pods)

    def plan(self) -> Plan:
        for standing in self.standings.values():
            self._leave(standing, standing.excess)
            self._put_right(standing)
        self._claim()
        self._reserve()
        growing = [s for s in self.standings.values() if self._why_not_grow(s) is None]
        grow(growing, self.nodes, self.queues)
        decisions: list[Decision] = []
        stays: dict[str, Stay] = {}
        for key, standing in self.standings.items():
            decision = self._decision(standing)
            if decision is not None:
                decisions.append(decision)
            elif standing.job.elastic:
                stays[key] = self._stay(standing)
        return Plan(
            decisions=tuple(decisions),
            stays=stays,
            admitted=frozenset(self.standings.keys() - self.blocked.keys()),
            blocked=self.blocked,
        )

    # Stand

    def _sort_pods(self, pods: tuple[Pod, ...]) -> None:
        on_node: dict[tuple[str, tuple[int, ...]], int] = {}
        coming: dict[tuple[str, tuple[int, ...]], int] = {}
        in_queue: dict[tuple[str, tuple[int, ...]], int] = {}
        request = self.dimensions.request
        for pod in pods:
            standing = self.standings.get(pod.job) if pod.job is not None else None
            gang = self.gangs.get(pod.gang) if standing is None and pod.gang is not None else None
            if gang is not None:
                gang[1].append(pod)
            if pod.node is not None:
                vector = request(pod.requests)
                place = (pod.node, vector)
                on_node[place] = on_node.get(place, 0) + 1
                if pod.terminating:
                    if standing is not None:
                        standing.departing = True
                    if leaving(pod, self.now):
                        coming[place] = coming.get(place, 0) + 1
                    continue
                queue = standing.job.queue if standing else gang[0].queue if gang else None
                if queue is not None:
                    held = (queue, vector)
                    in_queue[held] = in_queue.get(held, 0) + 1
            elif pod.terminating:
                continue
            if standing is not None:
                if pod.role != "Worker":
                    standing.master_bound = standing.master_bound or pod.node is not None
                elif pod.node is not None:
                    standing.bound[pod.key] = pod
                else:
                    standing.unbound[pod.key] = pod
            elif gang is None and pod.job is None and pod.node is None:
                self.others.append(pod)
        for (name, vector), times in on_node.items():
            n = self.nodes.index(name)
            if n is not None:
                left = times - coming.get((name, vector), 0)
                self.nodes.occupy(Room.IDLE, n, vector, times)
                self.nodes.occupy(Room.COMING, n, vector, left)
                self.nodes.occupy(Room.POTENTIAL, n, vector, left)
        for (queue, vector), times in in_queue.items():
            self.queues.use(queue, vector, times)
        for standing in self.standings.values():
            extra = standing.existing - standing.job.desired
            if extra > 0:
                standing.excess = standing.drop(extra)
                standing.removed.clear()

    def _leave(self, standing: Standing, pods: list[Pod]) -> None:
        """These pods, already dropped, give up their room."""
        for pod in pods:
            if pod.node is None:
                continue
            self.queues.use(standing.job.queue, standing.shape.vector, -1)
            n = self.nodes.index(pod.node)
            if n is not None:
                self.nodes.leave(n, standing.shape.vector)
                self.nodes.occupy(Room.POTENTIAL, n, standing.shape.vector, -1)

    def _lower(self, standing: Standing, size: int, reason: Reason) -> None:
        self._leave(standing, standing.lower(size, reason))

    def _put_right(self, standing: Standing) -> None:
        job = standing.job
        if standing.size < job.min:
            standing.size, standing.reason = job.min, Reason.RAISED_TO_MIN
            return
        if standing.size > job.max:
            self._lower(standing, standing.floor(job.max), Reason.LOWERED_TO_MAX)
        elif standing.floor(standing.size) != standing.size:
            self._lower(standing, standing.floor(standing.size), Reason.ROUNDED_TO_UNIT)
        late = [
            pod
            for pod in leave_order(standing.unbound.values())
            if pod.created is not None and self.now - pod.created > UNPLACED_AFTER
        ]
        # Those of the minimum are a claim, not surplus.
        late = late[: max(0, standing.size - max(job.min, standing.held))]
        if late:
            # Those that don't exist would fare no better.
            size = standing.floor(standing.size - len(late) - standing.absent)
            self._leave(standing, standing.lower(size, Reason.SURPLUS_UNPLACED, first=late))

    # Claim

    def _claim(self) -> None:
        waiting = claims(self.standings, self.gangs.values(), self.dimensions)
        self.surplus = Surplus(self.nodes, self.queues, self.standings.values())
        self._serve(waiting)

    def _serve(self, waiting: list[Claim]) -> None:
        self.waiting = []
        for claim in waiting:
            why = self.surplus.serve(claim)
            if why is None:
                self.served.append(claim)
                self.blocked.pop(claim.key, None)
            else:
                self.waiting.append(claim)
                self.blocked[claim.key] = f"it needs {self._amount(claim)}, and {why}"
            if claim.standing is not None:
                claim.standing.blocked = why is not None

    def _amount(self, claim: Claim) -> str:
        listed: list[tuple[Resources, int]] = []
        for shape, count in claim.groups:
            vector = dict(zip(self.dimensions.names, shape.vector, strict=True))
            listed.append((vector, count))
        return amount(listed)

    # Reserve

    def _reserve(self) -> None:
        """Room for pods that wait and are nobody's claim; surplus without room is given up."""
        loose = [
            (self.dimensions.shape(p.requests, p.node_selector, p.tolerations), p.key)
            for p in self.others
        ]
        claimed = {claim.key for claim in self.served} | self.blocked.keys()
        for gang, pods in self.gangs.values():
            if gang.key not in claimed:
                loose += [
                    (self.dimensions.shape(p.requests, p.node_selector, p.tolerations), p.key)
                    for p in pods
                    if p.node is None and not p.terminating
                ]
        for shape, _ in sorted(loose, key=lambda found: (found[0].vector, found[1]), reverse=True):
            self.nodes.place(shape, 1, Room.COMING)
        while not self._reserve_surplus():
            # Whole units left, which was more than anybody had asked for.
            self.surplus.forget_failures()
            self._serve(self.waiting)

    def _reserve_surplus(self) -> bool:
        """False if pods with a node left, so that claims called blocked may start after all; then
        nothing is reserved."""
        ordered = sorted(
            (s for s in self.standings.values() if s.waiting_surplus),
            key=lambda s: (
                # Last, since others may yet free what they need.
                s.blocked,
                [-amount for amount in s.shape.vector],
                s.job.created.timestamp(),
                s.job.key,
            ),
        )
        reserved: list[tuple[Standing, int]] = []
        for standing in ordered:
            if standing.blocked:
                self._give_up_blocked(standing)
                continue
            places = self._place_waiting(standing)
            gone = self._give_up_unplaced(standing, len(places))
            # With a unit go those of its workers that had a place.
            keep = standing.waiting_surplus
            self._free(standing, places[keep:])
            reserved += [(standing, n) for n in places[:keep]]
            if self.waiting and any(pod.node is not None for pod in gone):
                for other, n in reserved:
                    self._free(other, [n])
                return False
        return True

    def _free(self, standing: Standing, places: list[int]) -> None:
        for n in places:
            self.nodes.give_back(n, standing.shape.vector)
        self.queues.use(standing.job.queue, standing.shape.vector, -len(places))

    def _give_up_blocked(self, standing: Standing) -> None:
        """Surplus of a job that cannot start finds no place either, however young it is."""
        size = standing.floor(min(standing.size, standing.held + standing.headless))
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
        others = [claim.key for claim in self.served if claim.key != standing.job.key]
        if others:
            # Whatever is in the way is a minimum: nobody may compete with it for a place.
            hopeless, reason = without, Reason.SHRUNK_FOR_MINIMUM
        else:
            # Pods that exist get their 30 s; those that don't (evicted, say) are not made again.
            hopeless, reason = min(without, standing.absent_surplus), Reason.SURPLUS_UNPLACED
        size = standing.floor(standing.size - hopeless)
        if size == standing.size:
            return []
        if reason is Reason.SHRUNK_FOR_MINIMUM:
            standing.served.update(dict.fromkeys(others))
        gone = standing.lower(size, reason)
        self._leave(standing, gone)
        return gone

    # Grow

    def _why_not_grow(self, standing: Standing) -> Reason | None:
        """Why this job may not even be offered room; None if it may."""
        job = standing.job
        if standing.size + max(1, job.node_unit) > job.max:
            return Reason.AT_MAX
        if self.queues.closed(job.queue) is not None:
            return Reason.QUEUE_CLOSED
        if job.succeeded:
            return Reason.FINISHING
        if standing.waiting or standing.excess or standing.blocked:
            return Reason.WAITING_FOR_PODS
        if standing.size != job.desired:
            return Reason.COOLING_DOWN
        if job.last_scale is not None:
            cooldown = max(job.cooldown, STABILIZATION)
            if job.last_reason == Reason.SURPLUS_UNPLACED:
                cooldown = max(cooldown, UNPLACED_COOLDOWN)
            if self.now - job.last_scale < cooldown:
                return Reason.COOLING_DOWN
        return None

    # Say

    def _decision(self, standing: Standing) -> Decision | None:
        job = standing.job
        if standing.size == job.desired:
            return None
        reason = standing.reason or Reason.GREW_INTO_IDLE
        if standing.served:
            reason = Reason.SHRUNK_FOR_MINIMUM
        return Decision(
            job=job.key,
            old=job.desired,
            new=standing.size,
            reason=reason,
            message=self._message(standing, reason),
            remove=tuple(pod.key for pod in leave_order(standing.removed)),
        )

    def _message(self, standing: Standing, reason: Reason) -> str:
        job, name = standing.job, names([standing.job.key])
        old, new = job.desired, standing.size
        match reason:
            case Reason.SHRUNK_FOR_MINIMUM:
                helped = [claim for claim in self.served if claim.key in standing.served]
                given = f"{old - new} of its {plural(old - job.min, 'surplus worker')}"
                return f"{self._need(helped, job.key)}; {name} gives back {given}"
            case Reason.SURPLUS_UNPLACED:
                return (
                    f"{plural(old - new, 'surplus worker')} of {name} found no place to run; "
                    f"{name} goes on with {new}"
                )
            case Reason.ROUNDED_TO_UNIT:
                return f"{old} is not a multiple of nodeUnit {job.node_unit}; {name} goes to {new}"
            case Reason.LOWERED_TO_MAX:
                return f"{name} has {plural(old, 'worker')} and may have {job.max} at most"
            case Reason.RAISED_TO_MIN:
                return f"{name} has {plural(old, 'worker')} and needs {job.min} at least"
            case _:
                gpus = amount([(job.pod_requests, new - old)])
                idle = "is idle and nobody waits for it"
                if not gpus.startswith("1 "):
                    idle = "are idle and nobody waits for them"
                return (
                    f"{gpus} {idle}; "
                    f"{name} grows from {old} to {new} of at most {plural(job.max, 'worker')}"
                )

    def _need(self, helped: list[Claim], giver: str) -> str:
        keys = [claim.key for claim in helped]
        spaces = {key.rpartition("/")[0] for key in (*keys, giver)}
        who = names(keys, full=len(spaces) > 1)
        verb = "needs" if len(helped) == 1 else "need"
        listed: list[tuple[Resources, int]] = []
        for claim in helped:
            for shape, count in claim.groups:
                listed.append((dict(zip(self.dimensions.names, shape.vector, strict=True)), count))
        started = all(claim.runs for claim in helped)
        return f"{who} {verb} {amount(listed)} to {'go on' if started else 'start'}"

    def _stay(self, standing: Standing) -> Stay:
        job = standing.job
        more = self._why_not_grow(standing)
        if more is None:
            owed = bool(self.served) and self._held_for_claims(standing)
            more = Reason.ROOM_OWED_TO_MINIMUM if owed else Reason.NO_ROOM
        less = Reason.NOBODY_WAITS
        if standing.size <= job.min:
            less = Reason.AT_MIN
        elif self.served or self.blocked:
            less = Reason.NOT_NEEDED
        return Stay(more, less)

    def _held_for_claims(self, standing: Standing) -> bool:
        """Whether there would be room for this job if idle room were not promised."""
        nodes, shape = self.nodes, standing.shape
        known = self._idle_without_promises.get(shape)
        if known is None:
            known = self._idle_without_promises[shape] = any(
                all(nodes.bases[Room.IDLE][n][i] >= need for i, need in shape.needs)
                for n in nodes.eligible(shape)
            )
        return known
