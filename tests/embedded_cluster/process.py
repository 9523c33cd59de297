"""`volcano-elastic local up` with a fake kubelet, as a process, for tests of the tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from embedded_cluster.component import dying_with_us

ROOT = Path(__file__).parents[2]
_SECONDS = 120.0


@contextmanager
def local_cluster(
    folder: Path, *, nodes: int = 2, gpus_per_node: int = 4, kubelet: str = "fake"
) -> Iterator[Path]:
    """Yields its kubeconfig; all of it is gone afterwards."""
    kubeconfig = folder / "kubeconfig"
    command = [sys.executable, "-m", "volcano_elastic.cli", "local", "up", "--kubelet", kubelet]
    command += ["--nodes", str(nodes), "--gpus-per-node", str(gpus_per_node)]
    command += ["--kubeconfig", str(kubeconfig)]
    with (folder / "up.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            text=True,
            start_new_session=True,
            preexec_fn=dying_with_us(),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), (folder / "up.log").read_text()
            yield kubeconfig
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise


def eventually(seen: Callable[[], object], what: str) -> None:
    """Look until `seen` is true; a look at what isn't there yet (LookupError) is not."""
    deadline = time.monotonic() + _SECONDS
    while True:
        missing: Exception | None = None
        try:
            if seen():
                return
        except LookupError as error:
            missing = error
        last = f"; the last look missed {missing!r}" if missing else ""
        assert time.monotonic() < deadline, f"not within {_SECONDS:.0f} s: {what}{last}"
        time.sleep(0.2)
