"""The environment of a worker that is started before it has a place."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_trainer.link.worker_link import ROUND_VARIABLE

NO_RANK = "-1"
_RANKS = ("RANK", "ROLE_RANK", "GROUP_RANK")


def worker_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment for a worker that torchrun would start with `variables`.

    A newcomer to a running job is started alone, in a world of its node, and gets its place later:
    it would take itself for rank 0, as others do rightly. So its ranks are -1 until then. Without
    RANK, most libraries would take it for rank 0 too.
    """
    found = dict(variables)
    if found.get(ROUND_VARIABLE) == "0":
        found |= dict.fromkeys(_RANKS, NO_RANK)
    return found
