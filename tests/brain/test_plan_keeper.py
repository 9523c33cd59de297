"""Brain's ScalePlans, as it hears of them: what it writes, and what it leaves alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from tests.brain.test_served_job import LATER, NODE, SERVER, WORKER, measured, served
from volcano_elastic.api.scale_plan import RolePlan
from volcano_elastic.brain import auto_plan
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.brain.plan_keeper import PlanKeeper
from volcano_elastic.brain.served_job import PlannedSize
from volcano_elastic.kube.client import Client

Object = dict[str, Any]


class Plans:
    """An API server of ScalePlans that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def create(self, _: Any, body: Object) -> Object:
        self.asked.append(("create", body["metadata"]["name"]))
        made = {"uid": "p1", "creationTimestamp": "2026-01-01T12:15:00Z"}
        return body | {"metadata": body["metadata"] | made}

    async def delete(self, _: Any, name: str, namespace: str, *, uid: str) -> None:
        self.asked.append(("delete", uid))

    async def patch(self, _: Any, name: str, namespace: str, body: Object) -> Object:
        self.asked.append(("patch", name))
        return body


def keeper(plans: Plans) -> PlanKeeper:
    return PlanKeeper(cast(Client, plans), timedelta(minutes=3), Metrics())


def plan(phase: str, **meta: Any) -> Object:
    made = auto_plan.made(served(), PlannedSize({"Worker": RolePlan(2)}, "for a test"))
    made["metadata"] |= {"uid": "p1", "creationTimestamp": "2026-01-01T12:00:00Z"} | meta
    return made | {"status": {"phase": phase}}


async def test_a_plan_is_made_once_and_goes_when_nobody_follows_its_job() -> None:
    plans, job, run = Plans(), served(), measured(WORKER, SERVER, uid="u1")
    mine = keeper(plans)
    for _ in range(2):
        await mine.keep([(job, run)], [job], NODE, LATER)
    assert plans.asked == [("create", "a-brain")], "no event of it has come yet"
    await mine.keep([], [job], NODE, LATER)
    await mine.keep([], [job], NODE, LATER)
    assert plans.asked[1:] == [("delete", "p1")]


async def test_a_plan_that_is_over_is_removed_as_soon_as_it_is_heard_of() -> None:
    plans, job = Plans(), served()
    mine = keeper(plans)
    for phase in ("Pending", "Succeeded", "Superseded"):
        await mine.changed(plan(phase), {"u1": job}, deleted=False)
    assert not plans.asked
    await mine.changed(plan("Expired"), {"u1": job}, deleted=False)
    assert plans.asked == [("delete", "p1")]


async def test_others_plans_are_left_alone() -> None:
    plans, job = Plans(), served()
    mine = keeper(plans)
    others = [
        plan("Expired", ownerReferences=[{"uid": "another"}]),
        plan("Expired", name="by-hand"),
        plan("Expired", labels={"scale-type": "manual"}),
    ]
    for one in others:
        await mine.changed(one, {"u1": job}, deleted=False)
        await mine.keep([], [job], NODE, LATER)
    assert not plans.asked


async def test_a_plan_that_somebody_deleted_is_made_anew() -> None:
    plans, job, run = Plans(), served(), measured(WORKER, SERVER, uid="u1")
    mine = keeper(plans)
    await mine.keep([(job, run)], [job], NODE, LATER)
    await mine.changed(plan(""), {"u1": job}, deleted=True)
    await mine.keep([(job, run)], [job], NODE, LATER)
    assert plans.asked == [("create", "a-brain")] * 2
