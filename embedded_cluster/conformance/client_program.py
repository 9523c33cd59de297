"""Runs clients' programs (clients/*.py), each by an interpreter that has its client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from embedded_cluster.conformance.control_plane import ROOT

FOLDER = Path(__file__).parent / "clients"
# `ours`: the official client that this project pins; `sdk`: Kubeflow's SDK, the official client
# that it can live with, and kopf.
_INTERPRETERS = {"ours": Path(sys.executable), "sdk": ROOT / "build" / "sdk" / "bin" / "python"}
_SECONDS = 600.0


class ProgramError(Exception):
    """A program broke off, which no server should bring it to."""


async def run(interpreter: str, program: str, *arguments: str) -> dict[str, Any]:
    """Run a client's program; return its record, step by step.

    Raises:
        FileNotFoundError: the interpreter isn't there.
        ProgramError: it failed, or came to no end.
    """
    python = _INTERPRETERS[interpreter]
    if not python.exists():
        raise FileNotFoundError(f"expected Kubeflow's SDK at {python}, found none; run `make sdk`")
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(FOLDER / f"{program}.py"), *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "KUBECONFIG"},
    )
    try:
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise ProgramError(f"{program} {arguments}: no end within {_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = err.decode()[-4000:]
        raise ProgramError(f"{program} {arguments}: exit code {process.returncode}\n{said}")
    # A client may print things of its own first.
    seen: dict[str, Any] = json.loads(out.splitlines()[-1])
    return seen
