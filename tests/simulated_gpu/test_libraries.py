"""Builds of the simulated GPU: what they are named by, and what is said where there can be none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.simulated_gpu import __main__ as command
from tests.simulated_gpu.libraries import SOURCES, build_libraries, name_build


def test_a_build_is_named_by_its_sources_and_torchs_headers_alone(tmp_path: Path) -> None:
    sources, include = tmp_path / "sources", tmp_path / "include"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    include.mkdir()
    (include / "nccl.h").write_text("#define NCCL_MINOR 30")
    first = name_build(sources, [include])
    cache = sources / "__pycache__"
    cache.mkdir()
    (cache / "operators.cpython-311.pyc").write_bytes(b"compiled")
    assert name_build(sources, [include]) == first, "else a second run builds anew"
    (include / "nccl.h").write_text("#define NCCL_MINOR 31")
    newer = name_build(sources, [include])
    assert newer != first
    (sources / "runtime.cpp").write_text("// changed")
    assert name_build(sources, [include]) not in {first, newer}


def test_a_machine_without_a_compiler_or_headers_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulated_gpu", "true"])
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(tmp_path))
        with pytest.raises(SystemExit, match=r"install g\+\+"):
            command.main()
    (tmp_path / "g++").write_text("")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    with pytest.raises(RuntimeError, match="install torch with CUDA"):
        build_libraries(tmp_path / "build")
    assert not (tmp_path / "build").exists()
