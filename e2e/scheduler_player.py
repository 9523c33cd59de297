"""Plays the scenarios of volcano_observed.yaml on an API server, with any scheduler.

    VOLCANO_BIN=FOLDER python -m e2e.scheduler_player --record [--runs N] [NAME...]

plays them on the real control plane with the real Volcano and writes what was seen into the file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from e2e import volcano
from embedded_cluster.component import Component
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from embedded_cluster.kubelet import node
from embedded_cluster.kubelet.fake import FakePods
from tests.embedded_cluster.scheduler import volcano_scenario as world
from volcano_elastic.kube.client import AlreadyExists, Client, Conflict, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import (
    EVENTS,
    NAMESPACES,
    NODES,
    PODGROUPS,
    PODS,
    PRIORITYCLASSES,
    QUEUES,
)

# So long nothing may change before a snapshot is what it came to. Volcano's own loop is 0.2 s here.
_QUIET_SECONDS = 3.0
# Until a scenario lets time pass, pods that cool do so for that long: however slow the machine is,
# what becomes of them meanwhile is seen.
_COOLS = timedelta(hours=1)
# An outcome that was to be seen is there that long, at least.
_STAYS_SECONDS = 0.6
_PATIENCE_SECONDS = 180.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1
_NUMBERS = itertools.count(1)


@contextmanager
def scheduler(plane: ControlPlane, configuration: str) -> Iterator[Component]:
    """Runs it: the real Volcano where VOLCANO_BIN is set, else ours. Call it on the main thread."""
    conf = plane.folder / "volcano-scheduler.conf"
    conf.write_text(configuration)
    asyncio.run(_serve_its_kinds(plane))
    commands = volcano.commands(plane, conf, "--schedule-period=200ms") or {
        "scheduler": [
            *(sys.executable, "-m", "embedded_cluster.scheduler"),
            *("--kubeconfig", str(plane.kubeconfig), "--scheduler-conf", str(conf)),
        ]
    }
    programs = [
        Component(name, command, plane.folder / f"{name}.log", plane.start)
        for name, command in commands.items()
    ]
    try:
        for program in programs:
            program.start()
        yield programs[0]
    finally:
        for program in programs:
            program.send(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for program in programs:
            while program.running():
                if time.monotonic() > deadline:
                    program.send(signal.SIGKILL)
                time.sleep(0.02)


async def _serve_its_kinds(plane: ControlPlane) -> None:
    async with plane.client() as client:
        await volcano.serve_its_kinds(client)


class Player:
    """One scenario on one API server, in a namespace of its own."""

    def __init__(self, client: Client, scenario: world.Scenario, scheduler: Component) -> None:
        self._client, self._scenario, self._scheduler = client, scenario, scheduler
        self._namespace = f"scenario-{next(_NUMBERS)}"
        self._gangs: dict[str, Mapping[str, Any]] = {}
        self._made: list[str] = []

    async def play(self, *, settled: bool = False) -> list[world.Snapshot]:
        """The snapshots. Each is awaited until it is one of those observed after what was seen so
        far, or for 45 s; with `settled`, until nothing changes any more."""
        async with self._cluster():
            seen: list[world.Snapshot] = []
            for step, follows in itertools.pairwise((*self._scenario.steps, {})):
                if "snapshot" in step:
                    wait = self._settled if settled else self._expected
                    seen.append(await wait(step["snapshot"], seen))
                    continue
                # Gangs that come together are seen together, however long it takes to create them.
                if "gang" in step and "gang" in follows:
                    self._scheduler.send(signal.SIGSTOP)
                try:
                    await self._do(step)
                finally:
                    if "gang" not in follows:
                        self._scheduler.send(signal.SIGCONT)
            return seen

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[None]:
        nodes, scenario = list(self._scenario.nodes), self._scenario
        try:
            await self._prepare()
            pods = Informer(self._client, PODS)
            kubelet = FakePods(self._client, pods, frozenset(nodes))
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(pods.run()), tasks.create_task(kubelet.run())]
                try:
                    yield
                finally:
                    for task in running:
                        task.cancel()
        finally:
            for resource in (PODS, PODGROUPS):
                grace = {"gracePeriodSeconds": "0"}
                await self._client.request("DELETE", resource.path(self._namespace), params=grace)
            for resource, names in (
                (NODES, nodes),
                (QUEUES, scenario.queues),
                (PRIORITYCLASSES, scenario.priorities),
                (NAMESPACES, [self._namespace]),
            ):
                for name in names:
                    await self._remove(resource, name)

    async def _prepare(self) -> None:
        metadata = {"metadata": {"name": self._namespace}}
        await self._client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", **metadata})
        for name, gpus in self._scenario.nodes.items():
            await node.register(self._client, [name], gpus)
        for name, spec in self._scenario.queues.items():
            await self._create(QUEUES, {"metadata": {"name": name}, "spec": dict(spec)})
        for name, value in self._scenario.priorities.items():
            await self._create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": value})
        await self._until_open([*self._scenario.queues, "default"])
        await self._until_accepted()

    async def _until_open(self, names: Sequence[str]) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for name in names:
                state = None
                while state != "Open":
                    try:
                        queue = await self._client.get(QUEUES, name)
                        state = (queue.get("status") or {}).get("state")
                    except NotFound:
                        state = None
                    await asyncio.sleep(_POLL_SECONDS)

    async def _until_accepted(self) -> None:
        """A real API server refuses pods until the namespace has its service account."""
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts"
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        try:
            await self._client.request("POST", path, body=account)
        except (AlreadyExists, NotFound):
            return

    async def _create(self, resource: Any, body: dict[str, Any]) -> None:
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        await self._client.create(resource, kind | body)

    async def _remove(self, resource: Any, name: str) -> None:
        try:
            await self._client.delete(resource, name, None)
        except NotFound:
            return

    async def _do(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"gang": gang}:
                await self._cool_from(datetime.now(UTC) + _COOLS)
                self._gangs[gang["name"]] = gang
                await self._client.create(PODGROUPS, world.podgroup(self._namespace, gang))
                await self._create_pods(world.pods(self._namespace, gang))
            case {"add_pods": {"gang": name, "indexes": indexes}}:
                gang = self._gangs[name]
                await self._create_pods(world.pods(self._namespace, gang, indexes))
            case {"delete_pod": name}:
                await self._client.delete(PODS, name, self._namespace)
                await self._until_gone(name)
            case {"patch_podgroup": {"name": name, "spec": spec}}:
                await self._client.patch(PODGROUPS, name, self._namespace, {"spec": spec})
            case {"patch_queue": {"name": name, **body}}:
                part = "status" if "status" in body else None
                await self._client.patch(QUEUES, name, None, body, subresource=part)
            case {"sleep": _}:
                await self._cool_from(datetime.now(UTC))
                await asyncio.sleep(world.duration(step).total_seconds())
            case _:
                raise ValueError(f"{self._scenario.name}: no such step: {step}")

    async def _create_pods(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            self._made.append(pod["metadata"]["name"])
            await self._client.create(PODS, pod)

    async def _cool_from(self, moment: datetime) -> None:
        """Have all pods that cool do so from that moment on, for they were scheduled then."""
        for gang in self._gangs.values():
            if "cooldown" in gang:
                for pod in world.pods(self._namespace, gang):
                    await self._was_scheduled(pod["metadata"]["name"], moment)

    async def _was_scheduled(self, name: str, moment: datetime) -> None:
        text = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                pod = await self._client.get(PODS, name, self._namespace)
                status = pod["status"]
                # Until it runs its kubelet has yet to write the conditions.
                if status.get("phase") == "Running":
                    conditions = [
                        one | {"lastTransitionTime": text} if one["type"] == "PodScheduled" else one
                        for one in status["conditions"]
                    ]
                    version = {"resourceVersion": pod["metadata"]["resourceVersion"]}
                    body = {"metadata": version, "status": {"conditions": conditions}}
                    with suppress(Conflict):
                        await self._client.patch(
                            PODS, name, self._namespace, body, subresource="status"
                        )
                        return
                await asyncio.sleep(_POLL_SECONDS)

    async def _until_gone(self, pod: str) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                try:
                    await self._client.get(PODS, pod, self._namespace)
                except NotFound:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def _settled(self, at: str, seen: list[world.Snapshot]) -> world.Snapshot:
        found, since = await self._look(at), time.monotonic()
        while time.monotonic() - since < _QUIET_SECONDS:
            await asyncio.sleep(_POLL_SECONDS)
            now = await self._look(at)
            if now != found:
                found, since = now, time.monotonic()
        return found

    async def _expected(self, at: str, seen: list[world.Snapshot]) -> world.Snapshot:
        deadline, since = time.monotonic() + _PATIENCE_SECONDS, None
        while True:
            found, now = await self._look(at), time.monotonic()
            since = (since or now) if self._scenario.possible_after([*seen, found]) else None
            if now > deadline or (since is not None and now - since > _STAYS_SECONDS):
                return found
            await asyncio.sleep(_POLL_SECONDS)

    async def _look(self, at: str) -> world.Snapshot:
        events = (await self._client.list(EVENTS, self._namespace))["items"]
        lists = [
            (await self._client.list(resource, namespace))["items"]
            for resource, namespace in (
                (PODS, self._namespace),
                (PODGROUPS, self._namespace),
                (QUEUES, None),
            )
        ]
        return world.snapshot(
            at,
            made=self._made,
            pods=lists[0],
            podgroups=lists[1],
            queues=lists[2],
            evicted={
                f"{e['involvedObject']['name']} {e['message'].rsplit(' ', 1)[1]}"
                for e in events
                if e["reason"] == "Evict" and e["involvedObject"]["kind"] == "Pod"
            },
        )


async def play(
    plane: ControlPlane, scenario: world.Scenario, scheduler: Component, *, settled: bool = False
) -> list[world.Snapshot]:
    """See Player.play."""
    async with plane.client() as client:
        return await Player(client, scenario, scheduler).play(settled=settled)


# Recording


def _record(path: Path, names: Sequence[str], runs: int) -> None:
    document = yaml.safe_load(path.read_text())
    chosen = [s for s in document["scenarios"] if not names or s["name"] in names]
    chosen.sort(key=lambda scenario: str(scenario["configuration"]))
    scenarios = {scenario.name: scenario for scenario in world.load(path)}
    with RealControlPlane() as plane:
        for key, group in itertools.groupby(chosen, lambda s: str(s["configuration"])):
            with scheduler(plane, document["configurations"][key]) as running:
                for entry in group:
                    for _ in range(runs):
                        seen = asyncio.run(
                            play(plane, scenarios[entry["name"]], running, settled=True)
                        )
                        _note(entry, seen)
                        print(entry["name"], *seen, sep="\n  ", flush=True)
                        path.write_text(_text(document))


def _note(entry: dict[str, Any], seen: list[world.Snapshot]) -> None:
    outcomes = entry.setdefault("observed", [])
    for outcome in outcomes:
        if outcome["snapshots"] == seen:
            outcome["times"] += 1
            return
    outcomes.append({"times": 1, "snapshots": seen})


class _Dumper(yaml.SafeDumper):
    """A mapping on one line where that can be read; a configuration's text as it is."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _mapping(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.Node:
    flat = len(str(data)) < 400 and not data.keys() & {"observed", "snapshots", "configurations"}
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=flat)


def _string(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
    style = "|" if "\n" in data else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(dict, _mapping)
_Dumper.add_representer(str, _string)


def _text(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=400)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; default: all")
    parser.add_argument("--record", type=Path, nargs="?", const=world.FILE, required=True)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    if volcano.folder() is None:
        parser.error("VOLCANO_BIN: expected the folder of the real Volcano's programs, found none")
    _record(options.record, options.names, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
