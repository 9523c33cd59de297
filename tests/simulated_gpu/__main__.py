"""Runs a command on simulated GPUs: `python -m tests.simulated_gpu [--gpus 2] COMMAND...`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.simulated_gpu.libraries import SIMULATED, build_libraries, on_simulated_gpus

FOLDER = Path(__file__).resolve().parents[2] / "build" / "simulated-gpu"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulated_gpu", description=__doc__)
    parser.add_argument("--gpus", type=int, default=2, help="of each process; they are its own")
    parser.add_argument(
        "--delay", type=int, default=0, help="microseconds that a copy begins late, at most"
    )
    parser.add_argument(
        "--spills",
        action="store_true",
        help="a rank that aborts ends its peers' collectives, too, with garbage",
    )
    parser.add_argument(
        "--remote-errors",
        action="store_true",
        help="NCCL tells of lost peers, as over a network; else it never does",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error("no command")
    try:
        libraries = build_libraries(FOLDER)
    except RuntimeError as error:
        sys.exit(str(error))
    environment = on_simulated_gpus(libraries, os.environ)
    environment |= {SIMULATED: str(given.gpus), "SIMULATED_GPU_DELAY": str(given.delay)}
    if given.spills:
        environment["SIMULATED_NCCL_SPILLS"] = "1"
    if given.remote_errors:
        environment["SIMULATED_NCCL_REMOTE_ERRORS"] = "1"
    sys.stdout.flush()
    os.execvpe(given.command[0], given.command, environment)


if __name__ == "__main__":
    main()
