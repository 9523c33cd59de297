"""Keeps Brain's ScalePlans as `auto_plan` says: hears of them by kopf, and writes them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from volcano_elastic.api import pytorchjob_validation
from volcano_elastic.api.pytorchjob_shape import CONTROLLER
from volcano_elastic.brain import auto_plan, served_job
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.kube.client import AlreadyExists, Client, Conflict, NotFound
from volcano_elastic.kube.resource import SCALEPLANS, Object, key_of


class PlanKeeper:
    """Methods raise what the client does, but for plans that others made or removed meanwhile.

    Args:
        wait: how long pods are measured before a plan, and after each change of the size.
    """

    def __init__(self, client: Client, wait: timedelta, metrics: Metrics) -> None:
        self._client, self._wait, self._metrics = client, wait, metrics
        self._plans: dict[str, Object] = {}
        """Those of type auto, by namespace/name."""

    async def changed(self, plan: Object, jobs: Mapping[str, Object], *, deleted: bool) -> None:
        """Takes a plan of type auto as it is now; deletes one that is over, else it would be in the
        way of the next until `keep` is called.

        Args:
            jobs: by uid, those that go on.
        """
        if deleted:
            self._plans.pop(key_of(plan), None)
            return
        self._plans[key_of(plan)] = plan
        owners = [owner.get("uid") for owner in plan["metadata"].get("ownerReferences") or ()]
        job = next((jobs[uid] for uid in owners if uid in jobs), None)
        kept = None if job is None else auto_plan.kept(job, plan)
        if kept is not None and kept.is_over:
            await self._delete(plan)

    async def keep(
        self,
        live: Sequence[tuple[Object, Run]],
        jobs: Sequence[Object],
        node: Amounts | None,
        now: datetime,
    ) -> None:
        """Writes plans of jobs with parameter servers in mode Live, and removes others'.

        Args:
            live: those jobs, with what is known of them.
            jobs: all that go on.
            node: most that a node can give; None: not known.
        """
        for job, run in live:
            # Without their CRD there are none.
            with contextlib.suppress(NotFound):
                if is_ours(job):
                    await self._keep(job, run, node, now)
        followed = {run.uid for _, run in live}
        for job in jobs:
            plan = self._plans.get(_key(job))
            if job["metadata"]["uid"] in followed or plan is None:
                continue
            if auto_plan.kept(job, plan) is not None:
                await self._delete(plan)

    async def _keep(self, job: Object, run: Run, node: Amounts | None, now: datetime) -> None:
        there = self._plans.get(_key(job))
        if there is None:
            size = served_job.planned(job, run, None, node, now, self._wait)
            if size is not None:
                # Another program's, or a leader's before: looked at next time.
                with contextlib.suppress(AlreadyExists):
                    made = await self._client.create(SCALEPLANS, auto_plan.made(job, size))
                    self._plans[key_of(made)] = made
                    self._metrics.plans.labels("created").inc()
            return
        kept = auto_plan.kept(job, there)
        if kept is None or kept.is_beaten:
            return
        if kept.is_over:
            await self._delete(there)
            return
        size = served_job.planned(job, run, kept.plan.roles, node, now, self._wait)
        patch = auto_plan.patch(kept, size, now)
        if patch is None:
            return
        patch.setdefault("metadata", {})["uid"] = there["metadata"]["uid"]
        plan = kept.plan
        with contextlib.suppress(NotFound, Conflict):
            patched = await self._client.patch(SCALEPLANS, plan.name, plan.namespace, patch)
            self._plans[key_of(patched)] = patched
            self._metrics.plans.labels("patched").inc()

    async def _delete(self, plan: Object) -> None:
        meta = plan["metadata"]
        self._plans.pop(key_of(plan), None)
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(SCALEPLANS, meta["name"], meta["namespace"], uid=meta["uid"])
            self._metrics.plans.labels("deleted").inc()


def is_ours(job: Object) -> bool:
    """Return whether the operator carries the job out, not another controller."""
    policy = pytorchjob_validation.run_policy(job)
    return bool(policy.get("managedBy", CONTROLLER) == CONTROLLER)


def _key(job: Object) -> str:
    return f"{job['metadata'].get('namespace', 'default')}/{auto_plan.name_of(job)}"
