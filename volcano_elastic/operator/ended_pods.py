"""Pods of jobs that have ended, or were given up, as those who wait for their agents are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.pytorchjob.label import REPLICA_INDEX

MOST = 16
"""That are told, the newest."""

_Place = tuple[str, int]
"""A pod's address and index. On hostNetwork pods of one node have one address; two of one index are
there one after another."""


class EndedPods:
    """Keeps the places of pods that have ended since this operator runs, by their job's key."""

    def __init__(self) -> None:
        self._places: dict[str, dict[_Place, None]] = {}
        """The newest last."""

    def end(self, key: str, pod: Object) -> bool:
        """A job's pod is no longer there. Returns whether it had an address."""
        place = _place(pod)
        if place is not None:
            self._places.setdefault(key, {})[place] = None
        return place is not None

    def begin(self, key: str, pod: Object) -> None:
        """A job's pod is there."""
        place = _place(pod)
        if place is not None:
            self._places.get(key, {}).pop(place, None)

    def forget(self, key: str) -> None:
        self._places.pop(key, None)

    def report(self, key: str, there: Iterable[Object]) -> Mapping[str, Sequence[Any]] | None:
        """Return what coordinator and agents are told; None if there is nothing to tell.

        Args:
            there: the job's pods that are there. Theirs are not told to agents that know pods by
                their addresses alone, as those of older trainers do.
        """
        known = {place for pod in there if (place := _place(pod)) is not None}
        shared = {address for address, _ in known}
        ended = [one for one in self._places.get(key, ()) if one not in known][-MOST:]
        if not ended:
            return None
        addresses = dict.fromkeys(address for address, _ in ended if address not in shared)
        pods = [{"address": address, "index": index} for address, index in ended]
        return {"addresses": list(addresses), "pods": pods}


def _place(pod: Object) -> _Place | None:
    address = (pod.get("status") or {}).get("podIP")
    index = (pod["metadata"].get("labels") or {}).get(REPLICA_INDEX, "")
    return (address, int(index)) if address and index.isdecimal() else None
