"""Runs clients' programs (clients/*.py), each by an interpreter that has its client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from e2e.control_plane import ROOT

FOLDER = Path(__file__).parent / "clients"
# `ours`: the official client that this project pins; `sdk`: Kubeflow's SDK, the official client
# that it can live with, and kopf.
_INTERPRETERS = {"ours": Path(sys.executable), "sdk": ROOT / "build" / "sdk" / "bin" / "python"}
_SECONDS = 240.0


async def run(interpreter: str, program: str, *arguments: str) -> tuple[int, Any]:
    """Its exit code, and what it printed as JSON; where it failed, how it ended.

    Raises:
        FileNotFoundError: the interpreter isn't there.
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
    except TimeoutError:
        return -1, f"no end within {_SECONDS:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return process.returncode or -1, err.decode()[-4000:]
    return 0, json.loads(out)
