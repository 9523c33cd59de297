"""Connections without asking the name service who is at the other end."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

from elastic_trainer.ranks.variable import variable_set

_VARIABLE = "RES_OPTIONS"
_stopped = False


def stop_reverse_lookups() -> None:
    """Make torch's stores name no peer, in this process and those that it forks.

    For its log, torch asks the name service for each address that a TCPStore connects to or
    accepts, and waits: one answer that is lost on the way holds up the store, and so all ranks,
    for 5 s, the resolver's own time-out. After one question that failed torch asks no more (its
    issue 159007), so it is made to fail here, at once: by a resolver that makes no attempt, in a
    thread of its own, as each thread's resolver reads its options when it is first used. From then
    on that log has no addresses. Call it before other threads start: it sets a variable of the
    environment for a moment.
    """
    global _stopped
    if _stopped:
        return
    _stopped = True
    with variable_set(_VARIABLE, "attempts:0"), _silent_stderr():
        thread = threading.Thread(target=_connect, name="reverse lookup")
        thread.start()
        thread.join()


def _connect() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # Without a free port or a loopback device, lookups are as they were, and nothing is worse.
    with contextlib.suppress(RuntimeError):
        TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
        )


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """torch warns of the question that failed, which is what was meant."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
