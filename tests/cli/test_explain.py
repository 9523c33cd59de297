"""explain, on saved snapshots."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.cli.world import FULL, WAITING, A, run
from tests.queue_policy.world import GPU, NOW, gpus, job, node, pods, world
from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.cli.explain import newcomer, victims_for
from volcano_elastic.cli.top import top_json
from volcano_elastic.cluster_state.reason import WORDS, Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.codec import Observation
from volcano_elastic.snapshot.snapshot import Job, Queue


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


def test_explain_counts_no_pod_that_crash_loops_as_running(saved: Any) -> None:
    loops = tuple(
        replace(pod, halted="CrashLoopBackOff") if pod.index else pod for pod in FULL.pods
    )
    said = run("explain", "ns/a", "--snapshot", saved(replace(FULL, pods=loops))).output
    assert "in queue default, 1 running\n  not running:  3 CrashLoopBackOff\n" in said


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
        "halted": {},
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


def test_explain_says_that_what_is_free_is_less_than_a_node_unit(saved: Any) -> None:
    pair = replace(A, min=2, max=6, desired=2, node_unit=2, last_scale=None)
    queues = (Queue("default", deserved=gpus(2)),)
    rule = QueuePolicy("default", name="p", borrowing_limit=1000)
    seen = world([node("n", 4)], [pair], pods(pair, "n", "n"), queues=queues)
    said = run("explain", "ns/a", "--snapshot", saved(replace(seen, policies=(rule,)))).output
    assert (
        "why not more: its queue may not hold more: policy p has borrowing.limit 1; it grows by "
        f"whole nodeUnits of 2 workers, which need 2 {GPU}, and 1 is free"
    ) in said
    roomy = replace(seen, policies=(replace(rule, borrowing_limit=2000),))
    assert plan(roomy, NOW).decisions[0].new == 4


def test_explain_names_what_the_queue_is_held_to(saved: Any) -> None:
    queues = (Queue("default", deserved=gpus(1), capability=gpus(2)),)
    two = replace(A, desired=2, last_scale=None)
    seen = world([node("n", 4)], [two], pods(two, "n", "n"), queues=queues)
    said = run("explain", "ns/a", "--snapshot", saved(seen)).output
    assert "its queue may not hold more: Queue default has capability 2\n" in said
    rule = QueuePolicy("default", name="p", borrowing_limit=1000)
    said = run("explain", "ns/a", "--snapshot", saved(replace(seen, policies=(rule,)))).output
    assert "Queue default has capability 2 and policy p has borrowing.limit 1\n" in said


def test_every_job_is_explained_whatever_its_kind() -> None:
    """Rigid ones, masters, ones with other resources: no figure is missing."""
    rigid: Job = replace(job("r", 2, 2), pod_requests={"cpu": 1000}, master_requests=gpus(1))
    observed = Observation(NOW, replace(FULL, jobs=(A, rigid)))
    assert [entry["job"] for entry in top_json(observed, plan(observed.snapshot, NOW))["jobs"]] == [
        "ns/a",
        "ns/r",
    ]
