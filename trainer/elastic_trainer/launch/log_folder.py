"""torchrun's `torchelastic_*` folder in the temporary directory, which it leaves behind.

It makes one wherever no --log-dir is given. What is in it then are its workers' error files, and
their output only where that was redirected.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

_PREFIX = "torchelastic_"
_noted: set[Path] = set()


def note(error_file: str) -> None:
    """A worker is started that has this error file: `<folder>/<run>/attempt_<n>/<rank>/…`."""
    if error_file.startswith("/"):
        _noted.add(Path(error_file).parents[3])


def remove_unnamed() -> None:
    """Remove this process' unnamed log folder, unless it holds the workers' output, and empty ones,
    as of an agent that never started a worker; whoever wants one makes it again."""
    directory = Path(tempfile.gettempdir())
    for folder in _noted:
        ours = folder.parent == directory and folder.name.startswith(_PREFIX)
        if ours and not any(folder.rglob("std*.log")):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in directory.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            folder.rmdir()
