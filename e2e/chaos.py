"""Forty jobs made, scaled, suspended and deleted while everything around the operator breaks.

    python -m e2e.chaos [--seconds 300] [--seed 7] [--control-plane real]

The same script of changes runs twice, on embedded clusters or real control planes: undisturbed, and
with the operator killed (SIGKILL) every second or so, the API server restarted, watches cut and
expired, and requests failing (fault_proxy.py). Both must end in the same state. The seed decides
all but timing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from e2e.fault_proxy import NONE, FaultProxy, Faults
from embedded_cluster.cluster import LocalCluster
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from embedded_cluster.readiness import HOST, free_port, is_ready
from tests import program
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.resource import PODGROUPS, PODS, PYTORCHJOBS, SERVICES, Object
from volcano_elastic.podgroup.pod_annotation import is_protected

JOBS = 40
NAMESPACE = "default"
_SETTLE_SECONDS = 120.0
_CALM_SECONDS = 1.5
_LEAST_KILLS = 4
# Of the fake kubelet.
_RUN_SECONDS = "local.volcano-elastic.io/run-seconds"


@dataclass(frozen=True, slots=True)
class Change:
    """`body` None deletes the job, a whole object creates it, anything else is a merge patch."""

    job: str
    body: Object | None


@dataclass
class Outcome:
    undisturbed: dict[str, Any] = field(default_factory=dict)
    disturbed: dict[str, Any] = field(default_factory=dict)
    kills: int = 0
    restarts: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def differences(self) -> list[str]:
        """One line for each job that ended otherwise; empty if all is as it should be."""
        names = sorted(self.undisturbed.keys() | self.disturbed.keys())
        return [
            f"{name}:\n  undisturbed {self.undisturbed.get(name)}\n  disturbed   "
            f"{self.disturbed.get(name)}"
            for name in names
            if self.undisturbed.get(name) != self.disturbed.get(name)
        ]


def script(seed: int, jobs: int = JOBS) -> list[Change]:
    """Changes whose end state doesn't depend on how fast they follow one another: there is room
    for all, and what finishes by itself is left alone."""
    dice = random.Random(seed)
    stories = [_story(f"job-{i:02}", i, dice) for i in range(jobs)]
    changes = []
    while stories:
        story = dice.choice(stories)
        changes.append(story.pop(0))
        stories = [one for one in stories if one]
    return changes


def _story(name: str, number: int, dice: random.Random) -> list[Change]:
    kind = ("elastic", "rigid", "master", "finishing", "passing")[number % 5]
    low, high = dice.randint(1, 2), dice.randint(2, 5)
    if kind in ("finishing", "passing"):
        job = _job(name, replicas=low, run_seconds=1)
        ended = {"cleanPodPolicy": dice.choice(["None", "All"])}
        if kind == "passing":
            ended["ttlSecondsAfterFinished"] = 0
        job["spec"]["runPolicy"] = ended
        return [Change(name, job)]
    if kind == "elastic":
        story = [Change(name, _job(name, elastic=(low, high)))]
    else:
        story = [Change(name, _job(name, replicas=low, master=kind == "master"))]
    for _ in range(dice.randint(1, 5)):
        what = dice.choice(["scale", "suspend", "resume"])
        if what == "scale" and kind == "elastic":
            size = {"min": dice.randint(1, 2), "max": dice.randint(2, 5)}
            story.append(Change(name, {"spec": {"elasticPolicy": size}}))
        elif what == "scale":
            worker = {"Worker": {"replicas": dice.randint(1, 5)}}
            story.append(Change(name, {"spec": {"pytorchReplicaSpecs": worker}}))
        else:
            story.append(Change(name, {"spec": {"runPolicy": {"suspend": what == "suspend"}}}))
    if dice.random() < 0.4:
        story.append(Change(name, None))
        if dice.random() < 0.5:
            # The same name again: another job.
            story.append(Change(name, _job(name, elastic=(1, high))))
    return story


def _job(
    name: str,
    *,
    replicas: int = 1,
    elastic: tuple[int, int] | None = None,
    master: bool = False,
    run_seconds: int | None = None,
) -> Object:
    container = {
        "name": "pytorch",
        "image": "none",
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    template: Object = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    if run_seconds is not None:
        template["metadata"] = {"annotations": {_RUN_SECONDS: str(run_seconds)}}
    specs: Object = {"Worker": {"replicas": replicas, "template": template}}
    if master:
        specs["Master"] = {"replicas": 1, "template": template}
    spec: Object = {"pytorchReplicaSpecs": specs}
    if elastic is not None:
        spec["elasticPolicy"] = {"min": elastic[0], "max": elastic[1], "cooldownSeconds": 0}
    return {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


async def apply(client: Client, changes: Sequence[Change], seconds: float) -> None:
    """Spread over that time; a change that the API server was not there for is made again."""
    for change in changes:
        await _insist(lambda change=change: _apply(client, change))  # type: ignore[misc]
        await asyncio.sleep(seconds / len(changes))


async def _apply(client: Client, change: Change) -> None:
    if change.body is None:
        with contextlib.suppress(NotFound):
            await client.delete(PYTORCHJOBS, change.job, NAMESPACE)
        # Its successor of the same name must find the name free.
        while True:
            try:
                await client.get(PYTORCHJOBS, change.job, NAMESPACE)
            except NotFound:
                return
            await asyncio.sleep(0.02)
    elif "kind" in change.body:
        with contextlib.suppress(AlreadyExists):
            await client.create(PYTORCHJOBS, change.body)
    else:
        await client.patch(PYTORCHJOBS, change.job, NAMESPACE, change.body)


async def _insist(work: Callable[[], Awaitable[None]]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return await work()
        except (ApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
            refused = isinstance(error, ApiError) and error.code < 500  # it is there
            if refused or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def state(client: Client) -> dict[str, Any]:
    """By job what it has, and under `orphans` what has no job; without times, uids and the like."""
    jobs = (await client.list(PYTORCHJOBS, NAMESPACE))["items"]
    found: dict[str, Any] = {job["metadata"]["name"]: _of_job(job) for job in jobs}
    names = {job["metadata"]["uid"]: job["metadata"]["name"] for job in jobs}
    orphans = []
    for kind in (PODS, SERVICES, PODGROUPS):
        for obj in (await client.list(kind, NAMESPACE))["items"]:
            owners = obj["metadata"].get("ownerReferences") or []
            owner = next((names[o["uid"]] for o in owners if o["uid"] in names), None)
            if owner is None and (kind, obj["metadata"]["name"]) == (SERVICES, "kubernetes"):
                continue  # a real API server's own
            if owner is None:
                orphans.append(f"{kind.kind} {obj['metadata']['name']}")
            else:
                found[owner].setdefault(kind.plural, []).append(_of_owned(kind.plural, obj))
    for one in found.values():
        # Which pods hold the minimum depends on history; how many, not.
        one["protected"] = sum(p for _, _, p in one.get("pods", ()))
        one["pods"] = sorted((name, phase) for name, phase, _ in one.get("pods", ()))
        services = one.setdefault("services", [])
        if one["state"] == ["Succeeded"]:
            # What a job that ended keeps are the services that it had: a pod may end before the
            # operator is back that would have made its service.
            services[:] = {*services} - {name for name, _ in one["pods"]}
        services.sort()
    return found | {"orphans": sorted(orphans)}


def _of_job(job: Object) -> Object:
    status = job.get("status") or {}
    elastic = status.get("elastic") or {}
    conditions = [c["type"] for c in status.get("conditions") or () if c["status"] == "True"]
    counts = status.get("replicaStatuses") or {}
    return {
        "state": conditions[-1:],
        "elastic": [elastic.get(name) for name in ("desired", "ready", "min", "max")],
        "replicas": {
            kind: [int(count.get(name) or 0) for name in ("active", "succeeded", "failed")]
            for kind, count in sorted(counts.items())
        },
    }


def _of_owned(plural: str, obj: Object) -> Any:
    name = obj["metadata"]["name"]
    if plural == "pods":
        leaving = " leaving" if obj["metadata"].get("deletionTimestamp") else ""
        phase = (obj.get("status") or {}).get("phase", "Pending")
        return name, phase + leaving, is_protected(obj)
    if plural == "podgroups":
        return {k: obj["spec"].get(k) for k in ("minMember", "minResources", "queue")}
    return name


async def settled(client: Client, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The state when it is `done` and has stayed the same for a while, else the last one seen."""
    began = since = time.monotonic()
    last: dict[str, Any] = {}
    while time.monotonic() - began < _SETTLE_SECONDS:
        with contextlib.suppress(aiohttp.ClientError, ApiError, OSError, TimeoutError):
            now = await state(client)
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > _CALM_SECONDS and done(now):
                break
        await asyncio.sleep(0.2)
    return last


def at_rest(found: dict[str, Any]) -> bool:
    """Every job has all it will ever get: there is room for all."""
    if found["orphans"]:
        return False
    jobs = [one for name, one in found.items() if name != "orphans"]
    return all(
        one["state"] in (["Suspended"], ["Succeeded"])
        or (one["state"] == ["Running"] and one["elastic"][0] in (None, one["elastic"][3]))
        for one in jobs
    ) and all(phase in ("Running", "Succeeded") for one in jobs for _, phase in one["pods"])


class OperatorLoop:
    """The operator, started again whenever it has been killed."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._command = ["-m", "volcano_elastic.operator"]
        self._port = free_port()
        self._command += ["--kubeconfig", str(kubeconfig)]
        self._command += ["--metrics-address", f"{HOST}:{self._port}"]
        self._log = log
        self._process: program.Program | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = program.Program(program.fork(self._command, os.environ, log))
        # An API server that is away at its start holds it up until it is back.
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(is_ready, self._port):
                if self._process.returncode is not None:
                    tail = self._log.read_text()[-3000:]
                    raise RuntimeError(f"the operator ended; its log:\n{tail}")
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


@asynccontextmanager
async def cluster(folder: Path, plane: RealControlPlane | None) -> AsyncIterator[LocalCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "cluster.log").open("a") as log:
        async with LocalCluster(
            nodes=10,
            gpus_per_node=32,
            kubelet="fake",
            operator=False,
            data_dir=None if plane else folder,
            existing=plane.kubeconfig if plane else None,
            start=program.start,
            kubelet_arguments=plane.kubelet_arguments if plane else (),
            say=lambda line: print(line, file=log, flush=True),
        ) as one:
            yield one


async def undisturbed(
    changes: Sequence[Change], folder: Path, plane: RealControlPlane | None = None
) -> dict[str, Any]:
    async with cluster(folder, plane) as local, local.client() as client:
        operator = OperatorLoop(local.kubeconfig, folder / "operator.log")
        try:
            await operator.start()
            await apply(client, changes, 1.0)
            return await settled(client, at_rest)
        finally:
            await operator.kill()


async def disturbed(
    changes: Sequence[Change],
    folder: Path,
    seconds: float,
    seed: int,
    outcome: Outcome,
    plane: RealControlPlane | None = None,
) -> None:
    dice = random.Random(seed)
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(cluster(folder, plane))
        client = await stack.enter_async_context(local.client())
        config = yaml.safe_load(local.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        url = urlsplit(server["server"])
        proxy = FaultProxy(f"{url.scheme}://{url.netloc}", Faults(), seed, tls=client.access.tls)
        await stack.enter_async_context(proxy.serving())
        server["server"] = proxy.url + url.path
        kubeconfig = folder / "through-proxy"
        kubeconfig.touch(0o600)
        kubeconfig.write_text(yaml.safe_dump(config))
        operator = OperatorLoop(kubeconfig, folder / "operator.log")
        stack.push_async_callback(operator.kill)

        enough = asyncio.Event()

        async def kill_operators() -> None:
            while True:
                await operator.start()
                await asyncio.sleep(dice.uniform(0.2, 1.5))
                await operator.kill()
                outcome.kills += 1
                if outcome.kills >= _LEAST_KILLS:
                    enough.set()

        async def restart_api_server() -> None:
            while True:
                await asyncio.sleep(max(4.0, seconds / 4))
                if plane:
                    await asyncio.to_thread(plane.restart, "kube-apiserver")
                else:
                    # LocalCluster starts it again, from what is on disk.
                    os.kill(local.processes["apiserver"], signal.SIGKILL)
                outcome.restarts += 1

        breaking = [
            asyncio.create_task(kill_operators()),
            asyncio.create_task(restart_api_server()),
        ]
        try:
            await apply(client, changes, seconds)
            # A slow machine starts operators slowly; it shall be no quiet time there either.
            waiting = asyncio.create_task(enough.wait())
            await asyncio.wait(
                {waiting, *breaking},
                timeout=_SETTLE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            waiting.cancel()
        finally:
            for task in breaking:
                task.cancel()
            ended = await asyncio.gather(*breaking, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise error if isinstance(error, BaseException) else AssertionError(error)
        await operator.kill()
        outcome.faults = dict(proxy.counted)
        proxy.faults = NONE
        await operator.start()
        outcome.disturbed = await settled(client, lambda now: now == outcome.undisturbed)


async def run(folder: Path, *, seconds: float, seed: int) -> Outcome:
    changes, outcome = script(seed), Outcome()
    outcome.undisturbed = _rested(await undisturbed(changes, folder / "undisturbed"))
    await disturbed(changes, folder / "disturbed", seconds, seed, outcome)
    return outcome


def run_on_real(folder: Path, *, seconds: float, seed: int) -> Outcome:
    """Not within an event loop: control planes start outside of one."""
    changes, outcome = script(seed), Outcome()
    with RealControlPlane() as plane:
        found = asyncio.run(undisturbed(changes, folder / "undisturbed", plane))
    outcome.undisturbed = _rested(found)
    with RealControlPlane() as plane:
        work = disturbed(changes, folder / "disturbed", seconds, seed, outcome, plane)
        asyncio.run(work)
    return outcome


def _rested(found: dict[str, Any]) -> dict[str, Any]:
    if not at_rest(found):
        raise AssertionError(f"even undisturbed it does not come to rest: {found}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=300, help="of changes; default 300")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--control-plane", choices=("embedded", "real"), default="embedded")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with TemporaryDirectory() as folder:
        if given.control_plane == "real":
            outcome = run_on_real(Path(folder), seconds=given.seconds, seed=given.seed)
        else:
            outcome = asyncio.run(run(Path(folder), seconds=given.seconds, seed=given.seed))
    print(f"{outcome.kills} kills, {outcome.restarts} API server restarts, {outcome.faults}")
    differences = outcome.differences()
    print("\n".join(differences) or f"all {JOBS} jobs ended as undisturbed")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
