"""Decides how long nodes are left out of rounds; pure.

Whoever keeps the job's pods away from a node does so for a while, and may then give it one again,
or must, where there is no room elsewhere: that pod is to train, and not to wait for good.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_trainer.coordinator.agents import Trait
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Phase
from elastic_trainer.coordinator.replacement import replace

EXCLUDE_VARIABLE = "VOLCANO_ELASTIC_EXCLUDE_SECONDS"
EXCLUDE_SECONDS = 1800.0
HOPELESS_SECONDS = 60.0
"""For which too few others have been there: a node that may be broken beats none."""


def exclude_seconds(environment: Mapping[str, str]) -> float:
    """Return how long a node is left out. Raises ValueError for what is no time."""
    text = environment.get(EXCLUDE_VARIABLE, "")
    try:
        seconds = float(text) if text else EXCLUDE_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ValueError(f"{EXCLUDE_VARIABLE}: expected seconds, found {text!r}; fix or unset it")
    return seconds


def lift(draft: Draft) -> None:
    """Lets nodes into rounds again whose time is over, all of them where the others have been too
    few for long. They are checked first, as suspects."""
    state, now = draft.state, draft.now
    if not state.excluded:
        return
    since = (state.short_since if state.short_since is not None else now) if _short(draft) else None
    over = since is not None and now >= since + HOPELESS_SECONDS
    ended = {
        node
        for node in state.excluded
        if over or now >= state.excluded_at.get(node, now) + state.settings.exclude_seconds
    }
    if not ended:
        if since != state.short_since:
            draft.state = replace(state, short_since=since)
        return
    suspects = ended if state.settings.recheck_seconds else set()
    draft.state = replace(
        state,
        excluded={node: why for node, why in state.excluded.items() if node not in ended},
        excluded_at={n: at for n, at in state.excluded_at.items() if n not in ended},
        suspects=state.suspects | suspects,
        short_since=None,
    )


def _short(draft: Draft) -> bool:
    """Return whether those who wait would be enough with those who are left out, and only so."""
    state = draft.state
    if state.phase is not Phase.FORMING or state.settings.size(draft.count_waiting()):
        return False
    return state.settings.size(state.agents.count(Trait.WAITING)) > 0
