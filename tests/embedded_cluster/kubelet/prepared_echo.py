"""Does `python -m echo` for a test's containers, which begin as forks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence


def takes(words: Sequence[str], variables: Mapping[str, str]) -> bool:
    return list(words[1:3]) == ["-m", "echo"]


def run(words: Sequence[str]) -> int:
    print(os.getpid(), os.environ["TOLD"], *words[3:], flush=True)
    if "sleep" in words:
        if os.fork() == 0:
            os.setsid()
        time.sleep(600)
    sys.stdout.flush()
    return 7
