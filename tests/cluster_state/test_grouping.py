"""Grouping finds what changed from one snapshot to the next, and which groups that reaches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.queue_policy.world import job, node, pods, world
from volcano_elastic.cluster_state.grouping import changes, cluster_state, regrouped


class Thing:
    """Told by identity alone."""

    def __init__(self, group: int) -> None:
        self.group = group


def group_of(thing: Thing) -> int:
    return thing.group


def grouped(things: list[Thing]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for thing in things:
        found[thing.group].add(id(thing))
    return found


def varied(old: list[Thing], random: Random) -> list[Thing]:
    """Some gone, some come, anywhere; sometimes in another order."""
    new = [thing for thing in old if random.random() < 0.8]
    for _ in range(random.randrange(4)):
        new.insert(random.randrange(len(new) + 1), Thing(random.randrange(5)))
    if random.random() < 0.3:
        random.shuffle(new)
    return new


@given(st.integers(0, 12) | st.integers(0, 200), st.randoms(use_true_random=False))
def test_what_has_gone_and_come_is_all_that_differs(count: int, random: Random) -> None:
    old = [Thing(random.randrange(5)) for _ in range(count)]
    new = varied(old, random)
    gone, come = changes(old, new)
    assert {id(t) for t in gone} == {id(t) for t in old} - {id(t) for t in new}
    assert {id(t) for t in come} == {id(t) for t in new} - {id(t) for t in old}
    assert len(gone) + len(new) == len(old) + len(come)


@given(st.integers(0, 12), st.randoms(use_true_random=False))
def test_groups_follow_whatever_goes_and_comes(count: int, random: Random) -> None:
    things = [Thing(random.randrange(5)) for _ in range(count)]
    groups, _ = regrouped({}, (), things, group_of)
    for _ in range(3):
        new = varied(things, random)
        after, changed = regrouped(groups, *changes(things, new), group_of)
        assert {key: {id(t) for t in members} for key, members in after.items()} == grouped(new)
        for key in groups.keys() - changed:
            assert after[key] is groups[key]
        groups, things = after, new


def test_what_no_change_reaches_stays_the_same_value() -> None:
    a, b = job("a", 1, 4, 2), job("b", 1, 4, 2)
    nodes = [node("n0", 4), node("n1", 4)]
    snapshot = world(nodes, [a, b], pods(a, "n0", "n0"), pods(b, "n1", "n1"))
    before = cluster_state(snapshot)
    after = cluster_state(replace(snapshot, jobs=(a, replace(b, gpu_hours=1.0))), before)
    assert after.jobs["ns/a"] is before.jobs["ns/a"]
    assert after.nodes["n0"] is before.nodes["n0"]
    assert after.jobs["ns/b"] is not before.jobs["ns/b"]
    assert after.nodes["n1"] is not before.nodes["n1"], "its surplus weighs less by the hour"


def test_what_follows_from_a_nodes_pods_is_kept_while_only_their_jobs_change() -> None:
    a = job("a", 1, 4, 2)
    snapshot = world([node("n0", 4)], [a], pods(a, "n0", "n0"))
    before = cluster_state(snapshot)
    idle = before.nodes["n0"].idle
    worked = cluster_state(replace(snapshot, jobs=(replace(a, gpu_hours=1.0),)), before)
    assert worked.nodes["n0"].idle is idle
    assert worked.nodes["n0"].jobs == (worked.jobs["ns/a"],)
    fewer = cluster_state(replace(snapshot, pods=snapshot.pods[:1]), before)
    assert fewer.nodes["n0"].idle != idle


def test_what_a_queue_knows_of_jobs_that_run_is_kept_while_others_only_wait() -> None:
    a, waits = job("a", 1, 4, 2), job("waits", 2, 4, 2)
    snapshot = world([node("n0", 4)], [a], pods(a, "n0", "n0"))
    before = cluster_state(snapshot)
    victims, growth = before.queues[a.queue].first_victims, before.queues[a.queue].growth
    came = cluster_state(replace(snapshot, jobs=(a, waits)), before)
    assert came.queues[a.queue].first_victims is victims
    assert came.queues[a.queue].growth is growth
    assert [[claim.key for claim in line] for line in came.lines.values()] == [["ns/waits"]]
    fewer = cluster_state(replace(snapshot, pods=snapshot.pods[:1]), before)
    assert not fewer.queues[a.queue].first_victims, "its worker 0 alone is left"


def test_what_a_queue_knows_of_jobs_that_wait_is_kept_while_only_others_change() -> None:
    a, waits = job("a", 1, 4, 2), job("waits", 2, 4, 2)
    snapshot = world([node("n0", 4)], [a, waits], pods(a, "n0", "n0"))
    before = cluster_state(snapshot)
    [line] = before.lines.values()
    worked = cluster_state(replace(snapshot, jobs=(replace(a, gpu_hours=1.0), waits)), before)
    assert [*worked.lines.values()] == [line]
    started = replace(snapshot, pods=(*snapshot.pods, *pods(waits, "n0", "n0")))
    assert not cluster_state(started, before).lines


def test_jobs_that_nodes_have_failed_are_known_until_they_go() -> None:
    a, b = job("a", 1, 4, 2), job("b", 1, 4, 2)
    snapshot = world([node("n0", 4)], [a], pods(a, "n0", "n0"))
    before = cluster_state(snapshot)
    assert before.queues[a.queue].excluding == ()
    failed = replace(a, excluded=("n0",))
    told = cluster_state(replace(snapshot, jobs=(failed,)), before)
    assert [state.job for state in told.queues[a.queue].excluding] == [failed]
    came = cluster_state(replace(snapshot, jobs=(failed, b)), told)
    assert came.queues[a.queue].excluding is told.queues[a.queue].excluding, "only b came"
    assert cluster_state(replace(snapshot, jobs=(b,)), came).queues[a.queue].excluding == ()


def test_a_job_that_comes_after_its_pods_is_known_to_their_node() -> None:
    a = job("a", 1, 4, 2)
    snapshot = world([node("n0", 4)], [a], pods(a, "n0", "n0"))
    before = cluster_state(replace(snapshot, jobs=()))
    assert before.nodes["n0"].jobs == ()
    assert [s.job for s in cluster_state(snapshot, before).nodes["n0"].jobs] == [a]


def test_a_snapshot_in_which_nothing_changed_is_known_already() -> None:
    a = job("a", 1, 4, 2)
    snapshot = world([node("n0", 4)], [a], pods(a, "n0", "n0"))
    before = cluster_state(snapshot)
    held = before.held
    same = cluster_state(replace(snapshot, jobs=(a,), pods=(*snapshot.pods,)), before)
    assert same.held is held
    assert cluster_state(replace(snapshot, pods=snapshot.pods[:1]), before).held != held


def test_a_resource_that_nobody_named_before_is_counted() -> None:
    a = job("a", 1, 4, 2)
    snapshot = world([node("n0", 4)], [a], pods(a, "n0", "n0"))
    before = cluster_state(snapshot)
    asks = {**a.pod_requests, "example.com/fpga": 1000}
    newcomer = job("b", 1, 1, pod_requests=asks)
    after = cluster_state(replace(snapshot, jobs=(a, newcomer)), before)
    assert "example.com/fpga" in after.dimensions.names
    assert after.jobs["ns/b"].shape.vector == after.dimensions.request(asks)
