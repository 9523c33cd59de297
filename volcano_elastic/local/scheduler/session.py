"""One session: a snapshot, what plugins say about it, and what actions have changed so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar

from volcano_elastic.local.scheduler.configuration import Configuration, PluginOption
from volcano_elastic.local.scheduler.effect import Bind, Evict
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.resources import Resources, lacking, minus, plus
from volcano_elastic.local.scheduler.snapshot import (
    HOLDING,
    READY,
    Job,
    Node,
    Queue,
    Snapshot,
    Task,
    TaskStatus,
)

Plugin = Callable[["Session", PluginOption], Functions]
Action = Callable[["Session"], None]
_F = TypeVar("_F")
# Statuses that take room on a node now.
_OCCUPYING = HOLDING | {TaskStatus.RELEASING}


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
        self.total: dict[str, int] = {}
        self.phase = {job.key: job.podgroup.phase for job in snapshot.jobs if job.podgroup}
        self.effects: list[Bind | Evict] = []
        self.reasons: dict[str, str] = {}
        """Pod uid to why it found no place."""
        self.action = ""
        self._actions = configuration.actions
        self._tasks = [task for job in snapshot.jobs for task in job.tasks]
        self._status = {task.uid: task.status for task in self._tasks}
        self._node = {task.uid: task.node for task in self._tasks}
        self._on_node: dict[str, dict[str, Task]] = defaultdict(dict)
        self._idle: dict[str, dict[str, int]] = {}
        self._future: dict[str, dict[str, int]] = {}
        self._job_allocated: dict[str, dict[str, int]] = {key: {} for key in self.jobs}
        self._queue_allocated: dict[str, dict[str, int]] = defaultdict(dict)
        self._open(snapshot)
        # Last, because plugins look at what is above.
        self._tiers = tuple(
            tuple((option, plugins[option.name](self, option)) for option in tier)
            for tier in configuration.tiers
        )

    def _open(self, snapshot: Snapshot) -> None:
        for node in self.nodes.values():
            self.total = plus(self.total, node.allocatable)
            self._idle[node.name] = dict(node.allocatable)
            self._future[node.name] = dict(node.allocatable)
        for task in (*self._tasks, *snapshot.others):
            self._occupy(task, task.status, task.node)

    def _count(self, task: Task, change: Callable[[Resources, Resources], dict[str, int]]) -> None:
        if task.job is None:
            return
        job = self.jobs[task.job]
        self._job_allocated[job.key] = change(self._job_allocated[job.key], task.requests)
        for queue in self.ancestry(job.queue):
            self._queue_allocated[queue] = change(self._queue_allocated[queue], task.requests)

    def _enter(self, task: Task, status: TaskStatus, node: str | None) -> None:
        """Moves a task, and everything that is counted with it."""
        self._leave(task)
        self._status[task.uid], self._node[task.uid] = status, node
        self._occupy(task, status, node)

    def _occupy(self, task: Task, status: TaskStatus, node: str | None) -> None:
        if status in HOLDING or status is TaskStatus.PIPELINED:
            self._count(task, plus)
        if node is None or node not in self._idle:
            return
        if status in _OCCUPYING:
            self._on_node[node][task.uid] = task
            self._idle[node] = minus(self._idle[node], task.requests)
        if status in HOLDING or status is TaskStatus.PIPELINED:
            self._future[node] = minus(self._future[node], task.requests)

    def _leave(self, task: Task) -> None:
        status, node = self._status[task.uid], self._node[task.uid]
        if status in HOLDING or status is TaskStatus.PIPELINED:
            self._count(task, minus)
        if node is None or node not in self._idle:
            return
        if status in _OCCUPYING:
            self._on_node[node].pop(task.uid, None)
            self._idle[node] = plus(self._idle[node], task.requests)
        if status in HOLDING or status is TaskStatus.PIPELINED:
            self._future[node] = plus(self._future[node], task.requests)

    # What is so

    def enqueues(self) -> bool:
        """Whether a job is let in by an action of its own, and not by allocate."""
        return "enqueue" in self._actions

    def ancestry(self, queue: str | None) -> list[str]:
        """The queue, its parent, and so on up to root; a loop among parents ends there."""
        path: list[str] = []
        while queue is not None and queue not in path:
            path.append(queue)
            known = self.queues.get(queue)
            queue = known.parent if known else None
        return path

    def status(self, task: Task) -> TaskStatus:
        return self._status.get(task.uid, task.status)

    def node_of(self, task: Task) -> str | None:
        return self._node.get(task.uid, task.node)

    def idle(self, node: Node) -> Resources:
        return self._idle[node.name]

    def future_idle(self, node: Node) -> Resources:
        """What will be idle once what is leaving has left and what was promised has come."""
        return self._future[node.name]

    def tasks_on(self, node: Node) -> list[Task]:
        return [task for task in self._on_node[node.name].values() if task.job is not None]

    def allocated(self, of: Job | Queue) -> Resources:
        if isinstance(of, Job):
            return self._job_allocated[of.key]
        return self._queue_allocated[of.name]

    def tasks(self, job: Job, statuses: Iterable[TaskStatus]) -> list[Task]:
        wanted = frozenset(statuses)
        return [task for task in job.tasks if self._status[task.uid] in wanted]

    def ready_members(self, job: Job) -> int:
        return len(self.tasks(job, READY))

    def waiting_members(self, job: Job) -> int:
        return len(self.tasks(job, (TaskStatus.PIPELINED,)))

    def pending(self, job: Job) -> list[Task]:
        """What there is to place, in task order."""
        return sorted(self.tasks(job, (TaskStatus.PENDING,)), key=self.task_key)

    def placeable_jobs(self) -> list[Job]:
        """Let in, and able to form their gang."""
        return [
            job
            for job in self.jobs.values()
            if self.phase.get(job.key) != "Pending" and self.job_valid(job) is None
        ]

    # What plugins say

    def _enabled(self, name: str, get: Callable[[Functions], _F | None]) -> list[list[_F]]:
        return [
            [
                function
                for option, functions in tier
                if name not in option.disabled and (function := get(functions)) is not None
            ]
            for tier in self._tiers
        ]

    def _all(self, name: str, get: Callable[[Functions], _F | None]) -> list[_F]:
        return [function for tier in self._enabled(name, get) for function in tier]

    def job_key(self, job: Job) -> tuple[object, ...]:
        orders = self._all("job_order", lambda f: f.job_order)
        return (*(order(job) for order in orders), job.created, job.key)

    def task_key(self, task: Task) -> tuple[object, ...]:
        orders = self._all("task_order", lambda f: f.task_order)
        return (*(o(task) for o in orders), task.index, task.created, task.name, task.uid)

    def queue_key(self, queue: Queue) -> tuple[object, ...]:
        orders = self._all("queue_order", lambda f: f.queue_order)
        return (*(order(queue) for order in orders), queue.created, queue.name)

    def queue_place(self, job: Job) -> tuple[object, ...]:
        queue = self.queues.get(job.queue or "")
        return self.queue_key(queue) if queue else ()

    def predicate(self, task: Task, node: Node) -> str | None:
        for function in self._all("predicate", lambda f: f.predicate):
            if reason := function(task, node):
                return reason
        return None

    def ranked(self, task: Task, nodes: Iterable[Node]) -> list[Node]:
        """Best first; by name among equals."""
        orders = self._all("node_order", lambda f: f.node_order)
        return sorted(nodes, key=lambda n: (-sum(order(task, n) for order in orders), n.name))

    def place(self, task: Task, room: Callable[[Node], Resources]) -> Node | None:
        """The best node with room for the task; `reasons` tells why there is none."""
        found: list[Node] = []
        why: dict[str, int] = defaultdict(int)
        for node in self.nodes.values():
            reason = self.predicate(task, node)
            lacks = [] if reason else lacking(task.requests, room(node))
            if reason:
                why[reason] += 1
            for resource in lacks:
                why["Too many pods" if resource == "pods" else f"Insufficient {resource}"] += 1
            if not reason and not lacks:
                found.append(node)
        if found:
            return self.ranked(task, found)[0]
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
        self.reasons[task.uid] = (
            f"0/{len(self.nodes)} nodes are available: {counted or 'there is no node'}."
        )
        return None

    def job_valid(self, job: Job) -> tuple[str, str] | None:
        if job.refused:
            return "NotEnoughResources", job.refused
        queue = self.queues.get(job.queue) if job.queue else None
        if job.queue and (queue is None or not queue.open):
            state = f"is {queue.state or 'not open yet'}" if queue else "does not exist"
            return "NotEnoughResources", f"queue {job.queue} {state}; it must be Open"
        if queue is not None and queue.refused:
            return "NotEnoughResources", queue.refused
        for function in self._all("job_valid", lambda f: f.job_valid):
            if complaint := function(job):
                return complaint
        return None

    def job_enqueueable(self, job: Job) -> str | None:
        functions = self._all("job_enqueueable", lambda f: f.job_enqueueable)
        return next((why for function in functions if (why := function(job))), None)

    def job_ready(self, job: Job) -> bool:
        return all(f(job) for f in self._all("job_ready", lambda f: f.job_ready))

    def job_pipelined(self, job: Job) -> bool:
        return all(f(job) for f in self._all("job_pipelined", lambda f: f.job_pipelined))

    def job_starving(self, job: Job) -> bool:
        """The first tier that has an opinion decides; within it all must agree."""
        for tier in self._enabled("job_starving", lambda f: f.job_starving):
            if tier:
                return all(function(job) for function in tier)
        return False

    def overused(self, queue: Queue) -> bool:
        return any(f(queue) for f in self._all("overused", lambda f: f.overused))

    def allocatable(self, queue: Queue | None, task: Task) -> bool:
        functions = self._all("allocatable", lambda f: f.allocatable)
        return queue is None or all(function(queue, task) for function in functions)

    def preemptive(self, queue: Queue, task: Task) -> bool:
        functions = self._all("preemptive", lambda f: f.preemptive)
        return all(function(queue, task) for function in functions)

    def victims(
        self, kind: Literal["preemptable", "reclaimable"], claimant: Task, of: Sequence[Task]
    ) -> list[Task]:
        """Whom the claimant may evict, in the order in which they go.

        A tier whose filters leave nobody passes the question on, with the full list, as Volcano
        does. Within a tier this is a plain intersection: Volcano refills an empty one from the next
        plugin, and so can evict whom two plugins refused.
        """
        candidates = self.victim_order(of)
        for tier in self._enabled(kind, lambda f: getattr(f, kind)):
            allowed = [function(claimant, candidates) for function in tier]
            agreed = [v for v in candidates if all(v in listed for listed in allowed)]
            if allowed and agreed:
                return agreed
        return []

    def victim_order(self, tasks: Sequence[Task]) -> list[Task]:
        """The last in queue order, then in job order, then in task order, goes first."""

        def key(task: Task) -> tuple[object, ...]:
            job = self.jobs[task.job or ""]
            return (self.queue_place(job), self.job_key(job), self.task_key(task))

        return sorted(tasks, key=key, reverse=True)


class Statement:
    """Changes that are kept together or undone together."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._undo: list[Callable[[], None]] = []
        self._effects: list[Bind | Evict] = []

    def allocate(self, task: Task, node: Node) -> None:
        self._move(task, TaskStatus.ALLOCATED, node.name)
        self._effects.append(Bind(task, node.name))

    def pipeline(self, task: Task, node: Node) -> None:
        self._move(task, TaskStatus.PIPELINED, node.name)

    def evict(self, task: Task) -> None:
        self._move(task, TaskStatus.RELEASING, self._session.node_of(task))
        self._effects.append(Evict(task, self._session.action))

    def commit(self) -> None:
        self._session.effects += self._effects
        self._undo, self._effects = [], []

    def discard(self) -> None:
        self.roll_back((0, 0))

    def mark(self) -> tuple[int, int]:
        return len(self._undo), len(self._effects)

    def roll_back(self, mark: tuple[int, int]) -> None:
        while len(self._undo) > mark[0]:
            self._undo.pop()()
        del self._effects[mark[1] :]

    def _move(self, task: Task, status: TaskStatus, node: str | None) -> None:
        session = self._session
        before = session.status(task), session.node_of(task)
        session._enter(task, status, node)
        self._undo.append(lambda: session._enter(task, *before))
