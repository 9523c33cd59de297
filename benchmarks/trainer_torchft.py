"""A node and the lighthouse of torchft (PyPI) for benchmarks.trainer."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
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

LISTEN_SECONDS = 60.0

__all__ = ["FOLDER", "NODE", "start_lighthouse"]


def start_lighthouse(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start what all nodes meet at, and return once it listens.

    Raises RuntimeError if it ends, or doesn't listen.
    """
    program = folder / "lighthouse.py"  # it reads the process' own arguments after a file's name
    program.write_text(f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{LIGHTHOUSE}")
    command = [sys.executable, str(program), "--min_replicas=1", f"--bind=127.0.0.1:{port}"]
    with open(folder / "lighthouse.log", "ab") as log:
        lighthouse = subprocess.Popen(
            [*command, "--join_timeout_ms=1000"],
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
    end = time.monotonic() + LISTEN_SECONDS
    while lighthouse.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return lighthouse
        time.sleep(0.05)
    found = f"it ended with {lighthouse.poll()}" if lighthouse.poll() is not None else "it doesn't"
    lighthouse.kill()
    lighthouse.wait()
    said = (folder / "lighthouse.log").read_text()[-1000:]
    raise RuntimeError(f"expected torchft's lighthouse to listen on port {port}, {found}: {said}")
