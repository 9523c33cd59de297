"""What each queue holds, may use and owes, for its policy's status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from volcano_elastic.queue_policy.decision import QueueFigures
from volcano_elastic.queue_policy.inventory import Inventory
from volcano_elastic.queue_policy.room import Room


def figures(inventory: Inventory) -> dict[str, QueueFigures]:
    """By queue, in its policy's resource, before the plan changes anything; nothing owed yet."""
    names, queues = inventory.dimensions.names, inventory.queues
    idle = inventory.nodes.free(Room.IDLE)
    surplus: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    # What a queue holds is its children's too, so these are as well.
    for name, count in inventory.jobs_in.items():
        for queue in queues.chain(name) or (name,):
            jobs[queue] += count
            if inventory.policy(queue).resource == inventory.policy(name).resource:
                surplus[queue] += inventory.surplus_in[name]
    found: dict[str, QueueFigures] = {}
    for name, used in queues.used.items():
        resource, problem = inventory.policy(name).resource, queues.problems.get(name, "")
        if resource not in names:
            found[name] = QueueFigures(resource, 0, 0, 0, 0, 0, jobs[name], problem)
            continue
        i = names.index(resource)
        elastic = min(used[i], surplus[name])
        found[name] = QueueFigures(
            resource=resource,
            free=queues.free(name, i, idle[i]),
            guaranteed=used[i] - elastic,
            surplus=elastic,
            borrowed=queues.borrowed(name, i),
            owed_to_minimums=0,
            jobs=jobs[name],
            problem=problem,
        )
    return found


def with_owed(
    before: Mapping[str, QueueFigures],
    requests: Iterable[tuple[str, Sequence[int]]],
    inventory: Inventory,
) -> dict[str, QueueFigures]:
    """`requests`: what claims of which queue ask for; its ancestors owe it too."""
    names = inventory.dimensions.names
    owed: dict[str, int] = {}
    for queue, request in requests:
        for name in inventory.queues.chain(queue):
            resource = before[name].resource
            if resource in names:
                owed[name] = owed.get(name, 0) + request[names.index(resource)]
    return {
        name: replace(found, owed_to_minimums=owed[name]) if name in owed else found
        for name, found in before.items()
    }
