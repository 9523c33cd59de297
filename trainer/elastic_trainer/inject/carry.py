"""Makes the folder that an init container copies into pods.

    python -m elastic_trainer.inject.carry FOLDER

brings this package, and for the Python that runs it the libraries that it needs beside torch and
numpy. Run it by each Python version that images have; versions come beside one another.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import elastic_trainer
from elastic_trainer.inject import start

_LIBRARIES = ("grpcio", "protobuf", "tenacity", "xxhash")
_SELF = "volcano-elastic-trainer"


def carry(folder: Path) -> Path:
    """Put all that pods with this Python version need into the folder; return its part of it.

    Raises:
        PackageNotFoundError: a library is not installed.
    """
    everywhere, begin = folder / "any", folder / "start"
    for each in (everywhere, begin):
        each.mkdir(parents=True, exist_ok=True)
    [package] = elastic_trainer.__path__
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(package, everywhere / "elastic_trainer", dirs_exist_ok=True, ignore=skipped)
    _write_metadata(everywhere)
    shutil.copyfile(start.__file__, begin / "sitecustomize.py")
    mine = folder / f"cp{sys.version_info[0]}{sys.version_info[1]}"
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir()
    for name in _LIBRARIES:
        _copy(metadata.distribution(name), mine)
    (mine / "machine").write_text(f"{os.uname().machine}\n")
    return mine


def _write_metadata(target: Path) -> None:
    """By which torchrun finds the rendezvous."""
    own = metadata.distribution(_SELF)
    folder = target / f"{_SELF.replace('-', '_')}-{own.version}.dist-info"
    folder.mkdir(exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        (folder / name).write_text(own.read_text(name) or "")


def _copy(library: metadata.Distribution, target: Path) -> None:
    for file in library.files or ():
        source = Path(str(library.locate_file(file)))
        # Programs are outside of the packages' folder, and byte code is made anew.
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        to = target / file
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m elastic_trainer.inject.carry FOLDER")
    try:
        print(f"carried: {carry(Path(sys.argv[1]))}")
    except metadata.PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed here; install {_SELF} with what it needs")


if __name__ == "__main__":
    main()
