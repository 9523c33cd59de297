"""The wheels do what the checkout does, in an environment and a folder that know no checkout."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deploy.release import build_wheels
from embedded_cluster.component import dying_with_us

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
_SECONDS = 600
_LEFT = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")


@dataclass(frozen=True)
class Installation:
    programs: Path
    folder: Path
    """Where commands are run."""
    environment: Mapping[str, str]

    def run(self, *command: str, stdin: str = "") -> str:
        """Return what the command printed; the test fails if it did."""
        done = subprocess.run(
            [str(self.programs / command[0]), *command[1:]],
            cwd=self.folder,
            env=dict(self.environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Both wheels in an environment of their own; what they need comes from the tests' one."""
    source = tmp_path_factory.mktemp("source")
    for name in ("volcano_elastic", "embedded_cluster", "trainer", "crds", "manifests", "examples"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=_LEFT)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    wheels = build_wheels(source, tmp_path_factory.mktemp("wheels"), 1_700_000_000)
    assert [wheel.name.partition("-")[0] for wheel in wheels] == [
        "volcano_elastic",
        "volcano_elastic_trainer",
    ]
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--offline"]
    install += ["--python", str(home / "bin" / "python"), *map(str, wheels)]
    subprocess.run(install, check=True, timeout=_SECONDS)
    (packages,) = home.glob("lib/python*/site-packages")
    # Editable installs are .pth files there, which are not followed from here.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KUBECONFIG")}
    kept["PATH"] = f"{home / 'bin'}:{kept['PATH']}"
    return Installation(home / "bin", tmp_path_factory.mktemp("elsewhere"), kept)


def test_nothing_of_the_checkout_is_imported(installed: Installation) -> None:
    say = (
        "import volcano_elastic, embedded_cluster, elastic_trainer as t; "
        "print(volcano_elastic.__file__, embedded_cluster.__file__, t.__file__, sep='\\n')"
    )
    files = installed.run("python", "-c", say).splitlines()
    home = installed.programs.parent
    assert [file for file in files if not Path(file).is_relative_to(home)] == []


@pytest.mark.parametrize("program", ["volcano-elastic", "kubectl-elastic"])
def test_an_installed_program_says_what_it_can(installed: Installation, program: str) -> None:
    assert "explain" in installed.run(program, "--help")
    assert "version" in installed.run(program, "--version")


def test_an_installation_brings_the_crds(installed: Installation) -> None:
    printed = list(yaml.safe_load_all(installed.run("volcano-elastic", "crds")))
    files = [ROOT / "crds" / name for name in yaml_names("crds/Kustomization")]
    assert printed == [yaml.safe_load(file.read_text()) for file in files]
    whole = list(yaml.safe_load_all(installed.run("volcano-elastic", "crds", "--volcano")))
    assert len(whole) == len([*(ROOT / "crds").glob("*.yaml")])


def test_an_installation_brings_the_page(installed: Installation) -> None:
    say = (
        "from volcano_elastic.dashboard.server import FILES; "
        "import volcano_elastic.dashboard.history.migrations.versions.use_and_changes; "
        "print(*sorted(file.name for file in FILES.iterdir()))"
    )
    page = ROOT / "volcano_elastic" / "dashboard" / "page"
    names = installed.run("python", "-c", say).split()
    assert names == sorted(file.name for file in page.iterdir())


def yaml_names(kustomization: str) -> list[str]:
    return sorted(yaml.safe_load((ROOT / kustomization).read_text())["resources"])


@pytest.mark.parametrize("plugin", ["capacity", "proportion"])
def test_an_installation_brings_scheduler_configurations_without_pitfalls(
    installed: Installation, plugin: str
) -> None:
    text = installed.run("volcano-elastic", "scheduler-config", plugin)
    assert plugin in text
    installed.run("volcano-elastic", "check-config", "-", stdin=text)


def test_an_installation_has_a_cluster_of_its_own(installed: Installation) -> None:
    kubeconfig = installed.folder / "kubeconfig"
    program = [str(installed.programs / "volcano-elastic"), "local", "up", "--kubelet", "fake"]
    with (installed.folder / "up.log").open("w") as log:
        process = subprocess.Popen(
            [*program, "--kubeconfig", str(kubeconfig)],
            cwd=installed.folder,
            env=dict(installed.environment),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=dying_with_us(),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), (installed.folder / "up.log").read_text()
            for command in ("plan", "doctor"):
                installed.run("volcano-elastic", command, "--kubeconfig", str(kubeconfig))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=_SECONDS)
    assert process.returncode == 0


def test_the_installed_trainer_is_torchruns_handler(installed: Installation) -> None:
    say = (
        "from importlib.metadata import entry_points; "
        "print(*(e.load().__module__ for e in entry_points(group='torchrun.handlers', "
        "name='volcano-elastic')))"
    )
    assert installed.run("python", "-c", say).split() == ["elastic_trainer.rendezvous.handler"]
