"""The snapshot sorted for planning: each job's pods, each gang's, and what they hold of nodes and
queues. Kept from plan to plan: only what has changed is sorted anew.

Values are told apart by identity: a pod that is the same object is the same pod.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import attrgetter

from volcano_elastic.api.queue_policy import Mode, QueuePolicy, effective
from volcano_elastic.api.role import elastic
from volcano_elastic.queue_policy.backlog import Backlog
from volcano_elastic.queue_policy.claims import Claim, gang_claim, job_claim
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.difference import difference
from volcano_elastic.queue_policy.fit import Dimensions, Shape, Vector
from volcano_elastic.queue_policy.lineup import Lineup
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room, leaving
from volcano_elastic.queue_policy.single import Givers
from volcano_elastic.queue_policy.snapshot import Gang, Job, Node, Pod, Resources, Snapshot
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.stays import Settled
from volcano_elastic.queue_policy.terms import Terms

KeyOf = Callable[[Pod], str | None]
Owner = tuple[str, str]
"""("job" or "gang", key)"""
Loose = tuple[Shape, str, str | None]
"""A pod's shape and key, and the queue of its gang; None without one."""


class Inventory:
    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self.now: datetime

    def update(self, snapshot: Snapshot, now: datetime) -> None:
        """Take in `snapshot`, and forget what the last plan did."""
        old, self._snapshot = self._snapshot, snapshot
        with _no_collection():
            if old is None or now < self.now or not self._take(old, snapshot):
                self.now = now
                self._start(snapshot)
            self.now = now
            for key in self._dirty:
                self._stand(key)
            self._dirty.clear()
        for standing in self.lineup.advance(now):
            self.stays.put(standing, self._open(standing), now)
        self.lineup.settle()
        self.givers.settle()
        self.backlog.settle()
        self._let_leave()
        self.queues.begin()
        if snapshot.proportion:
            self.queues.share_by_weight(self._wishes())

    def policy(self, queue: str) -> QueuePolicy:
        return self.terms.policy(queue)

    def shape_of(self, pod: Pod) -> Shape:
        return self.dimensions.shape(
            pod.requests, pod.node_selector, pod.tolerations, pod.node_affinity
        )

    # What changes seldom

    def _take(self, old: Snapshot, new: Snapshot) -> bool:
        """Take in the difference; False, and nothing taken, if queues or policies differ, or new
        resources are named."""
        if (
            old.queues != new.queues
            or old.policies != new.policies
            or old.proportion != new.proportion
            or self.nodes.crowded
        ):
            return False
        gone, come = difference(old.pods, new.pods)
        left, arrived = difference(old.jobs, new.jobs)
        lost, found = difference(old.nodes, new.nodes)
        if not self.dimensions.know(_named(found, arrived, new.gangs, come)):
            return False
        self.nodes.begin()
        for key in self.touched | self.restless:
            self.standings[key].restore()
        self.touched.clear()
        if lost or found:
            self._take_nodes(lost, found)
        self._take_jobs(left, arrived)
        if left or arrived or new.gangs is not old.gangs:
            self._take_gangs(new.gangs)
        self._take_pods(gone, come)
        return True

    def _take_nodes(self, lost: Sequence[Node], found: Sequence[Node]) -> None:
        before = self.nodes.everything()
        reshaped = self.nodes.change(lost, found)
        if reshaped:
            # Their steps are aligned to nodes of another size now.
            again = (key for key, s in self.standings.items() if s.shape in reshaped)
            self._dirty.update(dict.fromkeys(again))
        if self.nodes.everything() != before:
            self.queues.offer(self.nodes.everything())

    def _start(self, snapshot: Snapshot) -> None:
        asked = _named(snapshot.nodes, snapshot.jobs, snapshot.gangs, snapshot.pods)
        self.dimensions = Dimensions(asked)
        self.nodes = NodeRoom(snapshot.nodes, self.dimensions)
        policies = effective(snapshot.policies)
        self.queues = QueueRoom(
            snapshot.queues, self.dimensions.names, self.nodes.everything(), policies
        )
        self._jobs: dict[str, Job] = {}
        self.everybody: frozenset[str] = frozenset()
        """Keys of all jobs."""
        self.stays = Settled()
        """Of calm elastic jobs, as far as they depend on the job alone."""
        self.jobs_in: Counter[str] = Counter()
        """By queue."""
        self.surplus_in: Counter[str] = Counter()
        """By queue, what pods beyond minimums hold, in the policy's resource."""
        self._counted: dict[str, tuple[str, int]] = {}
        self.standings: dict[str, Standing] = {}
        self.lineup = Lineup()
        self.givers = Givers()
        self.touched: set[str] = set()
        self.terms = Terms(policies, self.nodes, self.dimensions, self.standings, self.touched)
        self.restless: set[str] = set()
        """Keys of jobs that are neither whole nor in the backlog: only they can have another claim
        than in the last plan, or want something put right."""
        self.backlog = Backlog()
        self.started: dict[str, Claim] = {}
        """By key of the gang, claims of others' gangs that have started and lack some pods."""
        self.loose: dict[str, list[Loose]] = {}
        """By key of the gang, waiting pods that are nobody's claim, of others' gangs and of nobody
        we know."""
        self.gangs: dict[str, Gang] = {}
        self._of_job: dict[str, list[Pod]] = {}
        self._of_others: dict[str, list[Pod]] = {}
        """By the key of the gang, "" without one: few."""
        self._held: dict[Owner, tuple[str, Mapping[Vector, int]]] = {}
        """What whose pods add to which queue."""
        self._departing: dict[int, tuple[Pod, bool]] = {}
        """Terminating pods with a node, and whether their room counts as coming now."""
        self._dirty: dict[str, None] = {}
        """Keys of jobs to sort anew, in the snapshot's order: their pods lie side by side."""
        self.rebalanced: dict[str, dict[str, datetime]] = {}
        """By queue, the jobs last changed by rebalancing, and when."""
        self._take_jobs((), snapshot.jobs)
        self._take_gangs(snapshot.gangs)
        self._take_pods((), snapshot.pods)

    # What changes often

    def _take_jobs(self, left: Sequence[Job], arrived: Sequence[Job]) -> None:
        found = {job.key: job for job in arrived}
        for job in left:
            if job.key not in found:
                self._drop(job.key)
        self._jobs |= found
        self._dirty.update(dict.fromkeys(found))
        if len(self._jobs) != len(self.everybody) or not found.keys() <= self.everybody:
            self.everybody = frozenset(self._jobs)

    def _take_gangs(self, gangs: tuple[Gang, ...]) -> None:
        found = {gang.key: gang for gang in gangs if gang.key not in self._jobs}
        if found == self.gangs:
            return
        changed = {
            key for key in self.gangs.keys() | found if self.gangs.get(key) != found.get(key)
        }
        self.gangs = found
        for key in changed:
            self._hold_gang(key)

    def _take_pods(self, gone: Sequence[Pod], come: Sequence[Pod]) -> None:
        jobs = _sort(gone, come, self._of_job, attrgetter("job"))
        self._dirty.update(dict.fromkeys(jobs & self._jobs.keys()))
        left = [pod for pod in gone if pod.job is None]
        others = [pod for pod in come if pod.job is None]
        for gang in _sort(left, others, self._of_others, lambda pod: pod.gang or ""):
            self._hold_gang(gang)
        self._occupy(gone, -1)
        self._occupy(come, 1)

    def _occupy(self, pods: Iterable[Pod], sign: int) -> None:
        places: dict[Vector, list[str]] = {}
        names: list[str] = []
        last: Resources | None = None
        for pod in pods:
            if pod.node is None:
                continue
            if pod.requests != last:
                # Mostly those of the pod before.
                last = pod.requests
                names = places.setdefault(self.dimensions.request(last), [])
            names.append(pod.node)
            if pod.terminating:
                if sign > 0:
                    self._departing[id(pod)] = (pod, False)
                elif self._departing.pop(id(pod), (pod, False))[1]:
                    self._come(pod, -1)
        for vector, names in places.items():
            for name, times in Counter(names).items():
                self.nodes.occupy(Room.IDLE, name, vector, times * sign)
                self.nodes.occupy(Room.COMING, name, vector, times * sign)

    def _let_leave(self) -> None:
        """Time alone decides when a leaving pod's room doesn't count as coming any more."""
        for key, (pod, counted) in list(self._departing.items()):
            counts = leaving(pod, self.now)
            if counts != counted:
                self._come(pod, 1 if counts else -1)
                self._departing[key] = (pod, counts)

    def _come(self, pod: Pod, sign: int) -> None:
        if pod.node is not None:
            self.nodes.occupy(Room.COMING, pod.node, self._vector(pod), -sign)

    def _hold_gang(self, key: str) -> None:
        """Bring up to date what others' pods of this gang hold, and what they wait for."""
        gang = self.gangs.get(key)
        if key not in self._jobs:
            self.backlog.remove(key)
        self.started.pop(key, None)
        self.loose.pop(key, None)
        alive = [pod for pod in self._of_others.get(key, ()) if not pod.terminating]
        if gang is None:
            self._hold(("gang", key), "", {})
        else:
            bound = [pod for pod in alive if pod.node is not None]
            self._hold(("gang", key), gang.queue, Counter(map(self._vector, bound)))
            claim = gang_claim(gang, alive, self.dimensions)
            if claim is not None:
                if claim.runs:
                    self.started[key] = claim
                else:
                    self.backlog.put(claim)
                return
        queue = None if gang is None else gang.queue
        loose = [(self.shape_of(pod), pod.key, queue) for pod in alive if pod.node is None]
        if loose:
            self.loose[key] = loose

    def _vector(self, pod: Pod) -> Vector:
        return self.dimensions.request(pod.requests)

    def _hold(self, owner: Owner, queue: str, held: Mapping[Vector, int]) -> None:
        """Note how many pods of which size a job or gang has in its queue, and no others."""
        before = self._held.pop(owner, None)
        if before is not None:
            for vector, times in before[1].items():
                self.queues.hold(before[0], vector, -times)
        for vector, times in held.items():
            self.queues.hold(queue, vector, times)
        if held:
            self._held[owner] = (queue, held)

    def _drop(self, key: str) -> None:
        standing = self.standings.pop(key, None)
        self._count(key, None)
        self.stays.remove(key)
        self._jobs.pop(key, None)
        self._dirty.pop(key, None)
        self.restless.discard(key)
        self.lineup.remove(key)
        self.givers.remove(key)
        self.backlog.remove(key)
        self._hold(("job", key), "", {})
        if standing is not None:
            self.rebalanced.get(standing.job.queue, {}).pop(key, None)

    def _stand(self, key: str) -> None:
        """Sort one job's pods."""
        job, old = self._jobs[key], self.standings.get(key)
        if old is not None:
            self.rebalanced.get(old.job.queue, {}).pop(key, None)
        if job.last_reason == Reason.REBALANCED and job.last_scale is not None:
            self.rebalanced.setdefault(job.queue, {})[key] = job.last_scale
        standing = self.standings[key] = self.terms.standing(job)
        bound, unbound, counted = standing.bound, standing.unbound, elastic().name
        masters: list[Pod] = []
        for pod in self._of_job.get(key, ()):
            if pod.terminating:
                if pod.node is not None:
                    standing.departing = True
            elif pod.role != counted:
                if pod.node is not None:
                    standing.master_bound = True
                    masters.append(pod)
            elif pod.node is not None:
                bound[pod.key] = pod
            else:
                unbound[pod.key] = pod
        # Mostly all that hold room ask for the same, which is quicker seen than counted.
        usual = job.pod_requests
        rest = [pod for pod in bound.values() if pod.requests != usual]
        held = {standing.shape.vector: len(bound) - len(rest)}
        for pod in (*rest, *masters):
            vector = self._vector(pod)
            held[vector] = held.get(vector, 0) + 1
        self._hold(("job", key), job.queue, held)
        extra = standing.existing - job.desired
        if extra > 0:
            standing.excess = standing.drop(extra)
            standing.removed.clear()
        self._count(key, standing)
        if old is not None:
            self.lineup.remove(key)
            self.givers.remove(key)
        self.backlog.remove(key)
        self.restless.discard(key)
        is_open = self._open(standing)
        if not standing.whole:
            claim = job_claim(standing, self.dimensions) if standing.unstarted else None
            if claim is not None:
                self.backlog.put(claim)
                self.stays.put_unstarted(standing, is_open, self.now)
            else:
                self.stays.remove(key)
                self.restless.add(key)
            return
        self.stays.put(standing, is_open, self.now)
        rests = job.unmodelled or job.succeeded or standing.departing
        moves = standing.policy.mode is Mode.ACTIVE and not rests
        gives = moves and job.scaler == "volcano"
        self.lineup.put(standing, self.now, takes=moves and is_open, gives=gives)
        self.givers.put(standing)

    def _open(self, standing: Standing) -> bool:
        return self.queues.closed(standing.job.queue) is None

    def _count(self, key: str, standing: Standing | None) -> None:
        before = self._counted.pop(key, None)
        if before is not None:
            self.jobs_in[before[0]] -= 1
            self.surplus_in[before[0]] -= before[1]
        if standing is not None:
            job = standing.job
            beyond = max(0, len(standing.bound) + len(standing.excess) - job.min)
            surplus = beyond * job.pod_requests.get(standing.policy.resource, 0)
            self._counted[key] = (job.queue, surplus)
            self.jobs_in[job.queue] += 1
            self.surplus_in[job.queue] += surplus

    # What is asked

    def last_rebalance(self, queue: str) -> datetime | None:
        return max(self.rebalanced.get(queue, {}).values(), default=None)

    def _wishes(self) -> Mapping[str, list[int]]:
        """What every queue holds and would take, were there room."""
        wishes = {name: list(used) for name, used in self.queues.used.items()}

        def add(queue: str, vector: Vector, times: int) -> None:
            wish = wishes.get(queue)
            if wish is not None and times > 0:
                for i, amount in enumerate(vector):
                    wish[i] += amount * times

        for standing in self.standings.values():
            job = standing.job
            more = standing.cap - job.succeeded - len(standing.bound)
            add(job.queue, standing.shape.vector, more)
            if job.master_requests is not None and not standing.master_bound:
                add(job.queue, self.dimensions.request(job.master_requests), 1)
        for key, gang in self.gangs.items():
            pods = self._of_others.get(key, ())
            for pod in pods:
                if pod.node is None and not pod.terminating:
                    add(gang.queue, self.dimensions.request(pod.requests), 1)
            if gang.pod_requests is not None:
                vector = self.dimensions.request(gang.pod_requests)
                add(gang.queue, vector, gang.min_member - gang.succeeded - len(pods))
        return wishes


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing that is sorted becomes garbage before the next plan; to look for some meanwhile takes
    a quarter of a first plan's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _sort(
    gone: Iterable[Pod], come: Iterable[Pod], groups: dict[str, list[Pod]], key: KeyOf
) -> set[str]:
    """Bring `groups` up to date; the keys of those that have changed. None is no key."""
    changed: set[str] = set()
    left: dict[str, set[int]] = {}
    for pod in gone:
        found = key(pod)
        if found is not None:
            left.setdefault(found, set()).add(id(pod))
    for found, ids in left.items():
        groups[found] = [pod for pod in groups[found] if id(pod) not in ids]
    for pod in come:
        found = key(pod)
        if found is not None:
            if found not in changed:
                changed.add(found)
                groups.setdefault(found, [])
            groups[found].append(pod)
    for found in left:
        if not groups[found]:
            del groups[found]
    return changed | left.keys()


def _named(
    nodes: Iterable[Node], jobs: Iterable[Job], gangs: Iterable[Gang], pods: Iterable[Pod]
) -> Iterable[Resources]:
    """All mappings that may name a resource: what nodes offer, and what pods on their way ask."""
    yield from (node.allocatable for node in nodes)
    for job in jobs:
        yield job.pod_requests
        if job.master_requests is not None:
            yield job.master_requests
    yield from (gang.pod_requests for gang in gangs if gang.pod_requests is not None)
    yield from (pod.requests for pod in pods if pod.node is None)
