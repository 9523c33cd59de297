"""One session: a snapshot, what plugins say about it, and what actions have changed so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Literal

from embedded_cluster.scheduler.effect import Bind, Evict
from embedded_cluster.scheduler.functions import SWITCHES, Functions, Points
from embedded_cluster.scheduler.ranking import Ranking
from embedded_cluster.scheduler.resources import Resources, add
from embedded_cluster.scheduler.snapshot import (
    HOLDING,
    READY,
    Job,
    Node,
    Queue,
    Snapshot,
    Task,
    TaskStatus,
)
from volcano_elastic.scheduler_conf.configuration import Configuration, PluginOption

Plugin = Callable[["Session", PluginOption], Functions]
Action = Callable[["Session"], None]
# Statuses that take room on a node now.
_OCCUPYING = HOLDING | {TaskStatus.RELEASING}
# Statuses that job, queue and the node's future count.
_COUNTED = HOLDING | {TaskStatus.PIPELINED}


class Session:
    """Plugins and actions read the snapshot and the session's own view of it (`status`, `idle`,
    `allocated`); only a Statement changes that view."""

    def __init__(
        self,
        snapshot: Snapshot,
        configuration: Configuration,
        plugins: Mapping[str, Plugin],
        now: datetime,
    ) -> None:
        self.now = now
        self.nodes = {node.name: node for node in sorted(snapshot.nodes, key=lambda n: n.name)}
        self.queues = {queue.name: queue for queue in snapshot.queues}
        self.jobs = {job.key: job for job in sorted(snapshot.jobs, key=lambda j: j.key)}
        self.total: dict[str, float] = {}
        self.phase = {job.key: job.podgroup.phase for job in snapshot.jobs if job.podgroup}
        self.effects: list[Bind | Evict] = []
        self.reasons: dict[str, str] = {}
        """Why: of a pod's uid, it found no place; of a job's key, it was not let in."""
        self.nominated: dict[str, str] = {}
        """Pod uid to the node on which others were evicted for it."""
        self.touched: list[str] = []
        """Names of nodes, each time that what they hold changes."""
        self.action = ""
        self.enqueues = configuration.action("enqueue") is not None
        """True if a job is let in by an action of its own, and not by allocate."""
        self._status: dict[str, TaskStatus] = {}
        self._node: dict[str, str | None] = {}
        self._on_node: dict[str, dict[str, Task]] = defaultdict(dict)
        self._idle: dict[str, dict[str, float]] = {}
        self._future: dict[str, dict[str, float]] = {}
        self._counts: dict[str, Counter[TaskStatus]] = {key: Counter() for key in self.jobs}
        self._job_allocated: dict[str, dict[str, float]] = {key: {} for key in self.jobs}
        self._queue_allocated: dict[str, dict[str, float]] = defaultdict(dict)
        self._rankings: dict[str, Ranking] = {}
        self._ancestry: dict[str | None, list[str]] = {}
        self._functions: dict[str, list[list[Any]]] = {}
        for node in self.nodes.values():
            add(self.total, node.allocatable)
            self._idle[node.name] = dict(node.allocatable)
            self._future[node.name] = dict(node.allocatable)
        for task in (*(t for job in self.jobs.values() for t in job.tasks), *snapshot.others):
            self._status[task.uid], self._node[task.uid] = task.status, task.node
            self._count(task, 1)
        # Last, because plugins look at what is above.
        self._tiers = tuple(
            tuple((option, plugins[option.name](self, option)) for option in tier)
            for tier in configuration.tiers
        )
        # What plugins agree on, or object to; of what, Functions says.
        self.job_ready: Callable[[Job], bool] = self._agree("job_ready")
        self.job_pipelined: Callable[[Job], bool] = self._agree("job_pipelined")
        self.preemptive: Callable[[Queue, Task], bool] = self._agree("preemptive")
        self.predicate: Callable[[Task, Node], str | None] = self._objection("predicate")
        self.not_allocatable: Callable[[Queue, Task], str | None] = self._objection("allocatable")
        self._job_invalid: Callable[[Job], str | None] = self._objection("job_valid")

    def _enter(self, task: Task, status: TaskStatus, node: str | None) -> None:
        """Moves a task, and everything that is counted with it."""
        self._count(task, -1)
        self._status[task.uid], self._node[task.uid] = status, node
        self._count(task, 1)

    def _count(self, task: Task, times: Literal[1, -1]) -> None:
        status, name = self._status[task.uid], self._node[task.uid]
        if task.job is not None:
            self._counts[task.job][status] += times
            if status in _COUNTED:
                add(self._job_allocated[task.job], task.requests, times)
                for queue in self.ancestry(self.jobs[task.job].queue):
                    add(self._queue_allocated[queue], task.requests, times)
        if name is None or name not in self._idle:
            return
        if status in _OCCUPYING:
            add(self._idle[name], task.requests, -times)
            if times > 0:
                self._on_node[name][task.uid] = task
            else:
                self._on_node[name].pop(task.uid, None)
        if status in _COUNTED:
            add(self._future[name], task.requests, -times)
        self.touched.append(name)

    # What is so

    def ancestry(self, queue: str | None) -> list[str]:
        """The queue, its parent, and so on up to root; a loop among parents ends there."""
        if queue not in self._ancestry:
            path: list[str] = []
            name = queue
            while name is not None and name not in path:
                path.append(name)
                known = self.queues.get(name)
                name = known.parent if known else None
            self._ancestry[queue] = path
        return self._ancestry[queue]

    def job_of(self, task: Task) -> Job:
        return self.jobs[task.job or ""]

    def queue_of(self, task: Task) -> Queue:
        return self.queues[self.job_of(task).queue or ""]

    def status(self, task: Task) -> TaskStatus:
        return self._status[task.uid]

    def node_of(self, task: Task) -> str | None:
        return self._node[task.uid]

    def idle(self, node: Node) -> Resources:
        return self._idle[node.name]

    def future_idle(self, node: Node) -> Resources:
        """Return the room that is idle once leaving pods have left and promised ones have come."""
        return self._future[node.name]

    def tasks_on(self, node: Node) -> list[Task]:
        return [task for task in self._on_node[node.name].values() if task.job is not None]

    def allocated(self, of: Job | Queue) -> Resources:
        if isinstance(of, Job):
            return self._job_allocated[of.key]
        return self._queue_allocated[of.name]

    def count(self, job: Job, *statuses: TaskStatus) -> int:
        counts = self._counts[job.key]
        return sum(counts[status] for status in statuses)

    def tasks(self, job: Job, *statuses: TaskStatus) -> list[Task]:
        if not self.count(job, *statuses):
            return []
        return [task for task in job.tasks if self._status[task.uid] in statuses]

    def ready_members(self, job: Job) -> int:
        return self.count(job, *READY)

    def backfillable(self, job: Job) -> int:
        """Pending pods that ask for nothing: they don't keep their gang waiting."""
        return sum(task.best_effort for task in self.tasks(job, TaskStatus.PENDING))

    def is_ready(self, job: Job) -> bool:
        return self.ready_members(job) + self.backfillable(job) >= job.min_member

    def pending(self, job: Job) -> list[Task]:
        """Return the tasks to place, in task order."""
        return sorted(self.tasks(job, TaskStatus.PENDING), key=self.task_key)

    def jobs_to_place(self) -> list[Job]:
        """Let in, able to form their gang, and with pods that wait."""
        return [
            job
            for job in self.jobs.values()
            if self.count(job, TaskStatus.PENDING)
            and self.phase.get(job.key) != "Pending"
            and self.unschedulable_reason(job) is None
        ]

    def unschedulable_reason(self, job: Job) -> str | None:
        """Why no pod of the job can be placed, whatever room there is."""
        queue = self.queues.get(job.queue) if job.queue else None
        if job.refused or (queue and queue.refused):
            return job.refused or (queue.refused if queue else None)
        if job.queue and queue is None:
            return f"queue {job.queue} does not exist"
        if queue is not None and not queue.open:
            return f"queue {queue.name} is {queue.state or 'not open yet'}; it must be Open"
        return self._job_invalid(job)

    def has(self, plugin: str) -> bool:
        return any(option.name == plugin for tier in self._tiers for option, _ in tier)

    # Where a task may go

    def ranking(self, task: Task) -> Ranking:
        if task.shape not in self._rankings:
            self._rankings[task.shape] = Ranking(self, task)
        return self._rankings[task.shape]

    def points(self, task: Task) -> list[Points]:
        return [make(task) for make in self._all("node_order")]

    # What plugins say

    def _in_tiers(self, name: str) -> list[list[Any]]:
        """The functions of that name in Functions, where they are switched on."""
        if name not in self._functions:
            self._functions[name] = [
                [
                    function
                    for option, functions in tier
                    if (function := getattr(functions, name))
                    and (name not in SWITCHES or option.on(SWITCHES[name]))
                ]
                for tier in self._tiers
            ]
        return self._functions[name]

    def _all(self, name: str) -> Iterator[Any]:
        return chain.from_iterable(self._in_tiers(name))

    def job_key(self, job: Job) -> tuple[object, ...]:
        return (*(order(job) for order in self._all("job_order")), job.created, job.key)

    def task_key(self, task: Task) -> tuple[object, ...]:
        orders = (order(task) for order in self._all("task_order"))
        return (*orders, task.index, task.created, task.name, task.uid)

    def queue_key(self, queue: Queue) -> tuple[object, ...]:
        return (*(order(queue) for order in self._all("queue_order")), queue.created, queue.name)

    def job_enqueueable(self, job: Job) -> str | None:
        """Why the job may not come in. A tier that permits is not overruled by one below."""
        for tier in self._in_tiers("job_enqueueable"):
            for function in tier:
                if why := function(job):
                    return str(why)
            if tier:
                return None
        return None

    def _agree(self, name: str) -> Callable[..., bool]:
        functions = list(self._all(name))
        return lambda *of: all(function(*of) for function in functions)

    def _objection(self, name: str) -> Callable[..., str | None]:
        functions = list(self._all(name))
        return lambda *of: next((why for function in functions if (why := function(*of))), None)

    def job_starving(self, job: Job) -> bool:
        """The first tier that has an opinion decides; within it all must agree."""
        for tier in self._in_tiers("job_starving"):
            if tier:
                return all(function(job) for function in tier)
        return False

    def overused(self, queue: Queue) -> bool:
        return any(function(queue) for function in self._all("overused"))

    def victims(
        self, kind: Literal["preemptable", "reclaimable"], claimant: Task, of: Sequence[Task]
    ) -> list[Task]:
        """Return the pods that the claimant may evict, in the order in which they go.

        As in Volcano, a tier whose filters leave nobody passes the question on, with the full list;
        and within a tier, a filter after which nobody is left is forgotten by the next one.
        """
        candidates = self._victim_order(claimant, of)
        for tier in self._in_tiers(kind):
            victims: list[Task] = []
            for function in tier:
                allowed = function(claimant, candidates)
                if not allowed:
                    victims = []
                    break
                victims = [v for v in victims if v in allowed] if victims else allowed
            if victims:
                return victims
        return []

    def _victim_order(self, claimant: Task, tasks: Sequence[Task]) -> list[Task]:
        """The last in queue order, then in job order, then in task order, goes first; before all,
        whom a plugin wants to go first by its queue and the claimant's."""
        mine = self.queue_of(claimant)
        keys: dict[str | None, tuple[object, ...]] = {}

        def key(task: Task) -> tuple[object, ...]:
            if task.job not in keys:
                job = self.job_of(task)
                queue = self.queue_of(task)
                first = [-order(queue, mine) for order in self._all("victim_queue_order")]
                keys[task.job] = (*first, self.queue_key(queue), self.job_key(job))
            return (*keys[task.job], self.task_key(task))

        return sorted(tasks, key=key, reverse=True)


class Statement:
    """Changes that are kept together or undone together."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._undo: list[tuple[Task, TaskStatus, str | None]] = []
        self._effects: list[Bind | Evict] = []
        self._nominated: dict[str, str] = {}

    def allocate(self, task: Task, node: Node) -> None:
        self._move(task, TaskStatus.ALLOCATED, node.name)
        self._effects.append(Bind(task, node.name))

    def pipeline(self, task: Task, node: Node) -> None:
        """Promise the node to the task; by name too, if this statement evicted others for it."""
        self._move(task, TaskStatus.PIPELINED, node.name)
        if self._effects:
            self._nominated[task.uid] = node.name

    def evict(self, task: Task) -> None:
        self._move(task, TaskStatus.RELEASING, self.session.node_of(task))
        self._effects.append(Evict(task, self.session.action))

    def commit(self) -> None:
        self.session.effects += self._effects
        self.session.nominated |= self._nominated
        self._undo, self._effects, self._nominated = [], [], {}

    def merge(self, other: Statement) -> None:
        self._undo += other._undo
        self._effects += other._effects
        self._nominated |= other._nominated

    def discard(self) -> None:
        while self._undo:
            self.session._enter(*self._undo.pop())
        self._effects, self._nominated = [], {}

    def _move(self, task: Task, status: TaskStatus, node: str | None) -> None:
        session = self.session
        self._undo.append((task, session.status(task), session.node_of(task)))
        session._enter(task, status, node)
