"""Measures how slow this machine is, so that the demo's limits hold on any."""

from __future__ import annotations

import asyncio
import sys
import time

REFERENCE_SECONDS = 2.5
"""The start of an interpreter that imports torch on two quiet cores, where the limits were set."""
MOST = 20.0
"""A machine slower than this is rather one where something hangs."""


def slowness(start_seconds: float) -> float:
    """Return by what the demo's limits are multiplied: 1 where they were set, or on a faster one.

    Args:
        start_seconds: what starting an interpreter that imports torch took here.
    """
    return min(max(start_seconds / REFERENCE_SECONDS, 1.0), MOST)


async def measure_start() -> float:
    """Return the seconds that an interpreter with torch takes to start, as each pod's does.

    Returns MOST × REFERENCE_SECONDS where it takes longer, or fails: the pods will say why.
    """
    longest, began = MOST * REFERENCE_SECONDS, time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import torch.distributed.run"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        code = await asyncio.wait_for(process.wait(), longest)
    except TimeoutError:
        return longest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return longest if code else time.monotonic() - began
