"""The planner's loop, with a planner, an API server and a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.pytorchjob.world import job_object, merged
from tests.virtual_time import VirtualTimePolicy
from volcano_elastic.cluster_state.queue_figures import QueueFigures
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.kube.client import ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.resource import Resource
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.controller import Controller
from volcano_elastic.operator.executor import Executor
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.handover import Handover
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.planning import Planning
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.operator.survivors import Survivors
from volcano_elastic.pytorchjob.observed import Resize
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.snapshot.snapshot import Memory, Snapshot

Object = dict[str, Any]
FIGURES = {"q": QueueFigures("nvidia.com/gpu", 4000, 1000, 0, 0, 0, 1)}


@pytest.fixture(scope="module")
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


class Server:
    """Keeps what is patched; everything else is not there."""

    def __init__(self) -> None:
        self.patches: list[tuple[float, str, Object]] = []
        self.objects: dict[str, Object] = {}
        self.failing: type[ApiError] | None = None

    async def get(self, kind: Resource, name: str, namespace: str | None = None) -> Object:
        raise NotFound(404, "NotFound", name)

    async def create(self, kind: Resource, obj: Object) -> Object:
        return obj

    async def patch(
        self,
        kind: Resource,
        name: str,
        namespace: str | None,
        body: Object,
        *,
        subresource: str | None = None,
    ) -> Object:
        if self.failing is not None:
            raise self.failing(409, "Conflict", name)
        self.patches.append((asyncio.get_running_loop().time(), name, body))
        old = self.objects[name]
        new = cast(Object, merged(old, {"status": body["status"]}))
        version = str(int(old["metadata"]["resourceVersion"]) + 1)
        new["metadata"] = old["metadata"] | {"resourceVersion": version}
        self.objects[name] = new
        return new


@dataclass
class Scripted:
    """Hands out plans one after another, the last one for ever."""

    plans: list[Plan | Exception]
    seen: list[Snapshot] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """By the loop's clock."""
    cost: float = 0.0
    """Seconds of CPU that each plan says it has taken."""
    spent: float = 0.0
    begun: int = 0
    """How often it was to know nothing of earlier plans."""

    def anew(self) -> Scripted:
        self.begun += 1
        return self

    def __call__(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.seen.append(snapshot)
        self.times.append(asyncio.get_running_loop().time())
        self.spent += self.cost
        found = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        if isinstance(found, Exception):
            raise found
        return found


class Hands(Handover):
    """Carries out nothing, but tells what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.undone: frozenset[str] = frozenset()
        self.given: list[dict[str, Resize]] = []
        self.admitted: dict[str, str] = {}

    def admit(self, newcomers: Mapping[str, str]) -> None:
        self.admitted |= newcomers

    async def carry_out(self, resizes: Mapping[str, Resize], limit: float) -> frozenset[str]:
        self.given.append(dict(resizes))
        return self.undone & frozenset(resizes)


@dataclass
class Scene:
    server: Server
    cluster: Cluster
    builder: SnapshotBuilder
    hands: Hands
    planner: Scripted
    planning: Planning
    task: asyncio.Task[None] | None = None

    def lead(self) -> None:
        self.task = asyncio.create_task(self.planning.run())

    async def stand_by(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def put_policy(self, version: int = 1, **spec: Any) -> None:
        meta = {"name": "p", "uid": "p", "resourceVersion": str(version), "generation": 1}
        meta["creationTimestamp"] = "2026-01-01T12:00:00Z"
        obj = {"metadata": meta, "spec": {"queue": "q"} | spec}
        self.server.objects["p"] = obj
        self.cluster.policies.note_write(obj)

    def put_job(self, **spec: Any) -> Object:
        obj = job_object(elastic={"min": 1, "max": 4}, **spec)
        obj["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": "q"}}
        self.server.objects["a"] = obj
        self.cluster.jobs.note_write(obj)
        return obj

    async def until(self, holds: Callable[[], object], what: str) -> None:
        for _ in range(400):
            if holds():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{what}; planned {len(self.planner.seen)} times")

    def policy_status(self) -> Object:
        status: Object = self.server.objects["p"].get("status") or {}
        return status


def failed_nodes(cluster: Cluster) -> FailedNodes:
    return FailedNodes(cluster, lambda: datetime.now(UTC))


def lost_pods(cluster: Cluster, builder: SnapshotBuilder) -> LostPods:
    return LostPods(cluster, builder, lambda: datetime.now(UTC), timedelta(seconds=300))


def survivors(cluster: Cluster, builder: SnapshotBuilder) -> Survivors:
    return Survivors(cluster, builder, lambda: datetime.now(UTC))


@asynccontextmanager
async def scene(*plans: Plan | Exception) -> AsyncIterator[Scene]:
    server = Server()
    cluster = Cluster(cast(Client, server))
    metrics = Metrics()
    builder, hands = SnapshotBuilder(), Hands()
    planner = Scripted(list(plans))
    planning = Planning(
        cluster,
        builder,
        hands,
        metrics,
        token_of=Executor(cluster).tokens.of,
        lost_pods=lost_pods(cluster, builder),
        failed_nodes=failed_nodes(cluster),
        survivors=survivors(cluster, builder),
        plugin="capacity",
        planner=planner.anew,
        cpu=lambda: planner.spent,
    )
    found = Scene(server, cluster, builder, hands, planner, planning)
    found.put_policy()
    found.put_job()
    queue = {"metadata": {"name": "q", "uid": "q", "resourceVersion": "1"}, "spec": {}}
    cluster.queues.note_write(queue)
    found.lead()
    try:
        yield found
        assert found.task is not None and not found.task.done(), "the loop goes on"
    finally:
        await found.stand_by()


def grow(**more: Any) -> Decision:
    given = {"job": "team/a", "old": 1, "new": 3, "reason": Reason.GREW_INTO_IDLE, "message": "m"}
    return Decision(**(given | more))


def conditions(status: Object) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or ()}


async def test_a_decision_is_carried_out_with_its_reason_and_told_in_the_policys_status() -> None:
    plan = Plan((grow(remove=("team/a-worker-2",)),), queues=FIGURES)
    async with scene(plan, Plan(queues=FIGURES)) as s:
        await s.until(lambda: s.policy_status().get("lastDecision"), "the decision is shown")
        (given,) = [found for found in s.hands.given if found]
        assert given["team/a"] == Resize(1, 3, "GrewIntoIdle", "m", frozenset({"a-worker-2"}))
        status = s.policy_status()
        assert (status["resizesTotal"], status["free"]) == (1, "4")
        assert status["lastDecision"]["changes"][0]["reason"] == "GrewIntoIdle"
        assert conditions(status)["Active"] == ("True", "Active")


async def test_a_dry_run_is_shown_and_not_carried_out() -> None:
    async with scene(Plan((grow(dry_run=True),), queues=FIGURES)) as s:
        await s.until(lambda: s.policy_status().get("lastDecision"), "the decision is shown")
        await s.until(lambda: len(s.planner.seen) > 2, "it is planned again")
        assert not any(s.hands.given)
        assert s.policy_status()["resizesTotal"] == 0


async def test_who_was_planned_may_create_pods_once_all_is_carried_out() -> None:
    async with scene(Plan((grow(),), admitted=frozenset({"team/a"}))) as s:
        s.hands.undone = frozenset({"team/a"})
        await s.until(lambda: len(s.planner.seen) > 1, "it is planned anew")
        assert not s.hands.admitted
        assert s.policy_status().get("resizesTotal", 0) == 0
        s.hands.undone = frozenset()
        await s.until(lambda: s.hands.admitted == {"team/a": "u1"}, "admitted then")


async def test_a_planner_that_fails_stops_nothing_and_the_policy_says_so() -> None:
    broken = ZeroDivisionError("a bug")
    async with scene(broken, Plan((grow(),), queues=FIGURES), Plan(queues=FIGURES)) as s:
        await s.until(lambda: conditions(s.policy_status()).get("Stale"), "a status is written")
        assert conditions(s.policy_status())["Stale"] == ("True", "NoPlan")
        await s.until(lambda: any(s.hands.given), "the next plan is carried out")
        assert s.planner.begun == 3, "as it was made, as it leads, and after the failure"
        stale = ("False", "Planned")
        await s.until(lambda: conditions(s.policy_status())["Stale"] == stale, "no longer stale")


async def test_it_is_planned_each_second_and_at_once_when_the_picture_changes() -> None:
    async with scene(Plan(queues=FIGURES)) as s:
        await s.until(lambda: s.policy_status(), "planned and told")
        await asyncio.sleep(0.3)
        planned = len(s.planner.seen)
        # The policy's status came back, which no plan depends on.
        s.put_policy(version=50)
        await asyncio.sleep(0.2)
        assert len(s.planner.seen) == planned
        s.put_policy(version=51, mode="Hold")
        changed = asyncio.get_running_loop().time()
        await s.until(lambda: len(s.planner.seen) > planned, "planned at once")
        assert s.planner.times[-1] - changed < 0.1
        before = s.planner.seen[-1].pods
        await s.until(lambda: len(s.planner.seen) > planned + 2, "planned each second")
        assert s.planner.seen[-1].pods is before
        assert [b - a for a, b in pairwise(s.planner.times[-3:])] == pytest.approx([1, 1])


async def test_dear_plans_leave_half_of_the_loop_to_others_however_fast_things_change() -> None:
    async with scene(Plan(queues=FIGURES)) as s:
        s.planner.cost = 0.3
        await s.until(lambda: len(s.planner.times) > 1, "one dear plan")
        first = len(s.planner.times) - 1
        for version in range(100, 160):
            s.put_policy(version=version, grow={"maxStep": version})
            await asyncio.sleep(0.02)
        times = s.planner.times[first:]
        assert len(times) > 1 and all(b - a >= 0.3 for a, b in pairwise(times))


async def test_what_a_plan_remembers_is_in_the_next_picture() -> None:
    memory = Memory(blocked_since={"team/a": datetime(2026, 1, 1, tzinfo=UTC)})
    async with scene(Plan(memory=memory)) as s:
        await s.until(lambda: len(s.planner.seen) > 1, "planned twice")
        assert s.planner.seen[0].memory == Memory()
        assert s.planner.seen[1].memory is memory


async def test_who_leads_again_remembers_nothing_of_what_another_may_have_changed() -> None:
    memory = Memory(blocked_since={"team/a": datetime(2026, 1, 1, tzinfo=UTC)})
    async with scene(Plan(memory=memory)) as s:
        await s.until(lambda: len(s.planner.seen) > 1, "planned twice")
        await s.stand_by()
        planned, begun = len(s.planner.seen), s.planner.begun
        s.lead()
        await s.until(lambda: len(s.planner.seen) > planned, "planned again")
        assert s.planner.seen[planned].memory == Memory()
        assert s.planner.begun == begun + 1


async def test_a_status_is_written_once_a_second_at_most_and_only_if_it_changed() -> None:
    plans = [Plan((grow(),), queues=FIGURES)] * 200
    async with scene(*plans, Plan(queues=FIGURES)) as s:
        for version in range(100, 150):
            s.put_policy(version=version, grow={"maxStep": version})
            s.server.objects["p"]["status"] = {}
            await asyncio.sleep(0.05)
        times = [at for at, name, _ in s.server.patches if name == "p"]
        assert len(times) == 3 and all(b - a >= 1 for a, b in pairwise(times))


async def test_newcomers_in_a_queue_that_is_off_dont_wait_for_a_plan() -> None:
    async with scene(Plan()) as s:
        controller = Controller(
            s.cluster,
            Executor(s.cluster),
            Metrics(),
            Handover(),
            lost_pods(s.cluster, s.builder),
            failed_nodes(s.cluster),
            survivors(s.cluster, s.builder),
            policy_of=s.builder.policy_of,
        )
        obj = s.cluster.jobs.get("team/a")
        assert obj is not None

        def creates() -> bool:
            now = datetime(2026, 1, 1, 12, 0, 1, tzinfo=UTC)
            actions = controller._actions("team/a", obj, None, now)
            return any(type(action).__name__ == "CreatePod" for action in actions)

        assert not creates()
        s.put_policy(version=60, mode="Off")
        assert creates()


class Stubborn(Executor):
    """Fails, or performs with the answers of a server that takes everything."""

    error: Exception | None = None

    async def perform(self, job: Object, actions: Any, now: datetime) -> None:
        if self.error is not None:
            raise self.error
        for action in actions:
            status = getattr(action, "status", None)
            if status is not None:
                version = str(int(job["metadata"]["resourceVersion"]) + 1)
                meta = job["metadata"] | {"resourceVersion": version}
                self._cluster.jobs.note_write(merged(job, {"status": status}) | {"metadata": meta})


async def carried_out(error: Exception | None, desired: int) -> frozenset[str]:
    cluster = Cluster(cast(Client, Server()))
    executor = Stubborn(cluster)
    handover = Handover()
    builder = SnapshotBuilder()
    controller = Controller(
        cluster,
        executor,
        Metrics(),
        handover,
        lost_pods(cluster, builder),
        failed_nodes(cluster),
        survivors(cluster, builder),
    )
    obj = job_object(elastic={"min": 1, "max": 4})
    obj["status"] = {"elastic": {"desired": desired}}
    cluster.jobs.note_write(obj)
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0.1)
    executor.error = error
    try:
        return await handover.carry_out({"team/a": Resize(1, 3, "GrewIntoIdle", "m")}, 0.5)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_size_is_carried_out_on_the_job_that_the_plan_saw() -> None:
    assert await carried_out(None, 1) == frozenset()


async def test_a_job_that_changed_since_the_plan_is_planned_anew() -> None:
    assert await carried_out(None, 2) == {"team/a"}
    assert await carried_out(Conflict(409, "Conflict", "changed"), 1) == {"team/a"}


async def test_a_size_that_takes_too_long_is_withdrawn() -> None:
    assert await carried_out(ApiError(500, "Internal", "slow"), 1) == {"team/a"}
