"""hold and resume: which policy changes, and what it is afterwards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.operator.process import install
from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.cli.hold import MODE_BEFORE, decide
from volcano_elastic.cli.main import main
from volcano_elastic.cli.observation import Trouble
from volcano_elastic.kube.resource import QUEUEPOLICIES, QUEUES

Object = dict[str, Any]


def policy(name: str = "p", mode: str = "Active", before: str | None = None, **meta: Any) -> Object:
    annotations = {MODE_BEFORE: before} if before else {}
    given = {"name": name, "resourceVersion": "7", "annotations": annotations} | meta
    return {"metadata": given, "spec": {"queue": "q", "mode": mode}}


def test_a_queue_without_a_policy_gets_one() -> None:
    change = decide("q", [], Mode.HOLD)
    assert change.create is not None
    assert change.create["spec"] == {"queue": "q", "mode": "Hold"}
    assert change.create["metadata"]["name"] == "q"


@pytest.mark.parametrize(
    ("taken", "name"),
    [(["q"], "q-hold"), (["q", "q-hold"], "q-hold-2"), (["q", "q-hold", "q-hold-2"], "q-hold-3")],
)
def test_a_policy_made_by_hold_takes_no_name_of_another_queues(taken: list[str], name: str) -> None:
    """`q-hold` may be a queue, with a policy of its own."""
    others = [policy(one) for one in taken]
    for other in others:
        other["spec"]["queue"] = "another"
    made = decide("q", others, Mode.HOLD)
    assert made.create is not None and made.create["metadata"]["name"] == made.policy == name


def test_what_it_was_before_comes_back() -> None:
    held = decide("q", [policy(mode="DryRun")], Mode.HOLD)
    assert held.patch is not None and held.patch["spec"] == {"mode": "Hold"}
    assert held.patch["metadata"]["annotations"] == {MODE_BEFORE: "DryRun"}
    drained = decide("q", [policy(mode="Hold", before="DryRun")], Mode.HOLD_AND_DRAIN)
    assert drained.patch is not None
    assert drained.patch["metadata"]["annotations"] == {MODE_BEFORE: "DryRun"}
    resumed = decide("q", [policy(mode="HoldAndDrain", before="DryRun")], None)
    assert resumed.patch is not None and resumed.patch["spec"] == {"mode": "DryRun"}
    assert resumed.patch["metadata"]["annotations"] == {MODE_BEFORE: None}


def made_by_hold(mode: Mode, **spec: Any) -> Object:
    """Return the object as the API server keeps it."""
    made = decide("q", [], mode).create
    assert made is not None
    made["metadata"]["resourceVersion"] = "7"
    made["spec"] |= {"grow": {"stabilizationSeconds": 1}} | spec
    return made


@pytest.mark.parametrize("mode", [Mode.HOLD, Mode.HOLD_AND_DRAIN])
def test_a_policy_made_by_hold_goes(mode: Mode) -> None:
    """It said nothing but its mode."""
    resumed = decide("q", [made_by_hold(mode)], None)
    assert (resumed.delete, resumed.patch, resumed.mode) == ("7", None, Mode.ACTIVE)


def test_a_policy_made_by_hold_and_edited_since_stays() -> None:
    resumed = decide("q", [made_by_hold(Mode.HOLD, borrowing={"limit": 2})], None)
    assert resumed.delete is None
    assert resumed.patch is not None and resumed.patch["spec"] == {"mode": "Active"}
    assert resumed.patch["metadata"]["annotations"] == {MODE_BEFORE: None}


def test_a_policy_that_was_there_before_stays() -> None:
    """Even if it says nothing but what hold would have."""
    assert decide("q", [policy(mode="Hold", before="Active")], None).delete is None


@pytest.mark.parametrize("before", [None, "Nonsense"])
def test_a_hold_by_an_editor_ends_in_active(before: str | None) -> None:
    assert decide("q", [policy(mode="Hold", before=before)], None).mode is Mode.ACTIVE


@pytest.mark.parametrize(
    ("found", "mode"), [([policy(mode="Hold")], Mode.HOLD), ([policy()], None), ([], None)]
)
def test_what_is_so_already_is_left_alone(found: list[Object], mode: Mode | None) -> None:
    change = decide("q", found, mode)
    assert change.create is None and change.patch is None


def test_the_oldest_policy_of_the_queue_is_the_one_to_change() -> None:
    young = policy("a", creationTimestamp="2026-01-02T00:00:00Z")
    old = policy("b", creationTimestamp="2026-01-01T00:00:00Z")
    assert decide("q", [young, old], Mode.HOLD).policy == "b"


def test_a_policy_that_cannot_be_applied_is_named() -> None:
    with pytest.raises(Trouble, match=r"QueuePolicy p is for q .* spec.mode: must be one of"):
        decide("q", [policy(mode="Sometimes")], Mode.HOLD)


@pytest.mark.process
async def test_on_a_cluster(tmp_path: Path) -> None:
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client:
            await install(client)

            async def run(*arguments: str) -> tuple[int, str]:
                given = [*arguments, "--kubeconfig", str(server.kubeconfig())]
                done = await asyncio.to_thread(CliRunner().invoke, main, given)
                return done.exit_code, done.output

            async def mode() -> str:
                found = await client.get(QUEUEPOLICIES, "default")
                return str(found["spec"]["mode"])

            assert await run("hold", "default") == (
                0,
                "queue default: Active -> Hold (QueuePolicy default)\n",
            )
            assert await mode() == "Hold"
            code, text = await run("hold", "default", "--drain", "--json")
            assert (code, json.loads(text)["mode"], await mode()) == (0, *["HoldAndDrain"] * 2)
            assert (await run("resume", "default"))[0] == 0
            assert (await client.list(QUEUEPOLICIES))["items"] == []
            rule = {"apiVersion": QUEUEPOLICIES.api_version, "kind": QUEUEPOLICIES.kind}
            named = rule | {"metadata": {"name": "default"}, "spec": {"queue": "default"}}
            await client.create(QUEUEPOLICIES, named)
            assert [(await run(verb, "default"))[0] for verb in ("hold", "resume")] == [0, 0]
            assert await mode() == "Active"
            found = await client.get(QUEUEPOLICIES, "default")
            assert MODE_BEFORE not in (found["metadata"].get("annotations") or {})
            head = {"apiVersion": QUEUES.api_version, "kind": QUEUES.kind}
            child = head | {"metadata": {"name": "child"}, "spec": {"parent": "default"}}
            await client.create(QUEUES, child)
            code, text = await run("hold", "default", "--json")
            assert (code, json.loads(text)["below"]) == (0, ["child"])
            code, text = await run("resume", "default")
            assert code == 0 and "queues below it keep modes of their own: child" in text
            code, text = await run("hold", "nowhere")
            assert code == 2 and "there is no queue nowhere; there are: child, default" in text
