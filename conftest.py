"""Options of the test suite; in CI hypothesis takes the same examples each time."""

import fcntl
import functools
import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: each of JOBS processes has a core, and threads of several that wait for
# one another's turn make a step of a small model take a second.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As agents set it: else gRPC's threads start anew in each child that is forked, find their files
# closed before the child's program is there, and abort it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# A fork that collected what other tests have left of gRPC would wait for ever, or abort, at a lock
# of a thread that it doesn't have.
os.register_at_fork(after_in_child=gc.freeze)
# Else each test process rewrites all asserts anew, and each of the many programs that tests start
# compiles what it imports of ours.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says more of the machine's other work than of ours. Half of hypothesis'
# usual number found every mutation that the whole did, and takes a third less CPU.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("patient", patient)
settings.register_profile("ci", patient, derandomize=True)
# For `make check`: half of the examples, other ones each time.
settings.register_profile("quick", patient, max_examples=25)
# For a night: `pytest tests/embedded_cluster -k fuzz --hypothesis-profile long`.
settings.register_profile("long", patient, max_examples=20_000)
settings.load_profile("ci" if os.environ.get("CI") else "patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--control-plane",
        choices=("embedded", "real", "kubeconfig"),
        default="embedded",
        help="what e2e/ runs on: our own API server, the one that `make controlplane` built, or "
        "the cluster of $KUBECONFIG, which the tests add nodes and CRDs to (default: %(default)s)",
    )
    parser.addoption("--long", action="store_true", help="minutes where CI has seconds")
    parser.addoption(
        "--no-processes",
        action="store_true",
        help="a test that starts a process fails, as in `make check`",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Leaves what is collected, and torch, out of all looks for garbage: it stays to the end, and
    each look through its 700,000 objects would take half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    if getattr(session.config.option, "loadgroup", False):  # in a worker under --dist loadgroup
        alone = [
            one.nodeid
            for one in session.items
            if one.get_closest_marker("xdist_group") and "@" not in one.nodeid
        ]
        if alone:
            raise pytest.UsageError(
                f"expected --dist loadgroup to keep tests of a group in one process, found "
                f"{alone[0]} without its group: this pytest and pytest-xdist don't go together"
            )


def pytest_unconfigure() -> None:
    gc.unfreeze()


# Tests that share a worker of pytest-xdist under --dist loadgroup, by the folder or file that they
# begin with. All others that start processes share a worker with their file's.
_GROUPS = {"embedded_cluster/conformance/": "conformance"}
# A plain torchrun listens on all addresses of the machine at PyTorchJob's port, so that no other
# test may run a job there meanwhile. It comes when few are left that do, beside the last that start
# no process.
_ALONE = "e2e/test_sdk.py"
# The fixture of tests/embedded_cluster/apiserver: one API server for a whole run.
_PROCESS_FIXTURES = {"process"}
# The part of the pure tests that runs between the others.
_SPREAD = 0.6


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that start processes through a fixture, and groups all that do."""
    # A cluster that is given is one for all of them; others are made by each worker.
    groups = _GROUPS
    if config.getoption("--control-plane") == "kubeconfig":
        groups = {"e2e/": "cluster", "embedded_cluster/conformance/": "cluster"}
    for item in items:
        file = item.path.relative_to(config.rootpath).as_posix()
        if _PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)
        if item.get_closest_marker("gpu") and (reason := _no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("process") or not file.startswith("tests/"):
            group = next((groups[one] for one in groups if file.startswith(one)), file)
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items[:] = _in_turn(items)


def _in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which workers of pytest-xdist take them.

    Files that start processes take up to minutes, mostly waiting; pure tests take moments of a
    whole core. So these are spread between those, for one to compute while others wait. Some of
    them come last, so that no worker is left with a long file, and others compute while one test
    that wants no other job beside it waits.
    """
    files: dict[str, list[pytest.Item]] = {}
    pure: list[pytest.Item] = []
    alone: list[pytest.Item] = []
    # Files of the end-to-end suite are the longest.
    for item in sorted(
        items, key=lambda item: item.path.is_relative_to(item.config.rootpath / "tests")
    ):
        group = item.get_closest_marker("xdist_group")
        if group is None:
            pure.append(item)
        elif item.path == item.config.rootpath / _ALONE:
            alone.append(item)
        else:
            files.setdefault(group.args[0], []).append(item)
    spread = int(len(pure) * _SPREAD)
    ends = [spread * number // len(files) for number in range(1, len(files) + 1)]
    taken, begun = [], 0
    for file, end in zip(files.values(), ends, strict=True):
        taken += file + pure[begun:end]
        begun = end
    last = begun + (len(pure) - begun) // 3
    return taken + pure[begun:last] + alone + pure[last:]


@pytest.fixture(autouse=True)
def _port_of_jobs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Has a test that needs PyTorchJob's port on all addresses wait until no other one runs."""
    if request.node.get_closest_marker("xdist_group") is None:
        yield
        return
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    alone = request.node.path == request.config.rootpath / _ALONE
    with (folder / "queue").open("w") as queue, (folder / "port").open("w") as port:
        # Whoever waits for the port to itself lets nobody else begin.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(port, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Said, not left to closing: forked processes have the file, too.
            fcntl.flock(port, fcntl.LOCK_UN)


@functools.cache
def _no_gpu() -> str:
    """Return why tests that need a CUDA device can't run here; empty if they can."""
    import torch

    if not torch.cuda.device_count():  # asked of NVML, so that CUDA isn't initialised here
        return f"expected a CUDA device, found none (torch {torch.__version__})"
    # Ranks may share one, so that one is enough for all of these tests.
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    return ""


# Audit events (PEP 578) of everything that starts a process.
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_test = ""
"""The test that runs just now; empty between tests, where pytest-xdist starts its workers."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--no-processes"):
        sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _test
    _test = item.nodeid
    try:
        return (yield)
    finally:
        _test = ""


def _refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if _test and event in _STARTS:
        raise AssertionError(
            f"expected that {_test} starts no process, found {event}{arguments[:1]}; mark it "
            "with @pytest.mark.process"
        )
