"""Use by containers, from the coordinator's answer to the job's status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.pytorchjob.world import job_object, merged
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.operator.load_report import MOST_PODS, PodUse, read, to_write, with_servers

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MIB = 1 << 20
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["0", "1", "cpus", "memory", "gpu_percent", "x"]), inner)
    ),
    max_leaves=8,
)


def job(**more: Any) -> PyTorchJob:
    return parse(job_object(elastic={"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}, **more))


def use(cpu: float, mib: int) -> PodUse:
    return PodUse(Cpu.cores(cpu), Bytes(mib * MIB))


def told(**more: Any) -> dict[str, Any]:
    return {"cpus": 1.25, "memory": 260 * MIB, "gpu_memory": None, "gpu_percent": None} | more


def test_each_pods_load_has_its_name_and_units() -> None:
    answer = {"0": told(), "3": told(gpu_memory=8 << 30, gpu_percent=70)}
    found = {name: one.as_status() for name, one in read(answer, job()).items()}
    assert found == {
        "a-worker-0": {"cpu": "1250m", "memory": "260Mi"},
        "a-worker-3": {"cpu": "1250m", "memory": "260Mi", "gpuMemory": "8Gi", "gpuPercent": 70},
    }


def test_of_a_job_with_a_master_indexes_name_no_pod() -> None:
    assert read({"0": told()}, job(master=True)) == {}


@given(ANYTHING)
def test_what_makes_no_sense_is_left_out(answer: Any) -> None:
    for one in read(answer, job()).values():
        assert one.cpu >= Cpu(0) and one.memory >= Bytes(0)
    assert read({"0": told(cpus=answer), "1": told()}, job())["a-worker-1"] == use(1.25, 260)


def test_a_load_is_written_at_once_then_by_the_minute_if_much_changes_else_each_five() -> None:
    first = to_write({}, {"a": use(2, 100)}, NOW)
    assert first == {"time": "2026-01-01T12:00:00Z", "pods": {"a": {"cpu": "2", "memory": "100Mi"}}}
    more, same = {"a": use(3, 100)}, {"a": use(2.1, 101)}
    assert to_write(first, more, NOW + timedelta(seconds=50)) is None
    written = to_write(first, more, NOW + timedelta(seconds=60))
    assert written is not None and written["pods"] == {"a": {"cpu": "3"}}
    assert to_write(first, same, NOW + timedelta(minutes=4)) is None
    assert to_write(first, same, NOW + timedelta(minutes=5)) is not None
    assert to_write(first, {}, NOW + timedelta(hours=1)) is None, "it is silent"


def test_servers_loads_stand_beside_workers_whom_a_silent_coordinator_does_not_take_out() -> None:
    servers, worker = {"a-ps-0": use(1, 50)}, {"a-worker-0": use(2, 100)}
    known = {"pods": {"a-worker-0": {}, "a-ps-0": {}}}
    assert with_servers(worker, servers, {}, heard=True).keys() == {"a-worker-0", "a-ps-0"}
    assert with_servers({}, servers, known, heard=False) == {}
    assert with_servers({}, servers, {}, heard=False) == servers, "workers without an agent"
    assert with_servers({}, servers, known, heard=True) == servers, "it has lost them"


def test_a_pod_that_is_gone_leaves_the_status() -> None:
    known = to_write({}, {"a": use(2, 100), "b": use(2, 100)}, NOW)
    assert known is not None
    written = to_write(known, {"b": use(2, 100)}, NOW + timedelta(minutes=1))
    assert written is not None and merged(known, written)["pods"].keys() == {"b"}


def test_of_very_many_pods_the_busiest_are_kept() -> None:
    many = {f"p{i:03}": use(1 + i, 1000 - i) for i in range(200)}
    written = to_write({}, many, NOW)
    assert written is not None and len(written["pods"]) == MOST_PODS
    assert {"p000", "p199"} <= written["pods"].keys()
