"""`make release` names one version everywhere, builds, dates the changelog, tags, and no more."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy.release import CHANGELOG, VERSIONED, ReleaseError, present, release, released

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 23)
FILES = {name: (ROOT / name).read_text() for name in (*VERSIONED, CHANGELOG)}
NEWS = FILES | {CHANGELOG: "# Changelog\n\n## Unreleased\n\n- News.\n\n## 0.0.9 (2026-01-01)\n"}


def test_all_files_name_one_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", present(FILES))


@pytest.mark.process
def test_each_file_that_names_the_version_is_known_to_the_release() -> None:
    version = present(FILES)
    named = rf"(^version = \"|volcano-elastic[a-z-]*:){re.escape(version)}"
    listed = ["git", "grep", "-lE", named, "--", "deploy", "manifests", "examples", "*.toml"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert [name for name in found if name not in VERSIONED] == []
    assert len(found) > 3


@given(st.tuples(*[st.integers(1, 999)] * 3))
def test_every_file_names_the_new_version(numbers: tuple[int, int, int]) -> None:
    version = ".".join(map(str, numbers))
    made = released(NEWS, version, TODAY)
    assert present(made) == version
    before = {name: re.sub(VERSIONED[name], "", NEWS[name]) for name in VERSIONED}
    assert {name: re.sub(VERSIONED[name], "", made[name]) for name in VERSIONED} == before
    assert f"## Unreleased\n\n## {version} (2026-11-23)\n\n- News.\n\n## 0.0.9" in made[CHANGELOG]


@pytest.mark.parametrize("version", ["1", "0.2", "v0.2.0", "0.2.0rc1", "../0.2.0", "0.0.1", ""])
def test_what_is_no_later_version_is_refused(version: str) -> None:
    with pytest.raises(ReleaseError):
        released(NEWS, version, TODAY)


def test_a_release_without_news_is_refused() -> None:
    empty = NEWS[CHANGELOG].replace("- News.\n\n", "")
    with pytest.raises(ReleaseError, match="Unreleased"):
        released(NEWS | {CHANGELOG: empty}, "9.9.9", TODAY)


def test_a_version_that_the_changelog_has_is_refused() -> None:
    told = NEWS[CHANGELOG].replace("0.0.9", "9.9.9")
    with pytest.raises(ReleaseError, match=r"9\.9\.9 is there already"):
        released(NEWS | {CHANGELOG: told}, "9.9.9", TODAY)


def test_files_that_disagree_are_named() -> None:
    other = NEWS | {"trainer/pyproject.toml": 'version = "7.7.7"\n'}
    with pytest.raises(ReleaseError, match=r"trainer/pyproject\.toml: 7\.7\.7"):
        released(other, "9.9.9", TODAY)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of one commit with the files of this checkout that git knows or would know."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    made = tmp_path / "clone"
    for name in filter(None, names.split("\0")):
        source, copy = ROOT / name, made / name
        if not source.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        else:
            shutil.copy(source, copy)
    (made / CHANGELOG).write_text(NEWS[CHANGELOG])
    for command in (
        ["init", "-q"],
        ["config", "user.name", "a tester"],
        ["config", "user.email", "tester@example.com"],
        ["add", "--all"],
        ["commit", "-qm", "All of it"],
    ):
        subprocess.run(["git", *command], cwd=made, check=True)
    return made


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.mark.process
def test_a_release_is_both_wheels_the_chart_and_a_tag(clone: Path) -> None:
    out = clone / "dist" / "9.9.9"
    made = release(clone, "9.9.9", out, TODAY, "https://example.com/volcano-elastic/")
    assert (
        {file.name for file in made}
        == {file.name for file in out.iterdir()}
        == {
            "volcano_elastic-9.9.9-py3-none-any.whl",
            "volcano_elastic_trainer-9.9.9-py3-none-any.whl",
            "volcano-elastic-9.9.9.tgz",
            "volcano-elastic-9.9.9.oci.tar",
            "kubectl-elastic-9.9.9.tar.gz",
            "elastic.yaml",
            "volcano-elastic-9.9.9.cdx.json",
            "volcano-elastic-trainer-9.9.9.cdx.json",
            "SHA256SUMS",
        }
    )
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    with tarfile.open(out / "volcano-elastic-9.9.9.tgz") as chart:
        names = chart.getnames()
        assert all(member.isfile() for member in chart.getmembers()), "links are followed"
    assert "volcano-elastic/files/manifests/base/deployment.yaml" in names
    assert "volcano-elastic/files/crds/kubeflow.org_pytorchjobs.yaml" in names
    plugin = yaml.safe_load((out / "elastic.yaml").read_text())["spec"]
    assert plugin["version"] == "v9.9.9"
    (platform,) = plugin["platforms"]
    archive = out / "kubectl-elastic-9.9.9.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"].startswith("https://example.com/volcano-elastic/releases/")
    assert platform["uri"].endswith(archive.name)
    with tarfile.open(archive) as packed:
        assert packed.getmember(platform["bin"]).mode == 0o755
    assert git(clone, "tag", "--points-at", "HEAD") == "v9.9.9"
    assert git(clone, "log", "-1", "--format=%s") == "Release 9.9.9"
    assert git(clone, "status", "--porcelain") == ""
    assert present({name: (clone / name).read_text() for name in VERSIONED}) == "9.9.9"
    with pytest.raises(ReleaseError, match=r"v9\.9\.9 is there already"):
        release(clone, "9.9.9", out, TODAY)


@pytest.mark.process
def test_a_release_that_cannot_be_built_leaves_the_checkout_as_it_was(clone: Path) -> None:
    with (clone / "trainer" / "pyproject.toml").open("a") as file:
        file.write("[this is no TOML\n")
    git(clone, "commit", "-qam", "Break the build")
    before = git(clone, "rev-parse", "HEAD")
    with pytest.raises(ReleaseError, match="trainer"):
        release(clone, "9.9.9", clone / "dist", TODAY)
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "tag")) == (before, "")
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.process
def test_a_checkout_with_changes_is_not_released(clone: Path) -> None:
    (clone / "note").write_text("unfinished")
    with pytest.raises(ReleaseError, match="uncommitted"):
        release(clone, "9.9.9", clone / "dist", TODAY)
    assert git(clone, "tag") == ""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH with kubectl's plugin and the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl-elastic").symlink_to(ROOT / "deploy" / "krew" / "kubectl-elastic")
    (folder / "sh").symlink_to(Path("/bin/sh").resolve())
    return folder


def plugin(programs: Path, *arguments: str) -> tuple[int, str]:
    command = [str(programs / "kubectl-elastic"), *arguments]
    done = subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.process
def test_the_kubectl_plugin_runs_the_installed_program_of_its_version(programs: Path) -> None:
    said = f'[ "$1" = --version ] && echo "it, version {present(FILES)}" || echo "ran $*"'
    program(programs, "volcano-elastic", said)
    assert plugin(programs, "explain", "a job") == (0, "ran explain a job\n")


@pytest.mark.process
@pytest.mark.parametrize("installed", [False, True], ids=["none", "another version"])
def test_the_kubectl_plugin_fetches_its_version_where_it_is_not_installed(
    programs: Path, installed: bool
) -> None:
    if installed:
        program(programs, "volcano-elastic", "echo it, version 0.0.1")
    program(programs, "uvx", 'echo "uvx $*"')
    wanted = f"volcano-elastic[operator]=={present(FILES)}"
    assert plugin(programs, "top") == (0, f"uvx --quiet --from {wanted} volcano-elastic top\n")


@pytest.mark.process
def test_the_kubectl_plugin_says_what_to_install(programs: Path) -> None:
    code, said = plugin(programs, "top")
    assert code == 2 and f"pip install 'volcano-elastic[operator]=={present(FILES)}'" in said
