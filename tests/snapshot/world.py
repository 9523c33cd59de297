"""A snapshot that holds something of all, and its file edited by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.queue_policy.world import NOW, gpus, job, node, pods, world
from volcano_elastic.api.queue_policy import Grow, Headroom, QueuePolicy
from volcano_elastic.snapshot.codec import Observation, encode
from volcano_elastic.snapshot.snapshot import Gang, Memory, Queue, SetAside, Unplaced

A = job("a", 1, 4, 4, speeds={1: 30.0, 4: 99.0}, tolerations=({"tolerationSeconds": -1},))
RULES = QueuePolicy(
    "default", name="p", borrowing_limit=1000, headroom=Headroom(amount=0), grow=Grow(max_step=2)
)
RICH = replace(
    world(
        [node("n", 4, labels={"z": "1"}, taints=(("k", "v", "PreferNoSchedule"),))],
        [A, job("b", 2, 2, priority=-1, master_requests=gpus(0, 1))],
        pods(A, "n", "n", "n", "n"),
        queues=(Queue("default", deserved=gpus(2), parent="up"), Queue("up", capability=gpus(9))),
    ),
    policies=(RULES,),
    gangs=(Gang("ns/g", "default", 2, NOW, pod_requests=gpus(1)),),
    memory=Memory({"ns/b": NOW}, {"ns/b": SetAside(NOW, 1)}, {}, {"ns/a": Unplaced(NOW, 1)}),
)
"""Something of all that a snapshot may hold."""


def edited(place: tuple[str | int, ...], value: object) -> str:
    """Return its file with another value at a place."""
    document = json.loads(encode(Observation(NOW, RICH)))
    at: Any = document
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return json.dumps(document)
