"""Each formula with the articles' numbers, and within its limits whatever it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import (
    LEAST_CPU,
    LEAST_MEMORY,
    Amounts,
    Limits,
    within,
)
from volcano_elastic.brain.estimate.checkpoint import memory_of_servers
from volcano_elastic.brain.estimate.job_load import Configuration, JobLoad, total
from volcano_elastic.brain.estimate.right_size import (
    margin_of_memory,
    percentile,
    right_size,
    unknown_memory,
)
from volcano_elastic.brain.estimate.start_up import WITHOUT_HISTORY, start_up
from volcano_elastic.brain.estimate.tuning import (
    MOST_AT_ONCE,
    cooled,
    gain,
    hot,
    more_workers,
    nearly_full,
    relieved,
)
from volcano_elastic.brain.estimate.while_running import MemoryAt, growth, while_running


def load(cpu: float, gib: float) -> Amounts:
    return Amounts(Cpu.cores(cpu), Bytes.gib(gib))


NODE = Limits(node=load(32, 256))
amounts = st.builds(Amounts, st.integers(1, 64_000).map(Cpu), st.integers(1, 2**38).map(Bytes))
some_loads = st.lists(amounts, min_size=1, max_size=6).map(tuple)
jobs = st.builds(JobLoad, st.lists(amounts, max_size=4).map(tuple), some_loads)


# Limits


@given(amounts, amounts, amounts)
def test_no_request_is_below_use_nor_above_a_node_nor_nothing(
    wanted: Amounts, used: Amounts, more: Amounts
) -> None:
    node = (used + more).most_of(Amounts(LEAST_CPU, LEAST_MEMORY))
    found = within(wanted, Limits(used, node))
    assert used.cpu <= found.cpu <= node.cpu and found.cpu >= LEAST_CPU
    assert used.memory <= found.memory <= node.memory and found.memory >= LEAST_MEMORY


@given(amounts, amounts, amounts)
def test_limits_keep_the_order_of_what_was_wanted(
    one: Amounts, other: Amounts, used: Amounts
) -> None:
    limits = Limits(used, load(64, 256))
    both = one.most_of(other)
    assert within(one, limits).cpu <= within(both, limits).cpu
    assert within(one, limits).memory <= within(both, limits).memory


# D2: start-up


def test_without_history_a_job_begins_with_the_articles_8_cpus_and_8_gb() -> None:
    found = start_up([])
    assert (found.parameter_servers, found.workers) == (1, 1)
    assert Amounts(Cpu.cores(8), Bytes(8 * 10**9)) == WITHOUT_HISTORY
    assert found.parameter_server == found.worker == within(WITHOUT_HISTORY, Limits())


def test_a_job_begins_with_what_jobs_like_it_used() -> None:
    similar = [
        JobLoad((load(4, 10), load(8, 6)), (load(5, 3), load(2, 4))),
        JobLoad((load(6, 8), load(6, 8), load(8, 16)), (load(3, 2),)),
    ]
    # CPU (12 + 20) / 2 = 16 at 8 each: 2 of them; memory max(16, 32) / 2 = 16.
    assert start_up(similar) == Configuration(2, load(8, 16), 1, load(5, 4))


def test_a_fraction_of_a_server_is_one_more() -> None:
    assert start_up([JobLoad((load(8, 4), load(1, 4)), ())]).parameter_servers == 2


def test_where_no_node_has_memory_for_one_server_there_are_more() -> None:
    similar = [JobLoad((load(8, 300), load(2, 100)), (load(1, 1),))]
    found = start_up(similar, NODE)
    assert found.parameter_servers == 2 and found.parameter_server == load(8, 200)
    small = start_up(similar, Limits(node=load(32, 128)))
    assert small.parameter_servers == 4 and small.parameter_server == load(8, 128)


@given(st.lists(jobs, max_size=4))
def test_a_start_has_room_for_what_was_used_and_fits_a_node(similar: list[JobLoad]) -> None:
    limits = Limits(node=load(64, 256))
    found = start_up(similar, limits)
    assert found.parameter_servers >= 1 and found.workers == 1
    for each in (found.parameter_server, found.worker):
        assert LEAST_CPU <= each.cpu <= Cpu.cores(64)
        assert LEAST_MEMORY <= each.memory <= Bytes.gib(256)
    totals = [total(job.parameter_servers) for job in similar if job.parameter_servers]
    for one in totals:
        assert found.parameter_server.memory * found.parameter_servers >= one.memory


# X3: a checkpoint


def test_servers_have_a_checkpoints_size_over_sixty_per_cent_in_place_of_the_default() -> None:
    assert memory_of_servers(Bytes.gib(24)) == Bytes.gib(40)
    found = start_up([], NODE, Bytes.gib(24))
    assert (found.parameter_servers, found.parameter_server) == (1, load(8, 40))
    small = start_up([], Limits(node=load(32, 16)), Bytes.gib(24))
    assert (small.parameter_servers, small.parameter_server) == (3, load(8, 16))
    assert found.worker == start_up([], NODE).worker, "it says nothing of workers"


def test_a_checkpoint_is_the_least_beside_jobs_that_used_less() -> None:
    similar = [JobLoad((load(4, 10), load(4, 10)), (load(1, 1),))]
    assert start_up(similar, NODE, Bytes.gib(6)) == start_up(similar, NODE)
    found = start_up(similar, NODE, Bytes.gib(24))
    assert (found.parameter_servers, found.parameter_server) == (2, load(4, 20))


@given(st.lists(jobs, max_size=4), st.integers(0, 2**38), st.integers(0, 2**38))
def test_a_larger_checkpoint_never_means_less_memory(
    similar: list[JobLoad], one: int, other: int
) -> None:
    limits = Limits(node=load(64, 256))
    small, large = (
        start_up(similar, limits, Bytes(size) if size else None) for size in sorted((one, other))
    )
    if one and other:
        held = [found.parameter_server.memory * found.parameter_servers for found in (small, large)]
        assert held[0] <= held[1] or held[1] >= memory_of_servers(Bytes(max(one, other)))


# D3: after three minutes


def test_15_cpus_carry_the_articles_four_workers() -> None:
    """One worker, 30 steps a second; after three minutes four, 100."""
    used = JobLoad((load(1, 2),), (load(2.5, 4),))
    found = while_running(used, Cpu.cores(15), server_cpu=Cpu.cores(4), most_workers=10)
    # 15 / (2.5 + 1) = 4 workers; their server's CPU is 1 x 4 / 4: one; 11 CPU are left for four.
    assert (found.workers, found.parameter_servers) == (4, 1)
    assert found.worker == Amounts(Cpu(2750), Bytes.gib(4.8).whole_mebibytes())
    assert found.parameter_server == Amounts(Cpu.cores(4), Bytes.gib(2.4).whole_mebibytes())


def test_the_margin_is_a_fifth_where_the_limit_leaves_it() -> None:
    used = JobLoad((), (load(2, 4),))
    found = while_running(used, Cpu.cores(15), server_cpu=Cpu.cores(8), most_workers=4)
    assert (found.workers, found.parameter_servers) == (4, 0)
    assert found.worker.cpu == Cpu.cores(2.4)


def test_memory_that_grows_is_foreseen_to_the_last_step() -> None:
    samples = [MemoryAt(step, Bytes.gib(1) + Bytes(2**20 * step)) for step in range(0, 200, 20)]
    assert growth(samples) == pytest.approx(2**20)
    used = JobLoad((load(1, 1), load(1, 1)), (load(2, 4),))
    found = while_running(
        used,
        Cpu.cores(15),
        server_cpu=Cpu.cores(2),
        most_workers=10,
        bytes_a_step=growth(samples),
        total_steps=20_000,
    )
    assert found.parameter_server.memory * found.parameter_servers >= Bytes(2**20 * 20_000)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [MemoryAt(1, Bytes(5))],
        [MemoryAt(7, Bytes(5)), MemoryAt(7, Bytes(50))],
        [MemoryAt(0, Bytes(1000)), MemoryAt(10, Bytes(1040))],
        [MemoryAt(0, Bytes(1000)), MemoryAt(10, Bytes(500))],
    ],
    ids=["none", "one", "one step", "by 4 %", "falling"],
)
def test_memory_that_is_not_seen_to_grow_is_stable(samples: list[MemoryAt]) -> None:
    assert growth(samples) == 0


@given(
    used=st.builds(JobLoad, st.lists(amounts, max_size=3).map(tuple), some_loads),
    limit=st.integers(1, 500_000).map(Cpu),
    server_cpu=st.integers(100, 32_000).map(Cpu),
    most=st.integers(1, 60),
)
def test_a_job_keeps_its_limit_of_cpu_unless_one_worker_is_beyond_it(
    used: JobLoad, limit: Cpu, server_cpu: Cpu, most: int
) -> None:
    found = while_running(used, limit, server_cpu=server_cpu, most_workers=most)
    chief, servers = used.workers[0], total(used.parameter_servers)
    assert 1 <= found.workers <= most
    assert found.worker.cpu >= chief.cpu and found.worker.memory >= chief.memory
    if used.parameter_servers:
        in_all = server_cpu * found.parameter_servers
        assert in_all >= servers.cpu * found.workers
        assert found.parameter_server.memory * found.parameter_servers >= servers.memory
    else:
        in_all = Cpu(0)
        assert found.parameter_servers == 0
    spent = in_all + found.worker.cpu * found.workers
    assert found.workers == 1 or spent <= max(limit, LEAST_CPU * found.workers + in_all)


@given(
    chief=amounts,
    server=amounts,
    limit=st.integers(1, 200_000).map(Cpu),
    more=st.integers(0, 200_000).map(Cpu),
)
def test_a_greater_limit_never_carries_fewer_workers(
    chief: Amounts, server: Amounts, limit: Cpu, more: Cpu
) -> None:
    used = JobLoad((server,), (chief,))
    few = while_running(used, limit, server_cpu=Cpu.cores(8), most_workers=40)
    many = while_running(used, limit + more, server_cpu=Cpu.cores(8), most_workers=40)
    assert few.workers <= many.workers


# D4: tuning


def test_a_server_is_hot_by_three_samples_not_by_one() -> None:
    request = Cpu.cores(10)
    assert hot([Cpu.cores(8)] * 3, request)
    assert not hot([Cpu.cores(8)] * 2, request)
    assert not hot([Cpu.cores(8), Cpu.cores(7.9), Cpu.cores(9)], request)
    assert hot([Cpu.cores(1), *[Cpu.cores(9)] * 3], request), "the latest count"


def test_a_hot_server_gets_more_cpu_and_keeps_its_memory() -> None:
    assert cooled([Cpu.cores(9)] * 3, load(10, 8), NODE) == load(15, 8)


def test_a_pod_that_is_nearly_full_gets_twice_its_memory() -> None:
    assert nearly_full([Bytes.gib(9)] * 3, Bytes.gib(10))
    assert not nearly_full([Bytes.gib(8.9)] * 3, Bytes.gib(10))
    assert relieved([Bytes.gib(9)] * 3, load(4, 10), NODE) == load(4, 20)
    assert relieved([Bytes.gib(190)] * 3, load(4, 200), NODE) == load(4, 256), "a node's at most"


@given(st.lists(st.integers(1, 32_000).map(Cpu), min_size=3, max_size=6), amounts)
def test_more_is_never_less(used: list[Cpu], request: Amounts) -> None:
    limits = Limits(node=load(64, 256))
    assert cooled(used, request, limits).cpu >= request.cpu
    assert relieved([request.memory], request, limits).memory >= request.memory


@pytest.mark.parametrize(
    ("speeds", "brought"),
    [
        ({1: 30.0, 4: 100.0}, 70 / 3 / 30),
        ({4: 100.0}, None),
        ({}, None),
        ({2: 0.0, 4: 100.0}, None),
        ({2: 100.0, 4: 100.0}, 0.0),
    ],
)
def test_gain_is_what_a_worker_brought_beside_those_before(
    speeds: dict[int, float], brought: float | None
) -> None:
    assert gain(speeds, 4) == (brought if brought is None else pytest.approx(brought))


@pytest.mark.parametrize(
    ("used", "speeds", "wanted"),
    [
        (1.0, {1: 30.0, 4: 100.0}, 12),
        (4.25, {1: 30.0, 4: 100.0}, 8),
        (8.5, {1: 30.0, 4: 100.0}, 4),
        (1.0, {2: 95.0, 4: 100.0}, 4),
    ],
    ids=["8 at once", "as many as the server carries", "a busy server", "no more speed"],
)
def test_workers_come_while_servers_have_cpu_to_spare_and_speed_improves(
    used: float, speeds: dict[int, float], wanted: int
) -> None:
    assert more_workers(4, 40, [(Cpu.cores(used), Cpu.cores(10))], speeds) == wanted


@given(
    st.integers(1, 50),
    st.integers(1, 60),
    st.lists(st.integers(0, 32_000).map(Cpu), max_size=4),
    st.dictionaries(st.integers(1, 60), st.floats(0, 1e6), max_size=4),
)
def test_tuning_takes_no_worker_away_and_adds_few_at_once(
    workers: int, most: int, used: list[Cpu], speeds: dict[int, float]
) -> None:
    servers = [(one, Cpu.cores(16)) for one in used]
    found = more_workers(workers, max(most, workers), servers, speeds)
    assert workers <= found <= min(max(most, workers), workers + MOST_AT_ONCE)


# Right-sizing


def test_a_request_is_p95_of_earlier_runs_and_a_margin() -> None:
    runs = [load(cores, 1) for cores in range(1, 21)]
    assert percentile([run.cpu for run in runs], 0.95) == Cpu.cores(19)
    found = right_size(runs, NODE)
    assert found == Amounts(Cpu(21_850), Bytes.gib(1.15).whole_mebibytes())
    assert right_size([], NODE) is None


def test_of_memory_only_one_run_in_a_hundred_is_passed_over() -> None:
    runs = [load(1, gib) for gib in range(1, 201)]
    found = right_size(runs, Limits(), 1.25)
    assert found is not None and found.memory == Bytes.gib(198 * 1.25)


@pytest.mark.parametrize(
    ("runs", "close", "same_image", "margin"),
    [
        (5, True, True, 1.25),
        (41, True, True, 1.25),
        (3, True, True, 1.4),
        (41, True, False, 1.6),
        (2, False, True, 1.4),
        (41, False, False, 1.4),
    ],
)
def test_the_less_runs_tell_the_wider_the_margin_of_memory(
    runs: int, close: bool, same_image: bool, margin: float
) -> None:
    assert margin_of_memory(runs, close=close, same_image=same_image) == margin


@given(amounts, st.floats(1, 4), amounts)
def test_a_new_kind_of_job_has_no_less_than_it_asks_for_nor_more_than_its_share_of_a_node(
    asked: Amounts, factor: float, node: Amounts
) -> None:
    found = unknown_memory(asked, factor, node)
    assert asked.memory <= found <= asked.memory * factor
    fit = min(node.cpu.count // asked.cpu.count, node.memory.count // asked.memory.count)
    assert fit == min(node.cpu.count // asked.cpu.count, node.memory.count // found.count)


@given(st.lists(amounts, min_size=1, max_size=30), amounts)
def test_one_more_run_that_used_more_never_lowers_a_request(
    runs: list[Amounts], more: Amounts
) -> None:
    greatest = more
    for run in runs:
        greatest = greatest.most_of(run)
    limits = Limits(node=load(64, 256))
    before, after = right_size(runs, limits), right_size([*runs, greatest], limits)
    assert before is not None and after is not None
    assert before.cpu <= after.cpu and before.memory <= after.memory
