"""Outlives a kubelet that was killed, just long enough to end its containers.

Its standard input is a pipe whose other end only the kubelet holds: end of file is the kubelet's
death, however it died.
"""

from __future__ import annotations

import os
import signal
import sys

from volcano_elastic.local.kubelet.process_table import kill_marked


def main(argv: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1024):
        pass
    return 0 if kill_marked(argv[0], seconds=10.0) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
