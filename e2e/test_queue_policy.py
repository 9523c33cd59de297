"""Promises to queue admins, with a scheduler that evicts by itself if we are too late."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from e2e import volcano
from e2e.conftest import Promised
from e2e.queue_world import GPU, QueueWorld, queue_world
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.cli.observation import observe
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.kube.resource import EVENTS, PODS, QUEUEPOLICIES, RESOURCEQUOTAS
from volcano_elastic.queue_policy.plan import Planner

pytestmark = pytest.mark.e2e

FAST = {"grow": {"cooldownSeconds": 0}, "rebalance": {"cooldownSeconds": 0}}


@pytest.fixture
async def world(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[QueueWorld]:
    """Two nodes of four GPUs, and the queue `default`."""
    async with queue_world(fresh_control_plane, tmp_path) as found:
        yield found


async def newcomer_starts(
    world: QueueWorld, old: str, new: str, minimum: int, promised: Promised
) -> None:
    """The newcomer's minimum runs within 2 s of the surplus pods' exit; only they went."""
    before = {life.index for life in world.there(old)}
    await world.until(lambda: len(world.there(new)) == minimum, f"{new} runs with {minimum}")
    left = [life for life in world.of(old) if life.told]
    started = max(life.running or math.inf for life in world.there(new))
    exits = [life.gone for life in left if life.gone]
    assert len(exits) == len(left) == minimum, "exactly as many as were needed"
    promised("a newcomer runs, once surplus has left", started - max(exits), 2)
    assert not any(life.protected for life in left), "only surplus went"
    assert 0 not in {life.index for life in left}, "worker 0 is untouched"
    assert len(before) - len(world.there(old)) == minimum


async def nothing_flaps(world: QueueWorld, request: pytest.FixtureRequest) -> None:
    """For a minute; CI watches five seconds of it, and asks the planner about all of it."""
    await nothing_is_planned(world, 60)
    seconds = 60.0 if request.config.getoption("--long") else 5.0
    lives = {uid: (life.told, life.gone) for uid, life in world.lives.items()}
    deadline = world.now() + seconds
    while world.now() < deadline:
        await asyncio.sleep(0.2)
        seen = {uid: (life.told, life.gone) for uid, life in world.lives.items()}
        assert seen == lives, "a pod came or went though nobody asked for anything"


async def nothing_is_planned(world: QueueWorld, seconds: int) -> None:
    """No end of a cooldown, a patience or a youth makes the operator's planner, asked each second
    as the operator asks it, change what is there now."""
    seen = await observe(world.client)
    planner, snapshot = Planner(), seen.snapshot
    for second in range(seconds + 1):
        made = planner.plan(snapshot, seen.time + timedelta(seconds=second))
        assert made.decisions == (), f"{second} s from now"
        snapshot = replace(snapshot, memory=made.memory)


async def test_a_newcomer_in_the_same_queue_gets_its_minimum(
    world: QueueWorld, promised: Promised, request: pytest.FixtureRequest
) -> None:
    await world.job("old", 1, 8, leave=0.5)
    await world.size("old", 8)
    await world.job("new", 3, 3)
    await newcomer_starts(world, "old", "new", 3, promised)
    left = sorted(life.index for life in world.of("old") if life.told)
    stayed = sorted(life.index for life in world.there("old"))
    assert left == [5, 6, 7], f"any node will do for one GPU, so the highest go; {stayed} stayed"
    await nothing_flaps(world, request)
    assert await world.evictions() == [], "the policy was first"
    elastic = await world.elastic("old")
    assert (elastic["desired"], elastic["lastScaleReason"]) == (5, "ShrunkForMinimum")


async def test_a_newcomer_whose_gang_is_more_than_its_minimum_gets_its_gang(
    world: QueueWorld,
    promised: Promised,
) -> None:
    await world.job("old", 1, 8, leave=0.5)
    await world.size("old", 8)
    await world.job("new", 1, 4, min_available=3)
    await newcomer_starts(world, "old", "new", 3, promised)


async def test_surplus_leaves_for_pods_of_the_default_scheduler(world: QueueWorld) -> None:
    if volcano.folder():
        pytest.skip("nobody here places pods of the default scheduler")
    await world.job("old", 1, 8, leave=0.5)
    await world.size("old", 8)
    for index in range(2):
        await world.plain_pod(f"web-{index}")
    await world.until(lambda: len(world.there("web")) == 2, "both run")
    await world.size("old", 6)
    assert await world.evictions() == [], "nobody else made room"
    elastic = await world.elastic("old")
    assert elastic["lastScaleReason"] == "ShrunkForPod"
    assert "pod default/web-" in elastic["message"], "it says who asked"
    for index in range(2):
        await world.client.delete(PODS, f"web-{index}", "default")
    await world.size("old", 8)


async def test_a_newcomer_in_another_queue_gets_its_minimum(
    world: QueueWorld, promised: Promised, request: pytest.FixtureRequest
) -> None:
    for queue in ("research", "product"):
        await world.queue(queue, deserved={GPU: "4"})
    await world.job("old", 2, 8, queue="research", leave=0.5)
    await world.size("old", 8)
    await world.job("new", 4, 4, queue="product")
    await newcomer_starts(world, "old", "new", 4, promised)
    await nothing_flaps(world, request)
    assert await world.evictions() == [], "the policy was first"


async def test_a_job_that_names_no_cooldown_follows_its_queues_policy(world: QueueWorld) -> None:
    """Freed GPUs are used in seconds, not after a minute."""
    await world.policy("quick", "default", grow={"cooldownSeconds": 3})
    await world.job("old", 1, 8, cooldown=None)
    await world.size("old", 8)
    await world.gang("serve", 2)
    await world.size("old", 6)
    await world.until(lambda: len(world.there("serve")) == 2, "the service runs")
    await world.delete_gang("serve", 2)
    await world.size("old", 8)


async def test_growth_ends_at_the_quota_of_the_namespace(world: QueueWorld) -> None:
    await world.policy("once", "default", mode="Hold", grow={"cooldownSeconds": 3600})
    await world.job("old", 1, 8)
    await world.size("old", 1)
    await world.quota(1, used=1)
    await set_mode(world, "once", "Active")

    async def why() -> bool:
        made = Planner().plan((await observe(world.client)).snapshot, datetime.now(UTC))
        return made.unchanged["default/old"].why_not_more is Reason.QUOTA_FULL

    await world.until(why, "it says what keeps it small")
    await world.quota(4, used=1)
    await world.size("old", 4)
    events = (await world.client.list(EVENTS))["items"]
    assert not [e["message"] for e in events if "exceeded quota" in e.get("message", "")]
    await world.quota(4, used=4)
    await world.job("new", 2, 2)
    await world.size("old", 2)
    # For where nothing counts it.
    await world.quota(4, used=2)
    await world.size("new", 2, seconds=60)
    # The fixture's API server may be another test's next.
    await world.client.delete(RESOURCEQUOTAS, "gpus", "default")


async def test_what_volcano_evicts_stays_away_for_the_cooldown(world: QueueWorld) -> None:
    await world.policy("slow", "default", grow={"cooldownSeconds": 3600})
    await world.job("old", 1, 8)
    await world.size("old", 8)
    # So that the policy doesn't make way, and Volcano has to.
    patch = {"spec": {"mode": "Off"}}
    await world.client.patch(QUEUEPOLICIES, "slow", None, patch)
    await world.until(lambda: said(world, "slow", "False", "Off"), "the operator has seen that")
    await world.gang("serve", 2)
    await world.until(lambda: len(world.there("serve")) == 2, "Volcano makes room itself")
    evicted = len([life for life in world.of("old") if life.told])
    assert evicted >= 2 and await world.evictions()
    await world.until(lambda: settled(world, "old", 8 - evicted), "the size is lowered")
    made = len(world.of("old"))
    await asyncio.sleep(3)
    assert len(world.of("old")) == made, "what was evicted is not made again"
    assert (await world.elastic("old"))["lastScaleReason"] == "Evicted"


async def settled(world: QueueWorld, job: str, size: int) -> bool:
    return bool((await world.elastic(job)).get("desired") == size)


async def test_modes_are_carried_out(world: QueueWorld) -> None:
    await world.policy("p", "default", mode="DryRun", **FAST)
    await world.job("old", 1, 8)
    await world.size("old", 1)

    async def shown() -> bool:
        changes = ((await world.policy_status("p")).get("lastDecision") or {}).get("changes") or []
        return any(c["job"] == "default/old" and c.get("dryRun") for c in changes)

    await world.until(shown, "what it would do is shown")
    assert len(world.there("old")) == 1 and (await world.policy_status("p"))["resizesTotal"] == 0
    assert await world.condition("p", "Active") == ("False", "DryRun")
    await set_mode(world, "p", "Active")
    await world.size("old", 8)
    await world.until(lambda: said(world, "p", "True", "Active"), "the status follows")
    await set_mode(world, "p", "Hold")
    await world.job("new", 2, 4)
    await world.size("new", 2)
    await world.until(lambda: len(world.there("old")) == 6, "a claim is served in Hold too")
    await set_mode(world, "p", "HoldAndDrain")
    await world.size("old", 1)
    assert len(world.there("new")) == 2, "nobody grows"

    async def told() -> bool:
        status = await world.policy_status("p")
        return bool(
            (status["free"], status["guaranteed"], status["surplus"], status["jobs"])
            == ("5", "3", "0", 2)
            and status["resizesTotal"] >= 3
        )

    await world.until(told, "the status follows")


async def said(world: QueueWorld, policy: str, status: str, reason: str) -> bool:
    return await world.condition(policy, "Active") == (status, reason)


async def set_mode(world: QueueWorld, policy: str, mode: str) -> None:
    await world.client.patch(QUEUEPOLICIES, policy, None, {"spec": {"mode": mode}})


async def test_policies_that_are_not_in_force_say_so(world: QueueWorld) -> None:
    await world.policy("older", "default")
    await asyncio.sleep(1.1)
    await world.policy("younger", "default", mode="Off")
    await world.policy("lost", "nowhere")

    await world.until(lambda: said(world, "older", "True", "Active"), "the oldest is in force")
    await world.until(lambda: said(world, "younger", "False", "Superseded"), "the other is not")
    await world.until(lambda: said(world, "lost", "False", "QueueNotFound"), "it has no queue")
    await world.client.delete(QUEUEPOLICIES, "older")
    await world.until(lambda: said(world, "younger", "False", "Off"), "it succeeds the older one")


async def test_a_minimum_that_cannot_start_is_named(world: QueueWorld) -> None:
    await world.policy("p", "default", **FAST)
    await world.job("huge", 9, 9)

    async def named() -> bool:
        return await world.condition("p", "MinimumBlocked") == ("True", "NotEnoughResources")

    await world.until(named, "the policy says so")
    await world.job("small", 1, 8)
    await world.size("small", 8)


# E6

GRACE = 10.0
"""Grace of the elastic pods, in seconds; they leave after LEAVE."""
LEAVE = 1.0


def demand(at: float, day: float) -> int:
    """Pods of the service: a daily curve from 1 to 5, and two spikes to 7."""
    if any(abs(at / day - spike) < 0.03 for spike in (0.3, 0.75)):
        return 7
    return 3 - round(2 * math.cos(2 * math.pi * at / day))


async def test_a_service_never_waits_for_the_elastic_job_beside_it(
    world: QueueWorld, promised: Promised, request: pytest.FixtureRequest
) -> None:
    day = 600.0 if request.config.getoption("--long") else 30.0
    await world.policy("p", "default", **FAST)
    await world.job("train", 1, 8, leave=LEAVE)
    await world.size("train", 8)
    began, pods, samples = world.now(), 0, []
    while (at := world.now() - began) < day:
        wanted = demand(at, day)
        while pods < wanted:
            await world.gang(f"serve-{pods}", 1)
            pods += 1
        while pods > wanted:
            pods -= 1
            await world.delete_gang(f"serve-{pods}", 1)
        held = [x for x in world.lives.values() if x.node and not x.gone]
        samples.append(len(held) / 8)
        await asyncio.sleep(0.2)
    # Who was no longer wanted before it ran has waited until then.
    waits = [(x.running or x.told or x.gone or world.now()) - x.created for x in world.of("serve")]
    utilisation = sum(samples) / len(samples)
    print(f"E6: {len(waits)} service pods, longest wait {max(waits):.2f} s, GPUs {utilisation:.1%}")
    promised("a pod of the service waits", max(waits), GRACE + 2)
    assert not request.config.getoption("--long") or utilisation >= 0.9
    assert all(life.index != 0 for life in world.of("train") if life.told)
