"""X3: parameter servers for a model that is in a checkpoint already.

memory in all     size of the checkpoint / 0.6
number            memory in all / memory of each, rounded up

Source: DeepRec Extension's article and its `EstimatePSResource`, which saved 42 % of the memory
that people asked for. Without a checkpoint, what the job says stays.
"""

from __future__ import annotations

from volcano_elastic.api.amount import Bytes

FULL = 0.6
"""Share of a server's memory that its part of the model may take; hash tables, buffers and what
arrives while it trains need the rest."""


def servers_for_checkpoint(size: Bytes, each: Bytes, without: int) -> int:
    """Return the number of parameter servers.

    Args:
        size: of the checkpoint, 0 if there is none.
        each: memory of each server, more than 0.
        without: number to use where there is no checkpoint.
    """
    if not size:
        return without
    needed = size * (1 / FULL)
    return max(1, -(-needed.count // each.count))
