"""plan --what-if: manifests that are planned for, though nobody has applied them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.world import FULL, PRIORITY, WAITING, A, a_node, policy, queue, run, torch_job
from tests.queue_policy.world import GPU, NOW
from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.cli.manifest_changes import apply
from volcano_elastic.snapshot.changes import Changes, changed
from volcano_elastic.snapshot.codec import Observation
from volcano_elastic.snapshot.snapshot import Queue


def test_a_job_that_would_come_is_planned_for(saved: Any, manifest: Any) -> None:
    file = manifest(torch_job("new", 2, 2))
    found = json.loads(run("plan", "--json", "--snapshot", saved(FULL), "--what-if", file).output)
    assert [(d["job"], d["to"]) for d in found["decisions"]] == [("ns/a", 2)]
    assert found["starts"] == ["ns/new"]
    said = run("plan", "--snapshot", saved(FULL), "--what-if", file).output
    assert re.search(
        r"ns/new +2 +Starts +it has room, once those that are asked to have left", said
    )


def test_a_job_that_would_come_in_vain_does_not_start(saved: Any, manifest: Any) -> None:
    file = manifest(torch_job("new", 4, 4))
    found = json.loads(run("plan", "--json", "--snapshot", saved(FULL), "--what-if", file).output)
    assert found["starts"] == [] and [b["job"] for b in found["blocked"]] == ["ns/new"]


def test_a_job_that_would_change_keeps_its_size_and_its_past(saved: Any, manifest: Any) -> None:
    changes = run("plan", "--snapshot", saved(FULL), "--what-if", manifest(torch_job("a", 1, 2)))
    assert "4 → 2  LoweredToMax" in changes.output
    fresh = replace(A, max=8, desired=1, last_scale=None, speeds={}, last_reason=None)
    (after,) = changed(FULL, Changes(jobs=(fresh,))).jobs
    assert after == replace(A, max=8)


def test_a_job_that_would_be_suspended_leaves_with_its_pods(saved: Any, manifest: Any) -> None:
    file = manifest(torch_job("a", 1, 4, runPolicy={"suspend": True}))
    said = json.loads(run("plan", "--json", "--snapshot", saved(WAITING), "--what-if", file).output)
    assert said["decisions"] == [] and said["queues"][0]["surplus"] == "0"


def test_a_policy_can_be_tried(saved: Any, manifest: Any) -> None:
    arguments = ["plan", "--snapshot", saved(FULL), "--what-if"]
    drained = run(*arguments, manifest(policy("p", mode="HoldAndDrain")))
    assert "4 → 1  Drained" in drained.output
    there = replace(FULL, policies=(QueuePolicy("default", name="old", created=NOW),))
    said = run("plan", "--snapshot", saved(there), "--what-if", manifest(policy("p", mode="Hold")))
    assert "Warning: QueuePolicy p has no effect: old is the older one" in said.stderr
    young = replace(there.policies[0], mode=Mode.OFF, created=NOW + timedelta(days=1))
    assert changed(there, Changes(policies=(young,))).policies == (replace(young, created=NOW),)


def test_queues_and_nodes_can_be_added_and_changed(saved: Any, manifest: Any) -> None:
    big = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "new"},
        "status": {"allocatable": {GPU: 4, "cpu": 64, "memory": "64Gi", "pods": 110}},
    }
    said = json.loads(
        run("plan", "--json", "--snapshot", saved(WAITING), "--what-if", manifest(big)).output
    )
    assert said["decisions"] == [] and said["queues"][0]["free"] == "4"
    cordoned = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    cordoned["spec"] = {"unschedulable": True}
    stuck = run("plan", "--snapshot", saved(WAITING), "--what-if", manifest(cordoned))
    assert stuck.exit_code == 1
    closed = replace(WAITING, queues=(Queue("default", open=False),))
    file = manifest(queue(capability={GPU: 5}))
    said = run("plan", "--json", "--snapshot", saved(closed), "--what-if", file)
    assert [entry["job"] for entry in json.loads(said.output)["blocked"]] == ["ns/b"]


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}], "expected one of"),
        ([torch_job("x", 4, 2)], "(PyTorchJob x): spec.elasticPolicy"),
        ([policy("p", mode="Fast")], "spec.mode: must be one of Active"),
        ([policy("p", mode=False)], "found False"),
        ([policy("p", borowing={"limit": 1})], "spec.borowing: is not a field; there are borrow"),
        ([policy("p", surplus={"oder": "Equal"})], "spec.surplus.oder: is not a field"),
        ([policy("p", headroom={"percent": ""})], "spec.headroom.percent: must be a number"),
        ([policy("p", grow={"maxStep": 0.5})], "must be an integer from 1 to 2147483647"),
        ([policy("p", rebalance={"gap": float("inf")})], "spec.rebalance.gap: must be a number"),
        ([policy("p", resource="")], "spec.resource: must name a resource"),
        ([a_node("m")], "document 1 (Node m): status.allocatable: a new node needs some"),
        (
            [policy("p"), a_node(status={"allocatable": {GPU: -4}})],
            f"document 2 (Node n): status.allocatable[{GPU}]: Invalid value: -4: must be at least",
        ),
        (
            [a_node(status={"allocatable": {3: 4}})],
            "allocatable: Invalid value: 3: names must be strings",
        ),
        ([a_node(spec={"unschedulable": "no"})], 'spec.unschedulable: Invalid value: "no"'),
        ([a_node(spec={"taints": [{"key": "k", "effect": "Never"}]})], "spec.taints[0].effect: "),
        ([{"kind": "Node"}], "apiVersion: expected a string"),
        ([queue(capability={GPU: "four"})], f"(Queue default): spec.capability[{GPU}]: Invalid"),
        ([queue(deserved=[4])], "spec.deserved: Invalid value: [4]: must be an object"),
        ([queue(weight=0)], "spec.weight: Invalid value: 0: must be an integer from 1 to 65535"),
        ([queue(guarantee={"resource": {GPU: 2}}, deserved={GPU: 1})], "above its deserved, 1"),
        ([queue() | {"apiVersion": "v1"}], "apiVersion: expected scheduling.volcano.sh/v1beta1"),
        ([queue(name="")], "metadata.name: expected a string, found ''"),
        (
            [queue() | {"metadata": {"name": "q", "creationTimestamp": "today"}}],
            "metadata.creationTimestamp: must be a time such as 2026-01-31T12:00:00Z, found",
        ),
        ([PRIORITY | {"metadata": {"name": "p"}}], "(PriorityClass p): value: Required value"),
        ([PRIORITY | {"metadata": {"name": "p"}, "value": "9"}], 'value: Invalid value: "9"'),
    ],
)
def test_a_what_if_that_cannot_be_is_refused_with_the_place(
    objects: list[dict[str, Any]], message: str, saved: Any, manifest: Any
) -> None:
    file = manifest(*objects)
    said = run("plan", "--snapshot", saved(FULL), "--what-if", file)
    assert said.exit_code == 2
    assert f"{file}, document" in said.stderr and message in said.stderr


def test_a_field_that_nobody_reads_is_said_with_the_likely_one(saved: Any, manifest: Any) -> None:
    file = manifest(queue(deservd={GPU: 1}), torch_job("x", 1, 2, elasticPolcy={}))
    said = run("plan", "--snapshot", saved(FULL), "--what-if", file)
    assert said.exit_code == 0
    assert "document 1 (Queue default): unknown field spec.deservd; did you" in said.stderr
    assert "document 2 (PyTorchJob x): unknown field spec.elasticPolcy; did you" in said.stderr


def test_a_list_as_kubectl_writes_it_is_all_that_is_in_it(saved: Any, manifest: Any) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [queue(), policy("p", mode="Fast")]}
    said = run("plan", "--snapshot", saved(FULL), "--what-if", manifest(listed))
    assert said.exit_code == 2
    assert "document 1 (QueuePolicy p): spec.mode: must be one of" in said.stderr
    broken = run("plan", "--snapshot", saved(FULL), "--what-if", manifest(listed | {"items": 3}))
    assert broken.exit_code == 2 and "expected an object with apiVersion" in broken.stderr


def test_a_time_in_yaml_needs_no_quotes(saved: Any, tmp_path: Path) -> None:
    """`kubectl get -o yaml` wrote it, and somebody edited it by hand."""
    file = tmp_path / "p.yaml"
    text = yaml.safe_dump(policy("p", mode="Hold"))
    file.write_text(text.replace("name: p", "name: p\n  creationTimestamp: 2026-01-01T00:00:00Z"))
    older = replace(FULL, policies=(QueuePolicy("default", name="q", created=NOW),))
    said = run("plan", "--snapshot", saved(older), "--what-if", file)
    assert (said.exit_code, said.stderr) == (0, "")


def test_priorities_come_from_the_file_or_stay(saved: Any, manifest: Any) -> None:
    def torch(name: str) -> dict[str, Any]:
        scheduling = {"schedulingPolicy": {"priorityClass": "high"}}
        return torch_job(name, 1, 4, runPolicy=scheduling)

    known = replace(FULL, jobs=(replace(A, priority=7),))
    observed = Observation(NOW, known)
    said: list[str] = []
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9}
    high["metadata"] = {"name": "high"}
    for objects, wanted in (
        ([torch_job("a", 1, 4)], {"ns/a": 7}),
        ([torch("a"), torch("new")], {"ns/a": 7, "ns/new": 0}),
        ([torch("a"), torch("new"), high], {"ns/a": 9, "ns/new": 9}),
    ):
        after = apply(manifest(*objects), observed, said.append)
        assert {found.key: found.priority for found in after.jobs} == wanted
    assert said == ["ns/new counts as of priority 0: add its PriorityClass high to the file"]


def test_a_job_for_a_queue_that_is_not_there_warns(saved: Any, manifest: Any) -> None:
    away = torch_job("x", 1, 1, runPolicy={"schedulingPolicy": {"queue": "gone"}})
    said = run("plan", "--snapshot", saved(FULL), "--what-if", manifest(away))
    assert "there is no queue gone" in said.stderr
