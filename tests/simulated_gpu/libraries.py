"""Builds the libraries of simulated GPUs, with g++, and says how torch comes to use them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
SIMULATED = "SIMULATED_GPUS"
"""In the environment of processes that have simulated GPUs: how many."""
RUNTIME = "libcudart.so.13"
LIBRARIES: dict[str, tuple[str, ...]] = {
    RUNTIME: ("runtime.cpp", "unsupported_runtime.cpp"),
    "libcuda.so.1": ("driver.cpp",),
    "libnccl.so.2": ("collectives.cpp", "unsupported_collectives.cpp"),
    "libnvidia-ml.so.1": ("management.cpp",),
}
"""Each by the name that torch asks for, and of which files; the first is what the others use."""
PRELOADED = (RUNTIME, "libnccl.so.2")
"""Those that torch is linked to; the others it loads by their names."""
VERSIONED = ("cuda_runtime_api.h", "nccl.h")
"""Headers that say which CUDA and NCCL these are."""


def build_libraries(folder: Path) -> Path:
    """Build what isn't built yet, in a folder; return where the libraries are.

    Raises:
        RuntimeError: there is no g++, or no CUDA's headers, or they don't compile.
    """
    if shutil.which("g++") is None:
        raise RuntimeError("expected g++, to build the simulated GPU: install g++")
    found = _headers("cu13", "nccl")
    made = folder / name_build(SOURCES, found)
    if made.is_dir():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as building:
        ready = Path(building) / "ready"
        ready.mkdir()
        _compile([SOURCES / "headers", *found], ready)
        with contextlib.suppress(OSError):  # somebody else was quicker
            ready.rename(made)
    return made


def name_build(sources: Path, headers: Sequence[Path]) -> str:
    """Return a name that changes with whatever the libraries are built of: the sources, this
    module's command and torch's headers, but nothing that Python keeps beside them."""
    files = [*sources.rglob("*.cpp"), *sources.rglob("*.h"), Path(__file__)]
    files += [one / name for one in headers for name in VERSIONED if (one / name).is_file()]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _compile(include: Sequence[Path], folder: Path) -> None:
    versions = folder / "versions"
    versions.write_text(f"{RUNTIME} {{ global: *; }};\n")  # as torch asks for its functions
    for name, sources in LIBRARIES.items():
        command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-Wall"]
        command += [f"-I{one}" for one in include]
        command += [f"-Wl,-soname,{name}", "-o", str(folder / name)]
        command += [str(SOURCES / one) for one in sources]
        if name == RUNTIME:
            command.append(f"-Wl,--version-script={versions}")
        else:
            command += [f"-L{folder}", f"-l:{RUNTIME}"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode:
            raise RuntimeError(f"{name} of the simulated GPU doesn't compile:\n{found.stderr}")


def on_simulated_gpus(libraries: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process whose torch finds simulated GPUs; its children's, too."""
    paths = [str(libraries), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    modules = [str(SOURCES / "start"), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "LD_PRELOAD": " ".join(str(libraries / name) for name in PRELOADED),
        "LD_LIBRARY_PATH": ":".join(paths),
        "PYTHONPATH": ":".join(modules),
    }


def _headers(*packages: str) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        found = [Path(folder) / package / "include" for package in packages]
        if all(one.is_dir() for one in found):
            return found
    raise RuntimeError(
        "expected the headers of CUDA 13 and NCCL in this Python's packages, found none: install "
        "torch with CUDA, as `make .venv/ready` does on Linux, not a build for CPUs alone"
    )
