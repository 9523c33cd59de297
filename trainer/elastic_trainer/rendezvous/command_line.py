"""torchrun's command line: how many workers it starts, and of what program."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import shlex
from collections.abc import Sequence

PROGRAM_BYTES = 500
"""The most that is told of a program as it is; a digest stands for the rest."""


def torchrun_options(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return torchrun's options; None if these arguments are not torchrun's."""
    from torch.distributed.run import get_args_parser

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return get_args_parser().parse_args(list(arguments))
    except SystemExit:
        return None


def count_processes(options: argparse.Namespace | None) -> int:
    """Return how many workers torchrun starts here; 0 if this is no torchrun."""
    from torch.distributed.run import determine_local_world_size

    if options is None:
        return 0
    try:
        return int(determine_local_world_size(str(options.nproc_per_node)))
    except ValueError:
        return 0


def program_of(options: argparse.Namespace | None) -> str:
    """Return the program's path or module, with its arguments, as a shell would read it.

    Empty if this is no torchrun: other launchers' arguments may differ by node. It says nothing
    of the script's content, which may be newer where a node came back. Bytes that are no UTF-8 are
    escaped, as messages hold none.
    """
    if options is None:
        return ""
    script = options.training_script
    if options.module:
        words = ["-m", script]
    elif os.path.isfile(script):
        words = [os.path.abspath(script)]
    else:
        return ""
    text = shlex.join([*words, *options.training_script_args]).encode(errors="backslashreplace")
    if len(text) <= PROGRAM_BYTES:
        return text.decode()
    digest = hashlib.blake2b(text, digest_size=8).hexdigest()
    return f"{text[:PROGRAM_BYTES].decode(errors='ignore')}… ({digest})"
