"""An agent tells its container's load: from control groups of both versions and GPUs."""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from elastic_trainer.agent import gpus, load
from elastic_trainer.agent.control_group import (
    NotMeasuredError,
    Usage,
    oom_kills,
    paths,
    read,
    usage_v1,
    usage_v2,
)
from elastic_trainer.agent.gpus import Gpus, GpuUsage
from elastic_trainer.agent.load import ROOT_VARIABLE, LoadMeter, RecentLoad
from elastic_trainer.coordinator.status import status
from elastic_trainer.protocol.message import Load
from hypothesis import given
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.world import Job
from tests.elastic_trainer.torchrun_job import Job as Torchrun

MIB = 1 << 20
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    "memory.current": f"{300 * MIB}\n",
    "memory.stat": f"anon {200 * MIB}\ninactive_file {40 * MIB}\nactive_file 0\n",
}


def group_v2(folder: Path, **changed: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (V2 | {key.replace("_", "."): text for key, text in changed.items()}).items():
        (folder / name).write_text(text)


def test_file_pages_that_the_kernel_would_drop_are_no_use_of_memory() -> None:
    assert usage_v2(*V2.values()) == Usage(2.5, 260 * MIB)
    stat = f"inactive_file 0\ntotal_inactive_file {40 * MIB}\n"
    assert usage_v1("2500000000\n", f"{300 * MIB}\n", stat) == Usage(2.5, 260 * MIB)


@pytest.mark.parametrize("file", sorted(V2))
def test_what_is_no_number_is_said_and_not_guessed(file: str, tmp_path: Path) -> None:
    group_v2(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / file).write_text("max\n")
    with pytest.raises(NotMeasuredError, match=file):
        read(tmp_path)


def test_both_spellings_of_a_process_groups_are_read() -> None:
    assert paths("0::/kubepods/pod1\n") == {"": "/kubepods/pod1"}
    found = paths("4:memory:/a\n3:cpu,cpuacct:/b\n1:name=systemd:/\nno line\n")
    assert (found["memory"], found["cpuacct"], found["cpu"]) == ("/a", "/b", "/b")


@pytest.mark.parametrize("own", ["/", "/kubepods/pod1/this"])
def test_a_container_reads_its_own_group_of_version_2(own: str, tmp_path: Path) -> None:
    """With a namespace of groups, it is told `/`; without, its path on the machine, which is not
    below what is mounted."""
    (tmp_path / "cgroup").write_text(f"0::{own}\n")
    group_v2(tmp_path / "mounted")
    (tmp_path / "mounted" / "cgroup.controllers").write_text("cpu memory\n")
    assert read(tmp_path / "mounted", tmp_path / "cgroup") == Usage(2.5, 260 * MIB)


def test_a_process_below_what_is_mounted_reads_its_group_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/mine\n")
    root = tmp_path / "mounted"
    group_v2(root, memory_current=f"{9000 * MIB}\n")
    (root / "cgroup.controllers").write_text("cpu memory\n")
    group_v2(root / "mine")
    assert read(root, tmp_path / "cgroup").memory == 260 * MIB


@pytest.mark.parametrize("cpu", ["cpuacct", "cpu,cpuacct"])
def test_a_container_reads_its_own_groups_of_version_1(cpu: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/kubepods/this\n3:cpu,cpuacct:/kubepods/this\n")
    for folder, name, text in (
        (cpu, "cpuacct.usage", "2500000000\n"),
        ("memory", "memory.usage_in_bytes", f"{300 * MIB}\n"),
        ("memory", "memory.stat", f"total_inactive_file {40 * MIB}\n"),
    ):
        (tmp_path / "mounted" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / folder / name).write_text(text)
    assert read(tmp_path / "mounted", tmp_path / "cgroup") == Usage(2.5, 260 * MIB)


def test_cpus_are_the_last_minutes_mean_and_memory_its_most() -> None:
    recent = RecentLoad()
    assert recent.load() is None
    for second in range(0, 200, 10):
        held = 500 * MIB if second == 150 else 100 * MIB
        recent.add(float(second), Usage(2.0 * second, held))
    assert recent.load() == Load(2.0, 500 * MIB)
    for second in range(200, 230, 10):
        recent.add(float(second), Usage(400.0, 100 * MIB))
    told = recent.load(GpuUsage(7, 40, 9))
    assert told is not None and (told.gpu_memory_bytes, told.gpu_percent) == (7, 40)
    assert told.gpu_memory_total_bytes == 9
    assert (told.memory_bytes, told.cpus) == (100 * MIB, pytest.approx(80 / 60))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100), st.integers(0, 9)), min_size=2))
def test_a_load_is_within_what_was_measured(steps: list[tuple[int, int, int]]) -> None:
    """Each step lasts some seconds and takes so many hundredths of a CPU."""
    recent, time, used = RecentLoad(), 0.0, 0.0
    for seconds, share, memory in steps:
        time, used = time + seconds, used + seconds * share / 100
        recent.add(time, Usage(used, memory))
    told = recent.load()
    assert told is not None
    shares = [share / 100 for _, share, _ in steps]
    assert min(shares) - 1e-6 <= told.cpus <= max(shares) + 1e-6
    assert told.memory_bytes <= max(memory for *_, memory in steps)


def test_an_agent_in_a_container_tells_its_load_until_it_is_closed(tmp_path: Path) -> None:
    group_v2(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    told, heard = list[Load](), threading.Event()

    def tell(load: Load) -> None:
        told.append(load)
        heard.set()

    meter = LoadMeter({ROOT_VARIABLE: str(tmp_path)}, tell, lambda: 0.0, every=0.01)
    meter.start()
    assert heard.wait(120)
    meter.close()
    assert (told[0].cpus, told[0].memory_bytes) == (0.0, 260 * MIB)


def test_a_machine_without_control_groups_is_said_once_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = list[Load]()
    with caplog.at_level(logging.INFO, load.log.name):
        meter = LoadMeter({ROOT_VARIABLE: str(tmp_path)}, told.append, lambda: 0.0, every=0.01)
        meter.start()
        for thread in threading.enumerate():
            if thread.name == "load":
                thread.join(120)
    (record,) = caplog.records
    assert "load is not measured" in record.getMessage() and str(tmp_path) in record.getMessage()
    assert not told


def test_no_load_is_measured_where_agents_share_a_group() -> None:
    before = set(threading.enumerate())  # other tests' meters among them
    meter = LoadMeter({ROOT_VARIABLE: ""}, lambda load: None, lambda: 0.0)
    meter.start()
    assert not [one for one in threading.enumerate() if one.name == "load" and one not in before]


LIBRARY = """\
struct memory { unsigned long long total, free, used; };
struct utilization { unsigned int gpu, memory; };
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = (void *)(unsigned long)(index + 1);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
    found->total = 80ULL << 30;
    found->used = (unsigned long)device << 33;
    found->free = found->total - found->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *found) {
    if (!BUSY) return 3; /* NVML_ERROR_NOT_SUPPORTED */
    found->gpu = (unsigned long)device == 1 ? 90 : 50;
    return 0;
}
"""


def library(folder: Path, count: int, *, busy: bool = True) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a libnvidia-ml with")
    (folder / "nvml.c").write_text(LIBRARY)
    options = [f"-DGPUS={count}", f"-DBUSY={int(busy)}", "-shared", "-fPIC"]
    made = folder / f"libnvidia-ml-{count}-{busy}.so"
    command = [compiler, *options, str(folder / "nvml.c"), "-o", str(made)]
    subprocess.run(command, check=True, timeout=60)
    return str(made)


@pytest.mark.process
def test_memory_of_all_gpus_and_their_mean_use_are_told(tmp_path: Path) -> None:
    assert Gpus(library(tmp_path, 2)).read() == GpuUsage(3 << 33, 70, 160 << 30)
    assert Gpus(library(tmp_path, 1, busy=False)).read() == GpuUsage(1 << 33, None, 80 << 30)
    with pytest.raises(OSError, match="no GPU"):
        Gpus(library(tmp_path, 0))
    with pytest.raises(OSError, match=gpus.LIBRARY):
        Gpus(str(tmp_path / gpus.LIBRARY))


def test_the_coordinator_tells_each_containers_load() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    before = job.state.ledger
    job.say("a0", Load(1.25, 260 * MIB))
    job.say("a1", Load(0.5, 100 * MIB, 1 << 33, 70, 80 << 30))
    assert job.state.ledger == before, "it changes no use of time"
    none = {"gpu_memory": None, "gpu_memory_total": None, "gpu_percent": None}
    some = {"gpu_memory": 1 << 33, "gpu_memory_total": 80 << 30, "gpu_percent": 70}
    assert status(job.state, "ns/job", job.now, 0.0)["loads"] == {
        "0": {"cpus": 1.25, "memory": 260 * MIB} | none,
        "1": {"cpus": 0.5, "memory": 100 * MIB} | some,
    }


WAITS = """
import time
import torch.distributed as dist

dist.init_process_group("gloo")
while True:
    time.sleep(1)
"""


@pytest.mark.process
def test_a_pods_load_goes_by_its_agent_to_the_coordinators_status(tmp_path: Path) -> None:
    group_v2(tmp_path / "group")
    (tmp_path / "group" / "cgroup.controllers").write_text("cpu memory\n")
    job = Torchrun(tmp_path, WAITS)
    try:
        variables = {"VOLCANO_ELASTIC_POD_UID": "u0", ROOT_VARIABLE: str(tmp_path / "group")}
        job.start(0, environment=variables)
        told = job.until("it tells its load", lambda told: bool(told.get("loads")))
        assert told["loads"]["0"]["memory"] == 260 * MIB
    finally:
        job.close()


def test_kills_for_memory_are_counted_in_ones_own_group(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/pods/this\n0::/pods/this\n")
    assert oom_kills(tmp_path / "nowhere", own) == 0 == oom_kills(tmp_path, tmp_path / "none")
    group = tmp_path / "v1" / "memory" / "pods" / "this"
    group.mkdir(parents=True)
    assert oom_kills(tmp_path / "v1", own) == 0, "an old kernel doesn't say"
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (group.parents[1] / "memory.oom_control").write_text("oom_kill 9\n")
    assert oom_kills(tmp_path / "v1", own) == 3
    second = tmp_path / "v2"
    second.mkdir()
    (second / "cgroup.controllers").write_text("cpu memory\n")
    (second / "memory.events").write_text("low 0\noom 4\noom_kill 2\n")
    assert oom_kills(second, own) == 2, "mounted in the place of all"


@pytest.mark.gpu
def test_a_device_tells_its_memory_and_its_use() -> None:
    held = torch.ones(2**28, dtype=torch.uint8, device="cuda")
    found = Gpus().read()
    assert held.numel() <= found.memory <= found.memory_total
    assert found.percent is None or 0 <= found.percent <= 100
