"""plan, explain, top and replay on saved snapshots; what-if files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.queue_policy.world import GPU, NOW, gpus, job, node, pods, ruled, world
from volcano_elastic.api.queue_policy import Grow, Mode, QueuePolicy, Surplus
from volcano_elastic.cli.explain import newcomer, victims_for
from volcano_elastic.cli.main import main
from volcano_elastic.cli.manifest_changes import apply
from volcano_elastic.cli.top import top_json, view
from volcano_elastic.cluster_state.reason import WORDS, Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.changes import Changes, changed
from volcano_elastic.snapshot.codec import Observation, encode
from volcano_elastic.snapshot.snapshot import Job, Pod, Queue, Snapshot

A = job(
    "a",
    *(1, 4, 4),
    speeds={4: 120.0},
    last_scale=NOW - timedelta(seconds=30),
    last_reason="GrewIntoIdle",
)
FULL = world([node("n", 4)], [A], pods(A, "n", "n", "n", "n"))
"""`a` holds all four GPUs, three of them as surplus."""
B = job("b", 2, 2)
WAITING = replace(FULL, jobs=(A, B))
"""`b` needs two of them."""


def run(*arguments: object, text: str | None = None) -> Result:
    environment = {"KUBECONFIG": "/nowhere"}
    return CliRunner().invoke(main, [str(word) for word in arguments], input=text, env=environment)


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(snapshot: Snapshot, name: str = "s.json", at: timedelta = timedelta(0)) -> Path:
        file = tmp_path / name
        file.write_bytes(encode(Observation(NOW + at, snapshot)))
        return file

    return save


@pytest.fixture
def manifest(tmp_path: Path) -> Any:
    def write(*objects: dict[str, Any]) -> Path:
        file = tmp_path / "what-if.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        return file

    return write


def torch_job(name: str, low: int, high: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "i", "resources": {"limits": {GPU: 1}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "elasticPolicy": {"min": low, "max": high},
            "pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [container]}}}},
        }
        | spec,
    }


def policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy.volcano-elastic.io/v1alpha1",
        "kind": "QueuePolicy",
        "metadata": {"name": name},
        "spec": {"queue": "default"} | spec,
    }


# plan


def test_plan_shows_who_gives_what_to_whom(saved: Any) -> None:
    said = run("plan", "--snapshot", saved(WAITING))
    assert said.exit_code == 0
    (line,) = [line for line in said.output.splitlines() if line.startswith("ns/a")]
    assert "4 → 2  ShrunkForMinimum  b needs 2 GPUs to start" in line
    assert line.rstrip().endswith("leaving: a-worker-3, a-worker-2")
    assert "\x1b" not in said.output


def test_plan_json_has_the_documented_fields(saved: Any) -> None:
    said = run("plan", "--json", "--snapshot", "-", text=saved(WAITING).read_text())
    found = json.loads(said.output)
    (decision,) = found["decisions"]
    assert decision.pop("message").startswith("b needs 2 GPUs")
    assert decision == {
        "job": "ns/a",
        "from": 4,
        "to": 2,
        "reason": "ShrunkForMinimum",
        "pods": ["ns/a-worker-3", "ns/a-worker-2"],
        "protect": [],
        "dryRun": False,
    }
    assert (found["time"], found["blocked"]) == ("2026-01-01T12:00:00.000000Z", [])
    (figures,) = found["queues"]
    assert figures == {
        "queue": "default",
        "resource": GPU,
        "free": "0",
        "guaranteed": "1",
        "surplus": "3",
        "borrowed": "0",
        "owedToMinimums": "2",
        "jobs": 2,
        "problem": None,
    }


def test_a_pod_that_finds_no_room_is_shown_and_is_no_failure(saved: Any) -> None:
    web = Pod("shop/web-0", "w", gpus(1), created=NOW, unschedulable_since=NOW)
    file = saved(replace(FULL, jobs=(replace(A, priority=1),), pods=(*FULL.pods, web)))
    said = run("plan", "--snapshot", file)
    assert (said.exit_code, "pod shop/web-0" in said.output) == (0, True)
    found = json.loads(run("plan", "--json", "--snapshot", file).output)
    assert [entry["pod"] for entry in found["blockedPods"]] == ["shop/web-0"]
    assert "pod shop/web-0" in run("replay", file.parent).output


def test_plan_exits_with_1_when_a_minimum_cannot_start(saved: Any) -> None:
    file = saved(replace(FULL, jobs=(A, job("huge", 9, 9))))
    said = run("plan", "--snapshot", file)
    assert said.exit_code == 1
    assert "ns/huge" in said.output and "Blocked" in said.output
    found = json.loads(run("plan", "--json", "--snapshot", file).output)
    assert [entry["job"] for entry in found["blocked"]] == ["ns/huge"]
    assert [entry["job"] for entry in found["unchanged"]] == ["ns/a"]


def test_plan_of_nothing_says_so(saved: Any) -> None:
    assert "nothing to decide" in run("plan", "--snapshot", saved(Snapshot())).output


# what-if


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


def queue(name: str = "default", **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    return head | {"metadata": {"name": name}, "spec": spec}


def a_node(name: str = "n", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} | parts


PRIORITY = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}


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
    """What `kubectl get -o yaml` wrote, edited by hand."""
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


# explain


def test_explain_says_what_a_job_waits_for_and_who_gives_way(saved: Any) -> None:
    said = run("explain", "b", "--snapshot", saved(WAITING))
    assert said.exit_code == 0
    assert "waits for:    a node for 2 workers" in said.output
    assert "gives way:    ns/a (4 → 2, a-worker-3 and a-worker-2)" in said.output


def test_explain_says_why_not_more_and_why_not_less(saved: Any) -> None:
    said = run("explain", "ns/a", "--snapshot", saved(FULL)).output
    assert said.startswith("ns/a: 4 workers (min 1, max 4) in queue default, 4 running\n")
    assert "policy:       defaults, mode Active" in said
    assert "last change:  GrewIntoIdle 30 s ago, cooling down for 30 s more" in said
    assert f"why not more: {WORDS[Reason.AT_MAX]}" in said
    assert f"why not less: {WORDS[Reason.NOBODY_WAITS]}" in said
    assert "one more such pod in the queue: ns/a (4 → 3, a-worker-3) would give way" in said


def test_explain_json_has_the_documented_fields(saved: Any) -> None:
    found = json.loads(run("explain", "a", "--json", "--snapshot", saved(FULL)).output)
    more = found.pop("ifOneMoreCame")
    assert more["fits"] and [d["pods"] for d in more["givesWay"]] == [["ns/a-worker-3"]]
    assert found.pop("whyNotMore") == {"reason": "AtMax", "words": WORDS[Reason.AT_MAX]}
    assert found.pop("whyNotLess")["reason"] == "NobodyWaits"
    assert found == {
        "job": "ns/a",
        "queue": "default",
        "min": 1,
        "max": 4,
        "size": 4,
        "running": 4,
        "waiting": 0,
        "policy": None,
        "mode": "Active",
        "cooldownSeconds": 30.0,
        "decision": None,
        "blocked": None,
        "queueProblem": None,
        "givesWay": [],
    }


def test_explain_exits_with_1_when_the_job_cannot_start(saved: Any) -> None:
    file = saved(replace(FULL, jobs=(A, job("huge", 9, 9))))
    said = run("explain", "huge", "--snapshot", file)
    assert said.exit_code == 1 and "waits for:    it needs 9 GPUs" in said.output
    assert "it could not start" not in said.output


def test_explain_names_the_jobs_there_are(saved: Any) -> None:
    none = run("explain", "c", "--snapshot", saved(WAITING))
    assert none.exit_code == 2 and "Jobs that do: ns/a and ns/b" in none.stderr
    twins = replace(FULL, jobs=(A, replace(A, key="other/a")))
    both = run("explain", "a", "--snapshot", saved(twins))
    assert both.exit_code == 2 and "There are ns/a and other/a" in both.stderr
    assert run("explain", "other/a", "--snapshot", saved(twins)).exit_code == 0


def test_nobody_gives_way_where_idle_room_does() -> None:
    roomy = replace(FULL, nodes=(*FULL.nodes, node("m", 4)))
    assert victims_for(roomy, NOW, newcomer(A, NOW)) == ()


RING = (Queue("default", parent="up"), Queue("up", parent="default"))
ORPHAN = (Queue("default", parent="ghost"),)


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        (RING, "its parents run in a ring (default → up → default)"),
        (ORPHAN, "its parent ghost does not exist"),
    ],
    ids=["ring", "no such parent"],
)
def test_parents_that_cannot_be_are_said_by_every_tool(
    queues: tuple[Queue, ...], problem: str, saved: Any
) -> None:
    from rich.console import Console

    seen = replace(WAITING, queues=queues)
    file = saved(seen)
    said = run("plan", "--snapshot", file)
    assert said.exit_code == 0 and f"Warning: queue default: {problem}" in said.stderr
    found = json.loads(run("plan", "--json", "--snapshot", file).stdout)
    assert found["queues"][0]["problem"].startswith(problem)
    assert f"queue:        {problem}" in run("explain", "ns/a", "--snapshot", file).output
    found = json.loads(run("explain", "ns/a", "--json", "--snapshot", file).output)
    assert found["queueProblem"].startswith(problem)
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, seen)))
    assert f"queue default: {problem}" in shown.get()


def test_explain_says_that_what_is_free_is_less_than_a_node_unit(saved: Any) -> None:
    pair = replace(A, min=2, max=6, desired=2, node_unit=2, last_scale=None)
    queues = (Queue("default", deserved=gpus(2)),)
    rule = QueuePolicy("default", name="p", borrowing_limit=1000)
    seen = world([node("n", 4)], [pair], pods(pair, "n", "n"), queues=queues)
    said = run("explain", "ns/a", "--snapshot", saved(replace(seen, policies=(rule,)))).output
    assert (
        "why not more: its queue may not hold more; it grows by whole nodeUnits of 2 workers, "
        f"which need 2 {GPU}, and 1 is free"
    ) in said
    roomy = replace(seen, policies=(replace(rule, borrowing_limit=2000),))
    assert plan(roomy, NOW).decisions[0].new == 4


@pytest.mark.parametrize(
    ("fields", "rules", "reason", "rest"),
    [
        (
            {},
            {"surplus": Surplus(max_per_job=1)},
            Reason.AT_MAX_PER_JOB,
            ": 2, since policy rules has surplus.maxPerJob 1\n",
        ),
        (
            {"scaler": "hpa", "replicas": 2},
            {"surplus": Surplus(max_per_job=3)},
            Reason.AT_REPLICAS,
            ": 2, since its replicas are 2\n",
        ),
        (
            {"node_unit": 2, "max": 3, "min": 2},
            {},
            Reason.AT_MAX,
            ": 2, since its nodeUnit is 2\n",
        ),
        ({"max": 2}, {"surplus": Surplus(max_per_job=5)}, Reason.AT_MAX, "\n"),
        ({"node_unit": 2}, {"grow": Grow(max_step=1)}, Reason.MAX_STEP_TOO_SMALL, "\n"),
    ],
    ids=["maxPerJob", "hpa", "nodeUnit", "max", "maxStep"],
)
def test_every_tool_says_what_keeps_a_job_below_its_max(
    saved: Any, fields: dict[str, Any], rules: dict[str, Any], reason: Reason, rest: str
) -> None:
    from rich.console import Console

    a = replace(job("a", 1, 4, 2), **fields)
    seen = ruled(world([node("n", 4)], [a], pods(a, "n", "n")), **rules)
    file = saved(seen)
    words = WORDS[reason]
    assert f"{words}{rest}" in run("explain", "a", "--snapshot", file).output
    assert f"no more: {words}" in " ".join(run("plan", "--snapshot", file).output.split())
    assert top_json(Observation(NOW, seen), plan(seen, NOW))["jobs"][0]["next"] == str(reason)
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, seen)))
    assert words in shown.get()


# top


def test_top_shows_sizes_speeds_cooldowns_and_what_comes_next(saved: Any) -> None:
    observed = Observation(NOW, WAITING)
    found = top_json(observed, plan(WAITING, NOW))
    assert found["jobs"][0] == {
        "job": "ns/a",
        "queue": "default",
        "min": 1,
        "max": 4,
        "size": 4,
        "running": 4,
        "samplesPerSecond": 120.0,
        "cooldownSeconds": 30.0,
        "lastChange": "2026-01-01T11:59:30.000000Z",
        "lastReason": "GrewIntoIdle",
        "next": 2,
    }
    assert found["jobs"][1]["next"] == "Rigid"
    from rich.console import Console

    screen = Console(width=200)
    with screen.capture() as shown:
        screen.print(view(observed))
    text = shown.get()
    assert "4/4" in text and "120/s" in text and "30 s" in text
    assert "GrewIntoIdle 30 s ago" in text
    assert "→ 2: b needs 2 GPUs to start" in text


def test_top_says_what_a_dry_run_only_shows() -> None:
    from rich.console import Console

    roomy = world([node("n", 4)], [job("a", 1, 4)], pods(job("a", 1, 4), "n"))
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, ruled(roomy, mode=Mode.DRY_RUN))))
    assert "at most 4 workers (dry run: not carried out)" in shown.get()


def test_a_policys_cooldown_counts_where_it_is_longer() -> None:
    rule = QueuePolicy("default", name="p")
    calm = replace(rule, grow=replace(rule.grow, cooldown=timedelta(seconds=90)))
    observed = Observation(NOW, replace(FULL, policies=(calm,)))
    assert top_json(observed, plan(observed.snapshot, NOW))["jobs"][0]["cooldownSeconds"] == 60.0


def test_the_rest_after_surplus_found_no_place_is_shown_as_the_planner_keeps_it() -> None:
    changed_at = NOW - timedelta(seconds=20)
    a = job("a", 1, 4, cooldown=timedelta(0), last_scale=changed_at, last_reason="SurplusUnplaced")
    observed = Observation(NOW, world([node("n", 4)], [a], pods(a, "n")))
    found = top_json(observed, plan(observed.snapshot, NOW))["jobs"][0]
    assert (found["next"], found["cooldownSeconds"]) == ("CoolingDown", 40.0)


# replay


def test_replay_plans_each_snapshot_in_the_order_of_time(saved: Any, tmp_path: Path) -> None:
    saved(WAITING, "1.json", timedelta(hours=1))
    saved(FULL, "2.json")
    lines = run("replay", tmp_path).output.splitlines()[1:]
    assert lines[0].startswith("2026-01-01T12:00:00+00:00") and "no change" in lines[0]
    assert lines[1].startswith("2026-01-01T13:00:00+00:00") and "4 → 2" in lines[1]
    said = [json.loads(line) for line in run("replay", tmp_path, "--json").output.splitlines()]
    assert [(entry["file"], len(entry["decisions"])) for entry in said] == [
        ("2.json", 0),
        ("1.json", 1),
    ]
    (tmp_path / "3.json").write_text("{}")
    broken = run("replay", tmp_path)
    assert broken.exit_code == 2 and "3.json: expected a snapshot" in broken.stderr


def test_replay_of_no_snapshots_is_refused(tmp_path: Path) -> None:
    assert run("replay", tmp_path / "none").exit_code == 2


# All of them


def test_without_a_cluster_it_is_said_where_it_was_looked_for() -> None:
    for command in ("plan", "top", "snapshot"):
        said = run(command)
        assert said.exit_code == 2 and "kubeconfig /nowhere: No such file" in said.stderr


def test_a_snapshot_is_the_whole_picture(saved: Any) -> None:
    said = run("plan", "--snapshot", saved(FULL), "--kubeconfig", "k")
    assert said.exit_code == 2 and "--snapshot holds it all" in said.stderr
    assert run("plan", "--snapshot", "/nowhere/s.json").exit_code == 2


TOOLS = (
    *("snapshot", "plan", "explain", "top", "replay", "check-config", "completion"),
    "check-nodes",
)


@pytest.mark.parametrize("command", TOOLS)
def test_help_has_examples(command: str) -> None:
    said = run(command, "--help")
    assert said.exit_code == 0
    assert "Example" in said.output and f"volcano-elastic {command}" in said.output
    if command != "completion":
        assert "Exits 0" in said.output


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_this_program(shell: str) -> None:
    said = run("completion", shell)
    assert said.exit_code == 0
    assert f"_VOLCANO_ELASTIC_COMPLETE={shell}_complete" in said.output


def test_usage_errors_exit_with_2() -> None:
    assert run("completion", "csh").exit_code == 2
    assert run("plan", "--snapshot").exit_code == 2
    assert run("nothing").exit_code == 2


def test_every_job_is_explained_whatever_its_kind() -> None:
    """Rigid ones, masters, ones with other resources: no figure is missing."""
    rigid: Job = replace(job("r", 2, 2), pod_requests={"cpu": 1000}, master_requests=gpus(1))
    observed = Observation(NOW, replace(FULL, jobs=(A, rigid)))
    assert [entry["job"] for entry in top_json(observed, plan(observed.snapshot, NOW))["jobs"]] == [
        "ns/a",
        "ns/r",
    ]
