"""Spares forks of a process that uses gRPC what gRPC can't bear in them."""

from __future__ import annotations

import gc
import os
from functools import cache


@cache
def keep_garbage_from_forks() -> None:
    """Have no fork of this process collect what was made before it; once is enough.

    A data loader's worker whose collector finds one of gRPC's objects in a reference cycle, as a
    call that ended in an error is, waits for ever or aborts at a lock of a thread that only its
    parent has. Its first collection may come before any `worker_init_fn` is called.
    """
    os.register_at_fork(after_in_child=gc.freeze)
