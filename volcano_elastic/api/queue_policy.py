"""A typed view of the QueuePolicy custom resource, with its defaults.

One policy governs one Volcano queue; every field is optional, and a queue without a policy gets
`QueuePolicy(queue=...)`, all defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from volcano_elastic import assets
from volcano_elastic.api import moment
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.brain_mode import BrainMode
from volcano_elastic.api.field_reader import FieldReader
from volcano_elastic.api.problem import Problem

GPU = "nvidia.com/gpu"
_LONG_AGO = datetime.fromtimestamp(0, UTC)


class Mode(StrEnum):
    ACTIVE = "Active"
    DRY_RUN = "DryRun"
    """Decisions are made and shown, but not carried out."""
    HOLD = "Hold"
    """No change of size but for claims."""
    HOLD_AND_DRAIN = "HoldAndDrain"
    """Back to minimums, and no growth."""
    OFF = "Off"
    """Nothing at all; newcomers' pods don't wait for a plan."""


class Order(StrEnum):
    """Says which jobs get the surplus first."""

    EFFICIENCY = "Efficiency"
    EQUAL = "Equal"
    PRIORITY = "Priority"


class Step(StrEnum):
    NODE_ALIGNED = "NodeAligned"
    ANY = "Any"


class ForOtherQueues(StrEnum):
    """Says how much of a queue's surplus the claims of other queues may take."""

    ANY = "Any"
    BORROWED = "Borrowed"
    """Only what the queue holds beyond the larger of its deserved and its guarantee."""


class ForPods(StrEnum):
    """Says which pods surplus leaves for, beside those of jobs' and gangs' minimums."""

    NOT_LOWER = "NotLowerPriority"
    """Those whose priority is no lower than the job's."""
    HIGHER = "HigherPriority"
    NONE = "None"


class LeaveNodes(StrEnum):
    """Says when jobs leave a node that still works."""

    ON_SIGNAL = "OnSignal"
    """When it shows a sign of `node_signal`, or has failed the job."""
    NEVER = "Never"
    """Signs are ignored."""


class Cordon(StrEnum):
    """Says which nodes the operator cordons."""

    NEVER = "Never"
    EXCLUDED = "Excluded"
    """Those that a job keeps away from."""


class Stragglers(StrEnum):
    """The action on a worker that slows its job down."""

    REPORT = "Report"
    REBALANCE = "Rebalance"
    """Its ranks take fewer samples of each step."""
    REPLACE = "Replace"
    """The job keeps away from its node for a while, as from one whose hardware failed it."""


class Diverged(StrEnum):
    """The action on a worker whose state differs from most ranks', beside taking theirs."""

    REPORT = "Report"
    REPLACE = "Replace"
    """The job keeps away from its node for a while, as from one whose hardware failed it."""


@dataclass(frozen=True, slots=True)
class Surplus:
    order: Order = Order.EFFICIENCY
    min_efficiency: float = 0.5
    """Speed on so many GPUs over their number times the speed of one; below it no job grows."""
    step: Step = Step.NODE_ALIGNED
    max_per_job: int | None = None
    """Units of `resource` that one job may hold beyond its minimum."""
    young_gpu_hours: float = 16.0
    """A job that has used less than this is young; 0: no job is."""
    young_weight: float = 8.0
    """The first factor of a job's gain; falls evenly to 1 while the job is young."""


@dataclass(frozen=True, slots=True)
class Grow:
    cooldown: timedelta | None = None
    """None: as `cluster_state.job_state.cooldown` works it out from what a resize costs the job."""
    stabilization: timedelta = timedelta(seconds=1)
    max_step: int | None = None
    """Workers one decision may add."""


@dataclass(frozen=True, slots=True)
class Shrink:
    grace: timedelta = timedelta(seconds=30)
    """Time for a leaving surplus pod to finish its step, unless its template asks for less."""
    protect: timedelta = timedelta(0)
    """Surplus younger than this isn't taken, by us or by Volcano's cdp plugin."""
    for_other_queues: ForOtherQueues = ForOtherQueues.ANY
    for_pods: ForPods = ForPods.NOT_LOWER


@dataclass(frozen=True, slots=True)
class Rebalance:
    gap: float = 1.5
    """Gain over loss from which GPUs move between jobs; 0 turns rebalancing off."""
    cooldown: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Headroom:
    """The room that growth leaves idle: a number or a percentage, one of the two at most."""

    amount: int | None = None
    """Milli-units of `resource`."""
    percent: float | None = None
    """Share of what the queue may hold."""


@dataclass(frozen=True, slots=True)
class Nodes:
    leave: LeaveNodes = LeaveNodes.ON_SIGNAL
    exclude_for: timedelta = timedelta(minutes=30)
    """How long a job stays away from a node whose hardware failed it; 0: not at all."""
    cordon: Cordon = Cordon.NEVER
    stragglers: Stragglers = Stragglers.REPORT
    diverged: Diverged = Diverged.REPORT


@dataclass(frozen=True, slots=True)
class Brain:
    mode: BrainMode | None = None
    """The mode of jobs whose annotation says none; None: as Brain is started."""
    most_memory: Bytes | None = None
    """The most that a pod is given after it ran out; None: as much as a node has."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    queue: str
    name: str = ""
    """Empty for the defaults of a queue without a policy."""
    created: datetime = _LONG_AGO
    resource: str = GPU
    """Unit of surplus, headroom and steps; cpu where a pod requests none of it."""
    mode: Mode = Mode.ACTIVE
    surplus: Surplus = field(default_factory=Surplus)
    grow: Grow = field(default_factory=Grow)
    shrink: Shrink = field(default_factory=Shrink)
    rebalance: Rebalance = field(default_factory=Rebalance)
    borrowing_limit: int | None = None
    """Milli-units of `resource` beyond its deserved that the queue may hold, minimums included."""
    headroom: Headroom = field(default_factory=Headroom)
    nodes: Nodes = field(default_factory=Nodes)
    brain: Brain = field(default_factory=Brain)


class InvalidPolicy(ValueError):
    """A policy that cannot be applied; says which fields, and what would be right."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def effective(policies: Iterable[QueuePolicy]) -> dict[str, QueuePolicy]:
    """The one policy of each queue: of several the oldest, then the first by name."""
    found: dict[str, QueuePolicy] = {}
    for policy in sorted(policies, key=lambda policy: (policy.created, policy.name)):
        found.setdefault(policy.queue, policy)
    return found


def parse(obj: Mapping[str, Any], *, strict: bool = False) -> QueuePolicy:
    """The policy in `obj` with every default filled in.

    Args:
        strict: fields that don't exist are wrong too, as kubectl has it; for files that no API
            server has seen.

    Raises:
        InvalidPolicy: some field makes no sense.
    """
    reader = FieldReader(obj.get("spec"), assets.schema(assets.QUEUEPOLICIES, "spec"))
    surplus, grow, shrink = reader.part("surplus"), reader.part("grow"), reader.part("shrink")
    young, rebalance = surplus.part("young"), reader.part("rebalance")
    borrowing, headroom = reader.part("borrowing"), reader.part("headroom")
    nodes, brain = reader.part("nodes"), reader.part("brain")
    most_memory = brain.amount("mostMemory")
    meta = obj.get("metadata") or {}
    policy = QueuePolicy(
        queue=reader.text("queue", "name a Volcano queue"),
        name=meta.get("name", ""),
        created=moment.parse_optional(meta.get("creationTimestamp")) or _LONG_AGO,
        resource=reader.text("resource", f"name a resource, such as {GPU} or cpu"),
        mode=reader.word("mode", Mode),
        surplus=Surplus(
            order=surplus.word("order", Order),
            min_efficiency=surplus.number("minEfficiency"),
            step=surplus.word("step", Step),
            max_per_job=surplus.integer("maxPerJob"),
            young_gpu_hours=young.number("gpuHours"),
            young_weight=young.number("weight"),
        ),
        grow=Grow(
            cooldown=grow.optional_seconds("cooldownSeconds"),
            stabilization=grow.seconds("stabilizationSeconds"),
            max_step=grow.integer("maxStep"),
        ),
        shrink=Shrink(
            grace=shrink.seconds("graceSeconds"),
            protect=shrink.seconds("protectSeconds"),
            for_other_queues=shrink.word("forOtherQueues", ForOtherQueues),
            for_pods=shrink.word("forPods", ForPods),
        ),
        rebalance=Rebalance(
            gap=rebalance.number("gap"),
            cooldown=rebalance.seconds("cooldownSeconds"),
        ),
        borrowing_limit=borrowing.amount("limit"),
        headroom=Headroom(
            amount=headroom.amount("amount"),
            percent=headroom.optional_number("percent"),
        ),
        nodes=Nodes(
            leave=nodes.word("leave", LeaveNodes),
            exclude_for=nodes.seconds("excludeSeconds"),
            cordon=nodes.word("cordon", Cordon),
            stragglers=nodes.word("stragglers", Stragglers),
            diverged=nodes.word("diverged", Diverged),
        ),
        brain=Brain(
            mode=brain.optional_word("mode", BrainMode),
            most_memory=None if most_memory is None else Bytes(most_memory // 1000),
        ),
    )
    problems = reader.problems
    problems += reader.unknown() if strict else ()
    if 0 < policy.rebalance.gap < 1:
        found = f"must be 0 (off) or at least 1, found {policy.rebalance.gap:g}"
        problems.append(Problem("spec.rebalance.gap", found))
    if policy.headroom.amount is not None and policy.headroom.percent is not None:
        problems.append(Problem("spec.headroom", "must have amount or percent, found both"))
    if problems:
        raise InvalidPolicy(problems)
    return policy
