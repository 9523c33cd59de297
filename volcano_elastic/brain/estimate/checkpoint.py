"""X3: what parameter servers need that begin with a checkpoint.

memory of all of them                   checkpoint's size / 0.6

Source: DeepRec Extension's AIMaster, which has the number of servers by it; hash tables, buffers
and what the model still grows by need the rest.
"""

from __future__ import annotations

from volcano_elastic.api.amount import Bytes
from volcano_elastic.pytorchjob.server_scaling import FULL


def memory_of_servers(checkpoint: Bytes) -> Bytes:
    """Return the memory that all servers need together.

    Args:
        checkpoint: what their rows take in it.
    """
    return checkpoint * (1 / FULL)
