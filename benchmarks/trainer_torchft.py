"""A node and the lighthouse of torchft (PyPI) for benchmarks.trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.fault_box import die_with_parent
from benchmarks.fault_torchft import FOLDER, LIGHTHOUSE

NODE = """
import signal, subprocess, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
child = None
while not stopped:
    if child is None or child.poll() is not None:
        child = subprocess.Popen([sys.executable, *sys.argv[1:]])
    time.sleep(0.01)
child.terminate()
child.wait()
"""
"""Begins its rank anew when that ends."""

__all__ = ["FOLDER", "NODE", "start_lighthouse"]


def start_lighthouse(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start what all nodes meet at; exit where torchft isn't installed."""
    if not (FOLDER / "torchft").is_dir():
        raise SystemExit(f"expected torchft in {FOLDER}, found none; see benchmarks.fault_torchft")
    program = folder / "lighthouse.py"  # it reads the process' own arguments after a file's name
    program.write_text(f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{LIGHTHOUSE}")
    command = [sys.executable, str(program), "--min_replicas=1", f"--bind=127.0.0.1:{port}"]
    with open(folder / "lighthouse.log", "ab") as log:
        return subprocess.Popen(
            [*command, "--join_timeout_ms=1000"],
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
