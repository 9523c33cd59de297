"""The trainer joins an image that suits it; else torchrun meets by itself, and says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_trainer.inject import start
from elastic_trainer.inject.carry import carry

SUITS = ("torch-2.14.1+cu130", "numpy-2.1.0")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return installed(tmp_path / "site", *SUITS)


def installed(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / f"{name}.dist-info").mkdir(parents=True)
    return folder


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    (tmp_path / "carried" / "cp311").mkdir(parents=True)
    (tmp_path / "carried" / "cp311" / "machine").write_text("x86_64\n")
    return tmp_path / "carried"


def why(carried: Path, image: Path, version: tuple[int, int] = (3, 11), **more: str) -> str:
    given = {"machine": "x86_64"} | more
    return start.suits(str(carried), [str(image)], version, **given)[1]


def test_what_suits_comes_with_its_own_libraries(carried: Path, image: Path) -> None:
    folders, reason = start.suits(str(carried), [str(image)], (3, 11), "x86_64")
    assert (folders, reason) == ([str(carried / "any"), str(carried / "cp311")], "")


def test_what_does_not_suit_is_named(carried: Path, image: Path, tmp_path: Path) -> None:
    assert why(carried, image, (3, 10)) == "expected CPython of cp311, found cpython 3.10"
    assert why(carried, image, implementation="pypy").endswith("found pypy 3.11")
    assert why(carried, image, machine="aarch64") == "expected a machine of x86_64, found aarch64"
    old = installed(tmp_path / "old", "torch-2.13.0", "numpy-2.1.0")
    assert why(carried, old) == "expected torch 2.14, found torch 2.13"
    bare = installed(tmp_path / "bare", "torch-2.15.0")
    assert why(carried, bare) == "expected numpy 2.0, found no numpy"
    installed(image, "protobuf-4.25.1")
    assert why(carried, image) == "the image's own protobuf 4.25 is older than 5.0"


def test_torchrun_meets_by_itself_where_the_trainer_is_left_out(image: Path) -> None:
    instead = json.dumps({"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": None, "PET_RDZV_CONF": "a=1"})
    environment = {
        "PET_RDZV_BACKEND": "volcano-elastic",
        "PET_RDZV_ID": "u",
        "VOLCANO_ELASTIC_INSTEAD": instead,
    }
    said: list[str] = []
    path = [str(image)]
    start.decide(environment, path, said.append)  # nothing was carried beside the source
    told = environment.pop("VOLCANO_ELASTIC_INJECTED")
    del environment["VOLCANO_ELASTIC_INSTEAD"]
    assert environment == {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_CONF": "a=1"}
    assert path == [str(image)] and len(said) == 1 and told in said[0]
    environment["VOLCANO_ELASTIC_INJECTED"] = told
    start.decide(environment, path, said.append)
    assert len(said) == 1, "a child says nothing again"


def test_a_python_without_torch_is_left_alone(tmp_path: Path) -> None:
    environment = {"PET_RDZV_BACKEND": "volcano-elastic", "VOLCANO_ELASTIC_INSTEAD": "{"}
    said: list[str] = []
    start.decide(environment, [str(tmp_path)], said.append)
    assert environment["PET_RDZV_BACKEND"] == "volcano-elastic" and not said


@pytest.mark.process
def test_what_is_carried_is_found_and_the_images_own_start_runs_too(tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    carry(folder)
    carry(folder)
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own = __name__")
    look = (
        "import sys, elastic_trainer, xxhash; from importlib.metadata import entry_points; "
        "print(sys.own, elastic_trainer.__file__, xxhash.__file__, "
        "*entry_points(group='torchrun.handlers').names)"
    )
    # A Python with nothing but torch and numpy, or what looks like it.
    site = installed(tmp_path / "site", *SUITS)
    path = os.pathsep.join(map(str, (folder / "start", own, site)))
    base = getattr(sys, "_base_executable", sys.executable)
    said = subprocess.run(
        [base, "-S", "-c", f"import sitecustomize; {look}"],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = said.stdout.split()
    assert found[:1] == ["sitecustomize"] and found[3:] == ["volcano-elastic"], said.stderr
    assert [Path(one).is_relative_to(folder) for one in found[1:3]] == [True, True]
