"""The real control plane itself: what the tests on it take for granted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from e2e.kubectl import Kubectl
from e2e.stage import Stage
from embedded_cluster.conformance import real_control_plane
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane, ControlPlaneError
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.resource import NODES, PODS

pytestmark = pytest.mark.e2e
_BUILD = ROOT / "e2e" / "controlplane" / "build"
_MODULE = ROOT / "e2e" / "controlplane" / "kubernetes" / "go.mod"


@pytest.fixture
def only_real(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--control-plane") != RealControlPlane.name:
        pytest.skip("about the control plane that `make controlplane` builds")


@pytest.fixture
def real(only_real: None, control_plane: ControlPlane) -> RealControlPlane:
    assert isinstance(control_plane, RealControlPlane)
    return control_plane


async def test_clients_see_the_version_that_was_built(real: RealControlPlane) -> None:
    pinned = re.search(r"k8s.io/kubernetes (v1\.\S+)", _MODULE.read_text())
    assert pinned is not None
    async with real.client() as client:
        version = await client.request("GET", "/version")
    assert version["gitVersion"] == pinned.group(1)
    assert f"v{version['major']}.{version['minor']}." in pinned.group(1)


async def test_a_user_may_do_what_a_role_allows_and_the_audit_log_tells_what_was_asked(
    real: RealControlPlane, tmp_path: Path
) -> None:
    name = "system:serviceaccount:default:reader"
    async with real.client(real.kubeconfig_of(name)) as client:
        with pytest.raises(ApiError, match="403"):
            await client.list(PODS, "default")
        kubectl = Kubectl(real.kubeconfig, tmp_path)
        await kubectl("create", "role", "reader", "--verb=list", "--resource=pods")
        binding = ("--role=reader", "--serviceaccount=default:reader")
        await kubectl("create", "rolebinding", "reader", *binding)
        assert (await client.list(PODS, "default"))["items"] == []
        with pytest.raises(ApiError, match="403"):
            await client.list(PODS)
    asked = [
        (event["verb"], event["objectRef"]["resource"], event["responseStatus"]["code"])
        for event in real.requests(name)
    ]
    assert asked == [("list", "pods", 403), ("list", "pods", 200), ("list", "pods", 403)]


@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
async def test_a_restarted_program_is_found_where_it_was(
    only_real: None, fresh_control_plane: RealControlPlane, tmp_path: Path, program: str
) -> None:
    kubectl = Kubectl(fresh_control_plane.kubeconfig, tmp_path)
    await kubectl("create", "namespace", "kept")
    fresh_control_plane.restart(program)
    assert "kept" in await kubectl("get", "namespaces")


async def test_logs_are_served_to_the_api_server_only(only_real: None, stage: Stage) -> None:
    async with stage.cluster.client() as client:
        node = await client.get(NODES, "node-1")
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"https://127.0.0.1:{port}/containerLogs/default/a/b"
    tls = ssl.create_default_context(cafile=str(stage.plane.folder / "ca.crt"))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=tls)
        api_server = stage.plane.folder / "to-kubelet.crt"
        tls.load_cert_chain(api_server, api_server.with_suffix(".key"))
        async with session.get(url, ssl=tls) as answer:
            assert (answer.status, await answer.text()) == (404, "pod default/a is not known here")


_ENTER_AND_WAIT = """
import time
from embedded_cluster.conformance.real_control_plane import RealControlPlane
with RealControlPlane() as plane:
    print(*(component.pid for component in plane.components.values()), flush=True)
    time.sleep(600)
"""


def test_its_programs_die_with_the_tests(only_real: None, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ENTER_AND_WAIT]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(pids) == 3
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a program outlived the process that started it"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_its_programs_it_says_how_to_build_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_control_plane, "BINARIES", tmp_path)
    with pytest.raises(ControlPlaneError, match="make controlplane"), RealControlPlane():
        pass


@pytest.mark.parametrize(
    ("go", "said"),
    [
        (None, r"expected Go 1\.\d+\S* or newer on PATH .* found none"),
        ("go1.20.14", r"expected Go 1\.\d+\S* or newer, found 1\.20\.14 at .*/go\."),
    ],
    ids=["missing", "too old"],
)
def test_without_a_fitting_go_the_build_says_so(tmp_path: Path, go: str | None, said: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "mkdir", "sed", "sort", "head"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    if go is not None:
        (tools / "go").write_text(f"#!{tools}/bash\necho {go}\n")
        (tools / "go").chmod(0o755)
    built = subprocess.run(
        [str(tools / "bash"), str(_BUILD), str(tmp_path / "out")],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert built.returncode == 1
    assert re.search(said, built.stderr), built.stderr
    assert list((tmp_path / "out").iterdir()) == []
