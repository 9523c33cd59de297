"""Images: their bill of materials, and how their commands are checked here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.check_image import CheckFailed, closed_to_others, different, instructions, script
from deploy.sbom import bill, pinned

ROOT = Path(__file__).parents[2]
IMAGES = ("operator", "trainer")


@pytest.mark.parametrize("image", IMAGES)
def test_a_bill_names_each_package_that_is_installed_once(image: str) -> None:
    text = (ROOT / "deploy" / f"{image}-requirements.txt").read_text()
    said = json.loads(bill(f"volcano-elastic-{image}", "1.2.3", text, 0))
    parts = {part["bom-ref"] for part in said["components"]}
    assert len(parts) == len(said["components"]) > 5
    assert all(
        part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}" for part in said["components"]
    )
    (ours,) = said["dependencies"]
    assert ours["ref"] == said["metadata"]["component"]["bom-ref"]
    assert set(ours["dependsOn"]) == parts
    assert bill(f"volcano-elastic-{image}", "1.2.3", text, 0) == json.dumps(said, indent=2) + "\n"


def test_what_other_systems_need_is_in_no_image() -> None:
    text = (
        'a==1 \\\n    --hash=sha256:0\nB_c==2 ; sys_platform == "win32" \\\n    --hash=sha256:1\n'
    )
    assert list(pinned(text)) == [("a", "1")]
    with pytest.raises(ValueError, match="expected NAME==VERSION"):
        list(pinned("a>=1"))


@pytest.mark.process
@pytest.mark.parametrize("image", IMAGES)
def test_a_containerfile_is_a_script_that_a_shell_reads(image: str) -> None:
    text = (ROOT / "deploy" / f"{image}.Containerfile").read_text()
    said = script(text, ROOT, "/usr/bin/python3", Path("/nowhere"))
    done = subprocess.run(["bash", "-n"], input=said, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = [words for name, words in instructions(text) if name == "RUN"]
    assert len(runs) == 2 and all(words in said for words in runs)
    assert "setpriv --reuid 65532 --regid 65532" in said
    copied = [words.split()[:-1] for name, words in instructions(text) if name == "COPY"]
    files = [name for names in copied for name in names if not name.startswith(("--", "/"))]
    assert all((ROOT / name).exists() for name in files)


def test_files_that_two_runs_made_otherwise_are_named() -> None:
    first = "aa  /opt/x\nbb  /opt/y\ncc  /opt/z\n"
    assert different(first, first) == []
    assert different(first, "aa  /opt/x\nb2  /opt/y\n") == ["/opt/y", "/opt/z"]


def test_an_interpreter_that_the_images_user_may_not_run_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "python").symlink_to("/usr/bin/env")
    assert closed_to_others(folder / "python") is None, "it leads to one that all may run"
    (folder / "own").touch(0o755)
    found = closed_to_others(folder / "own")
    assert found is not None and found in (folder, *folder.parents)


def test_an_instruction_that_the_check_does_not_know_is_refused() -> None:
    with pytest.raises(CheckFailed, match="HEALTHCHECK"):
        script("FROM x\nHEALTHCHECK NONE\n", ROOT, "python3", Path("/nowhere"))
