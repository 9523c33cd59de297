"""torchrun's `torchelastic_*` folder in the temporary directory, which it leaves behind.

It makes one wherever no --log-dir is given. What is in it then are its workers' error files, and
their output only where that was redirected.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

OLD_SECONDS = 3600.0
"""From then on nobody is about to write to an empty folder."""
_PREFIX = "torchelastic_"
_noted: set[Path] = set()


def note(error_file: str) -> None:
    """A worker is started that has this error file: `<folder>/<run>/attempt_<n>/<rank>/…`."""
    if error_file.startswith("/"):
        _noted.add(Path(error_file).parents[3])


def remove_unnamed() -> None:
    """Remove this process' unnamed log folder, unless it holds the workers' output, and empty ones
    that are old, as of an agent that never started a worker. Young ones may be another agent's,
    which is about to write there."""
    directory = Path(tempfile.gettempdir())
    for folder in _noted:
        ours = folder.parent == directory and folder.name.startswith(_PREFIX)
        if ours and not any(folder.rglob("std*.log")):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in directory.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > OLD_SECONDS:
                folder.rmdir()
