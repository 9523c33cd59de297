"""`describe`: what is known of a job's training, its failures first one first."""

from __future__ import annotations

import json
from typing import Any

from volcano_elastic.cli.describe import description
from volcano_elastic.cli.description_text import text

Object = dict[str, Any]


def failure(rank: int, time: float, **more: Any) -> Object:
    return {
        "round": 7,
        "worker": rank,
        "rank": rank,
        "localRank": 0,
        "pid": 100 + rank,
        "exitCode": 1,
        "signal": None,
        "message": f"ValueError: of {rank}",
        "stack": "Traceback\n  File train.py",
        "time": time,
        "log": None,
    } | more


JOB = {
    "metadata": {"name": "bert", "namespace": "team"},
    "status": {
        "conditions": [
            {"type": "Created", "status": "True"},
            {"type": "Running", "status": "True"},
        ],
        "elastic": {"desired": 4, "ready": 3, "min": 2, "max": 8, "restarts": 1},
    },
}
COORDINATOR = {
    "round": 8,
    "phase": "running",
    "world": 4,
    "step": 120,
    "steps_per_second": 9.5,
    "committed_step": 100,
    "progress": {"samples": 401, "total": 1000, "remaining_seconds": 3661.2},
    "metrics": {"loss": "0.31", "accuracy": "0.9"},
    "tables": {
        "items": {
            "rows": 1234,
            "bytes": 2_000_000,
            "admitted": 1300,
            "evicted": 66,
            "updated": 9000,
            "updated_per_second": 450.0,
            "hot_ids": [-(2**63), 7],
            "hot_share": [0.25, 0.125],
            "holders": 2,
            "skew": 1.5,
        }
    },
    "rounds": [
        {
            "round": number,
            "world": 4,
            "time": 1.0,
            "reason": "worker 3 joined",
            "pause_seconds": 0.0523,
            "first_step": 10,
            "last_step": 20,
        }
        for number in range(1, 31)
    ],
    "failures": [
        failure(2, 1000.5, exitCode=-9, signal="SIGKILL", message="out of memory", stack=""),
        failure(1, 1000.25, log="/logs/failed/round-7-rank-1"),
        failure(0, 1000.75, exitCode=None, message="gave way to another's failure", stack=""),
    ],
}
POD = {
    "metadata": {"name": "bert-worker-1"},
    "spec": {"nodeName": "node-3"},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "restartCount": 2,
                "state": {"running": {}},
                "lastState": {"terminated": {"message": "round 6, rank 1: KeyError: 'x'"}},
            }
        ],
    },
}


def test_a_hang_is_described_with_the_rank_behind_and_each_stack_once() -> None:
    hang = {
        "round": 8,
        "step": 119,
        "time": 1001.0,
        "seconds": 61.2,
        "broken": True,
        "behind": [1],
        "words": "rank 1 is behind: at collective 41, others at 42",
        "stacks": [
            {"ranks": [1], "stack": "process 7, state S\n  File train.py, line 3 in load"},
            {"ranks": [0, 2], "stack": "  File train.py, line 9 in backward"},
        ],
        "flights": [{"rank": 1, "record": "collective 41: gloo:all_reduce [[8]], completed"}],
    }
    found = description(JOB, [POD], {**COORDINATOR, "hangs": [hang]}, None)
    assert found["hangs"] == [hang]
    shown = text(json.loads(json.dumps(found)))
    assert "round 8, no step for 61 s after step 119: rank 1 is behind" in shown
    assert "  ranks 0, 2:\n    |   File train.py, line 9 in backward" in shown
    assert "    | collective 41: gloo:all_reduce" in shown


def test_a_rank_that_slows_the_job_down_is_described() -> None:
    slow = {"rank": 3, "worker": 1, "node": "gpu-7", "cause": "input", "score": 9.0}
    slow |= {"since": 1001.0, "batch_seconds": 0.4, "others_batch_seconds": 0.1}
    spent = {"compute": 0.1, "input": 0.001, "network": 0.31}
    told = {**COORDINATOR, "batch_seconds": spent, "stragglers": [slow]}
    found = description(JOB, [POD], told, None)
    assert found["batchSeconds"] == spent
    (listed,) = found["stragglers"]
    assert (listed["batchSeconds"], listed["othersBatchSeconds"]) == (0.4, 0.1)
    shown = text(json.loads(json.dumps(found)))
    assert "A batch takes a rank 0.1 s compute, 0.001 s input, 0.31 s network (medians)" in shown
    assert "rank 3 (worker 1, gpu-7) slows it down since 1970-01-01 00:16:41.000Z" in shown
    assert "0.4 s by itself, others 0.1 s, by input" in shown


def test_ranks_whose_states_differ_are_described() -> None:
    one = {"rank": 3, "worker": 1, "node": "gpu-7", "since": 1001.0, "until": 1002.5, "step": 80}
    one |= {"agreed_step": 70, "outvoted": True}
    other = {**one, "rank": 2, "until": None, "agreed_step": -1, "outvoted": False}
    found = description(JOB, [POD], {**COORDINATOR, "diverged": [one, other]}, None)
    assert found["diverged"][0]["agreedStep"] == 70
    shown = text(json.loads(json.dumps(found)))
    assert (
        "16:41.000Z  rank 3 (worker 1, gpu-7) at step 80; all agreed at 70; over at 1970-01-01 "
        "00:16:42.500Z"
    ) in shown
    assert "rank 2 (worker 1, gpu-7) at step 80; they never agreed; any of these may be" in shown


def test_a_job_is_described_with_its_failures_first_one_first() -> None:
    found = description(JOB, [POD], COORDINATOR, None)
    json.dumps(found)
    assert [one["rank"] for one in found["failures"]] == [1, 2, 0]
    assert len(found["rounds"]) == 10 and found["rounds"][-1]["round"] == 30
    said = text(found)
    assert "team/bert: Running" in said
    assert "3 ready of 4, between 2 and 8; restarts: 1" in said
    assert "round 8 of 4 nodes, step 120 (9.5 a second), committed: 100" in said
    assert "Progress: 40.1%, 401 of 1000 samples, 1:01:01 left at this size" in said
    assert "Metrics: accuracy 0.9, loss 0.31\n" in said
    assert (
        "Table items: 1,234 rows (2.0 MB) on 2 workers, 1,300 admitted, 66 evicted, "
        "450 updates a second, skew 1.50; hottest ids: -9223372036854775808 25.0%, 7 12.5%\n"
    ) in said
    assert "0.052 s  10..20            worker 3 joined" in said
    first = said.index("rank 1 (worker 1, pid 101), exit code 1: ValueError: of 1")
    second = said.index("rank 2 (worker 2, pid 102), SIGKILL: out of memory")
    assert first < second < said.index("gave way")
    assert "1970-01-01 00:16:40.250Z" in said and "    | Traceback" in said
    assert "bert-worker-1: Running on node-3, 2 restarts" in said
    assert "| round 6, rank 1: KeyError: 'x'" in said
    assert "kubectl -n team logs bert-worker-1 --previous" in said
    assert "ls /logs/failed/round-7-rank-1" in said
    assert "Given up" not in said
    assert "Given up: it came twice" in text(
        description(JOB, [], COORDINATOR | {"verdict": "it came twice"}, None)
    )


def test_without_a_coordinator_it_says_why_and_what_is_known_still() -> None:
    job = {"metadata": {"name": "bert"}}
    found = description(job, [], None, "pod bert-worker-0 does not run")
    assert found["coordinator"] is None and found["failures"] == []
    said = text(found)
    assert "default/bert: not begun" in said
    assert "Training: not known: pod bert-worker-0 does not run" in said
    assert "Failures: none known" in said
    assert "kubectl -n default logs bert-worker-0" in said


def test_a_restart_without_a_known_error_is_told_with_what_pods_say_of_it() -> None:
    terminated = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-02T03:04:05Z"}
    container = {"restartCount": 1, "lastState": {"terminated": terminated}}
    pod = {**POD, "status": {"phase": "Running", "containerStatuses": [container]}}
    quiet = COORDINATOR | {"failures": []}
    said = text(description(JOB, [pod], quiet, None))
    assert "Failures: the job restarted once; no worker's error is known" in said
    assert (
        "  bert-worker-1: its container ended with exit code 137 (OOMKilled) at "
        "2026-01-02T03:04:05Z\n"
    ) in said
    gone = text(description(JOB, [], quiet, None))
    assert "the job restarted once" in gone and "its pods say nothing of it" in gone
    elastic = {**JOB["status"]["elastic"], "restarts": 0}
    uncounted = {**JOB, "status": {**JOB["status"], "elastic": elastic}}
    assert "which counted as no restart" in text(description(uncounted, [pod], quiet, None))
    calm = {**POD, "status": {"phase": "Running"}}
    assert "Failures: none known\n" in text(description(uncounted, [calm], quiet, None))


def test_a_node_check_names_those_that_are_not_proven_or_slow() -> None:
    node = {"verdict": "proven", "straggler": False, "note": ""}
    nodes = [
        {**node, "node": "n1", "worker": 0},
        {**node, "node": "n2", "worker": 1, "verdict": "faulty", "note": "SIGABRT"},
        {**node, "node": "n3", "worker": 2, "straggler": True},
    ]
    check = {"rounds": 2, "seconds": 3.5, "over": "nothing is left to find out", "nodes": nodes}
    found = description(JOB, [POD], COORDINATOR | {"check": check}, None)
    assert found["nodeCheck"] == check
    told = text(found)
    assert "Node check: 2 of 3 nodes are proven sound after 2 rounds\n" in told
    assert "  n2 (worker 1) is faulty: SIGABRT\n  n3 (worker 2) is a straggler\n" in told
    assert "n1 (" not in told
    assert "Node check" not in text(description(JOB, [POD], COORDINATOR, None))


def test_nodes_that_are_kept_out_are_named_with_the_reason() -> None:
    told = COORDINATOR | {
        "excluded": [{"node": "n7", "workers": [3, 4], "reason": "2 device errors"}]
    }
    found = description(JOB, [POD], told, None)
    assert found["excluded"] == told["excluded"]
    assert "  n7 (workers 3, 4): 2 device errors" in text(found)
    assert "no further round" not in text(description(JOB, [POD], COORDINATOR, None))


def test_after_the_end_the_rounds_that_the_status_keeps_are_shown_and_agree_with_failures() -> None:
    first = {"round": 1, "nodes": 4, "time": "2026-01-01T12:00:00.000000Z", "reason": "start"}
    lost = "workers 2 and 3 on node-2 lost (its connection ended)"
    second = {**first, "round": 2, "nodes": 2, "reason": lost, "pauseSeconds": 0.0712}
    elastic = {"ready": 0, "desired": 2, "restarts": 0}
    elastic["rounds"] = [{**first, "lost": 2}, {**second, "firstStep": 10, "lastStep": 99}]
    ended = [{"type": "Succeeded", "status": "True"}]
    job = {**JOB, "status": {"conditions": ended, "elastic": elastic}}
    word = {"terminated": {"message": '{"job":"team/bert","rounds":[]}', "exitCode": 0}}
    pod = {**POD, "status": {"phase": "Succeeded", "containerStatuses": [{"state": word}]}}
    found = description(job, [pod], None, "its pod does not run")
    assert (found["rounds"][0]["lost"], found["rounds"][1]["world"]) == (2, 2)
    shown = text(json.loads(json.dumps(found)))
    assert f"    2     2   0.071 s  10..99            {lost}" in shown
    lost = "2 workers were lost with their nodes or pods, which ended round 1\n"
    assert f"Failures: no worker's own; {lost}" in shown
    assert '{"job"' not in shown


def test_a_pod_that_is_running_for_kubernetes_alone_is_shown_as_such() -> None:
    labels = {"training.kubeflow.org/replica-type": "worker"}
    pods = [
        {
            "metadata": {
                "name": f"bert-worker-{index}",
                "labels": labels | {"training.kubeflow.org/replica-index": str(index)},
            },
            "spec": {"nodeName": "node-2"},
            "status": {"phase": phase, "containerStatuses": [{"restartCount": 2, "state": state}]},
        }
        for index, phase, state in (
            (0, "Running", {"running": {}}),
            (1, "Running", {"running": {}}),
            (2, "Running", {"waiting": {"reason": "CrashLoopBackOff"}}),
            (3, "Pending", {"waiting": {"reason": "ContainerCreating"}}),
        )
    ]
    found = description(JOB, pods, {**COORDINATOR, "connected": [0]}, None)
    assert [pod["heard"] for pod in found["pods"]] == [True, False, False, None]
    shown = text(json.loads(json.dumps(found)))
    assert "  bert-worker-0: Running on node-2, 2 restarts\n" in shown
    assert "  bert-worker-1: Running on node-2, 2 restarts, not heard by the coordinator\n" in shown
    assert "  bert-worker-2: Running (CrashLoopBackOff) on node-2, 2 restarts, not heard" in shown
    assert "  bert-worker-3: Pending on node-2, 2 restarts\n" in shown
    silent = description(JOB, pods, None, "it does not run")
    assert {pod["heard"] for pod in silent["pods"]} == {None}
