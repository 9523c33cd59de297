"""Nodes that failed a job: its pods keep away from them for a while, and no longer than is good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pytorchjob.world import NOW, World, job_object
from volcano_elastic.api import moment
from volcano_elastic.pytorchjob.observed import NodeFailure, Resize

ELASTIC = {"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}


def world(**more: Any) -> World:
    made = World(job_object(elastic=dict(ELASTIC), **more), NOW)
    made.settle()
    made.grow(3)
    for name in list(made.pods):
        made.run(name)
        made.pods[name]["spec"]["nodeName"] = f"n{name[-1]}"
    made.settle()
    return made


def avoided(pod: dict[str, Any]) -> list[str]:
    """Names that each term of its required node affinity rules out."""
    node = ((pod["spec"].get("affinity") or {}).get("nodeAffinity")) or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    found: list[str] = []
    for term in required.get("nodeSelectorTerms") or ():
        fields = term.get("matchFields") or ()
        assert all(f["operator"] == "NotIn" and f["key"] == "metadata.name" for f in fields)
        found += [value for f in fields for value in f["values"]]
    return found


def test_a_node_that_failed_the_job_is_listed_and_new_pods_keep_away_from_it() -> None:
    w = world()
    w.failed_nodes = {"n2": NodeFailure("its devices failed", NOW)}
    events = w.events(w.step())
    assert "Pods keep away from node n2 until" in events["NodeAvoided"]
    (listed,) = w.status["elastic"]["excludedNodes"]
    assert listed["node"] == "n2" and listed["reason"] == "its devices failed"
    assert moment.parse(listed["until"]) == NOW + timedelta(minutes=30)
    w.resize = Resize(
        3, 3, "LeftNode", "node n2 has failed the job", move=frozenset({"a-worker-2"})
    )
    events = w.events(w.step())
    assert events["LeftNode"] == "node n2 has failed the job"
    assert w.status["elastic"]["desired"] == 3
    assert "deletionTimestamp" in w.pods["a-worker-2"]["metadata"], "with its own grace"
    (new,) = set(w.pods) - {"a-worker-0", "a-worker-1", "a-worker-2"} or {""}
    assert new == "a-worker-3" and avoided(w.pods[new]) == ["n2"]
    assert "NodeAvoided" not in events, "said once"


def test_worker_0_comes_back_as_worker_0_and_first() -> None:
    w = world()
    moved = frozenset({"a-worker-0", "a-worker-1"})
    w.resize = Resize(3, 3, "LeftNode", "m", move=moved)
    w.settle()
    assert set(w.pods) == {"a-worker-0", "a-worker-1", "a-worker-2"}, "nobody before worker 0"
    w.collect()
    w.settle()
    assert sorted(w.live()) == ["a-worker-0", "a-worker-1", "a-worker-2"]
    assert not w.pods["a-worker-0"]["spec"].get("nodeName")


def test_an_exclusion_ends_and_pods_that_wait_with_it_are_made_anew() -> None:
    w = world()
    w.failed_nodes = {"n9": NodeFailure("its devices failed", NOW)}
    w.settle()
    w.grow(4)
    assert avoided(w.pods["a-worker-3"]) == ["n9"]
    w.now += timedelta(minutes=31)
    w.settle()
    assert "excludedNodes" not in w.status["elastic"], "the same failure counts once"
    (new,) = set(w.pods) - {f"a-worker-{i}" for i in range(3)}
    assert avoided(w.pods[new]) == []


def test_no_room_without_the_node_ends_its_exclusion() -> None:
    w = World(job_object(elastic=dict(ELASTIC) | {"min": 2, "max": 2}), NOW)
    w.settle()
    w.run("a-worker-0")
    w.failed_nodes = {"n1": NodeFailure("its devices failed", NOW)}
    w.settle()
    w.remove("a-worker-1")
    w.settle()
    assert avoided(w.pods["a-worker-1"]) == ["n1"]
    w.pods["a-worker-1"]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "lastTransitionTime": moment.timestamp(NOW)}
    ]
    w.settle()
    assert w.status["elastic"]["excludedNodes"], "it is waited for a while"
    w.now += timedelta(seconds=61)
    events = w.events(w.settle())
    assert "n1 may have pods again" in events["NodesAllowedAgain"]
    assert "excludedNodes" not in w.status["elastic"]
    new = next(name for name in w.pods if name != "a-worker-0")
    assert avoided(w.pods[new]) == []
    w.settle()
    assert "excludedNodes" not in w.status["elastic"], "old failures count no more"


def test_what_hardware_failed_is_made_again_elsewhere() -> None:
    w = world()
    w.fail("a-worker-1")
    ended = w.pods["a-worker-1"]["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["message"] = "round 3, rank 1: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus"
    w.settle()
    assert [e["node"] for e in w.status["elastic"]["excludedNodes"]] == ["n1"]
    assert avoided(w.pods["a-worker-1"]) == ["n1"]
    w.settle()
    w.fail("a-worker-2")
    w.settle()
    assert len(w.status["elastic"]["excludedNodes"]) == 1, "a script's failure is no node's"


def test_an_event_says_what_failed_and_blames_no_node_for_what_is_the_images_or_scripts() -> None:
    for code, message, what, avoided_too in (
        (1, "NET/IB : mlx5_0:1 Got async event : port error", "InfiniBand", True),
        (1, "CUDA error: no kernel image is available for execution", "an image built for", False),
        (132, "", "an illegal instruction", False),
        (1, "ValueError: nan", "", False),
    ):
        w = world()
        w.fail("a-worker-1", code)
        ended = w.pods["a-worker-1"]["status"]["containerStatuses"][0]["state"]["terminated"]
        ended["message"] = message
        told = w.events(w.settle())
        words = f"exited with code {code}: {what}" if what else f"exited with code {code}"
        assert words in told["ExitedWithCode"]
        assert told.get("NodeAvoided", "").endswith(f"{what} failed a-worker-1") is avoided_too


def test_evictions_cost_a_fixed_job_no_restart_and_no_wait() -> None:
    w = World(job_object(replicas=2), NOW)
    w.settle()
    w.run_all()
    for _ in range(5):
        w.fail("a-worker-1", evicted=True)
        w.settle()
        assert w.pods["a-worker-1"]["status"]["phase"] == "Pending", "made again at once"
        w.run("a-worker-1")
    assert "restarts" not in w.status.get("elastic", {})
    w.fail("a-worker-1")
    w.settle()
    assert w.status["elastic"]["restarts"] == 1


def test_nodes_to_leave_are_kept_away_from_beside_the_templates_own_wishes() -> None:
    obj = job_object(elastic=dict(ELASTIC))
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in "xy"]
    required = {"nodeSelectorTerms": terms}
    spec = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        "podAntiAffinity": {"kept": True},
    }
    w = World(obj, NOW)
    w.to_leave = {"n7": "is tainted example.com/broken"}
    w.settle()
    made = w.pods["a-worker-0"]["spec"]["affinity"]
    found = made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [t["matchExpressions"] for t in found["nodeSelectorTerms"]] == [
        t["matchExpressions"] for t in terms
    ]
    assert avoided(w.pods["a-worker-0"]) == ["n7", "n7"] and made["podAntiAffinity"]
    assert "matchFields" not in terms[0], "the template stays as it is"


@settings(max_examples=examples(100), deadline=None)
@given(
    size=st.integers(1, 4),
    moved=st.sets(st.integers(0, 3)),
    master=st.booleans(),
)
def test_whatever_moves_comes_back_and_nothing_else_goes(
    size: int, moved: set[int], master: bool
) -> None:
    w = World(job_object(elastic=dict(ELASTIC), master=master), NOW)
    w.settle()
    w.grow(size)
    w.run_all()
    before = {name: pod["metadata"]["uid"] for name, pod in w.pods.items()}
    names = frozenset(f"a-worker-{i}" for i in moved) & before.keys()
    if master and 0 in moved:
        names |= {"a-master-0"}
    w.resize = Resize(size, size, "LeftNode", "m", move=names)
    for _ in range(6):
        w.settle()
        kept = {n: p["metadata"]["uid"] for n, p in w.pods.items() if n in before.keys() - names}
        assert kept == {n: before[n] for n in before.keys() - names}, "a healthy pod stays"
        assert not any("deletionTimestamp" in w.pods[n]["metadata"] for n in kept)
        w.collect()
    assert len(w.live()) == size + master and w.status["elastic"]["desired"] == size
    assert not names or {p["metadata"]["uid"] for p in w.pods.values()} != set(before.values())
