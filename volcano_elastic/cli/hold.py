"""`volcano-elastic hold` and `resume`: a queue's mode, without an editor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.api.queue_policy import InvalidPolicy, Mode, QueuePolicy, effective, parse
from volcano_elastic.cli.observation import (
    Trouble,
    ask,
    complete_queues,
    json_option,
    kubeconfig_option,
    objects,
    print_json,
)

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.resource import Object

MODE_BEFORE = "policy.volcano-elastic.io/mode-before-hold"
"""Annotation; empty if there was no policy, which `resume` then deletes."""
_HELD = (Mode.HOLD, Mode.HOLD_AND_DRAIN)
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Change:
    """A change to be made to the queue's policy."""

    policy: str
    before: Mode
    mode: Mode
    create: Object | None = None
    patch: Object | None = None
    """Merge patch."""
    delete: str | None = None
    """resourceVersion of what is to go. With none of the three, it is so already."""
    below: tuple[str, ...] = ()
    """Queues whose parent it is: they have policies of their own."""


@click.command()
@click.argument("queue", shell_complete=complete_queues)
@click.option("--drain", is_flag=True, help="Take its jobs back to their minimums, too.")
@kubeconfig_option
@json_option
def hold(queue: str, drain: bool, kubeconfig: str | None, as_json: bool) -> None:
    """No elastic job of the queue changes its size any more, but for minimums that wait.

    Sets the mode of the queue's policy, or makes one if there is none; `resume` restores what it
    was. Queues below it keep modes of their own. Exits 0, also if it is held already; 2 if there
    is no such queue.

    \b
    JSON: queue, policy, before, mode; below: the queues whose parent it is.

    \b
    Examples:
      volcano-elastic hold research
      volcano-elastic hold research --drain      before the nodes are serviced
    """
    mode = Mode.HOLD_AND_DRAIN if drain else Mode.HOLD
    _say(queue, ask(kubeconfig, lambda client: _carry_out(client, queue, mode)), as_json)


@click.command()
@click.argument("queue", shell_complete=complete_queues)
@kubeconfig_option
@json_option
def resume(queue: str, kubeconfig: str | None, as_json: bool) -> None:
    """Ends a `hold`: the queue's policy gets back the mode it had before, and one that `hold` made
    goes, unless it has been edited.

    Exits 0, also if it isn't held; 2 if there is no such queue.

    \b
    JSON: as that of hold.

    \b
    Example:
      volcano-elastic resume research
    """
    _say(queue, ask(kubeconfig, lambda client: _carry_out(client, queue, None)), as_json)


def decide(queue: str, policies: Sequence[Object], mode: Mode | None) -> Change:
    """Return the change that takes the queue to `mode`; None: back to its mode before `hold`."""
    found, policy = _in_force(queue, policies)
    if found is None:
        if mode is None:
            return Change("", policy.mode, policy.mode)
        names = {obj["metadata"]["name"] for obj in policies}
        # Those are other queues' policies.
        name = next(name for name in _names(queue) if name not in names)
        return Change(name, policy.mode, mode, create=_new(name, queue, mode))
    if mode is None and policy.mode not in _HELD:
        return Change(policy.name, policy.mode, policy.mode)
    before = (found["metadata"].get("annotations") or {}).get(MODE_BEFORE)
    version = found["metadata"]["resourceVersion"]
    if mode is None:
        mode, remember = _mode(before), None
        made = parse(_new(policy.name, queue, policy.mode))
        if before == "" and policy == replace(made, created=policy.created):
            return Change(policy.name, policy.mode, mode, delete=version)
    else:
        # Held already, perhaps by an editor: what it was before that nobody knows.
        remember = before if policy.mode in _HELD else str(policy.mode)
    if mode is policy.mode:
        return Change(policy.name, policy.mode, mode)
    meta = {"resourceVersion": version, "annotations": {MODE_BEFORE: remember}}
    patch = {"metadata": meta, "spec": {"mode": str(mode)}}
    return Change(policy.name, policy.mode, mode, patch=patch)


def _names(queue: str) -> Iterator[str]:
    yield queue
    yield f"{queue}-hold"
    yield from (f"{queue}-hold-{number}" for number in count(2))


def _in_force(queue: str, policies: Sequence[Object]) -> tuple[Object | None, QueuePolicy]:
    parsed: dict[str, QueuePolicy] = {}
    for obj in policies:
        try:
            parsed[obj["metadata"]["name"]] = parse(obj)
        except InvalidPolicy as error:
            if (obj.get("spec") or {}).get("queue") == queue:
                raise Trouble(
                    f"QueuePolicy {obj['metadata']['name']} is for {queue} and cannot be applied: "
                    f"{error}; repair it first"
                ) from error
    policy = effective(parsed.values()).get(queue)
    if policy is None:
        return None, QueuePolicy(queue)
    return next(obj for obj in policies if obj["metadata"]["name"] == policy.name), policy


def _mode(before: str | None) -> Mode:
    """Return the mode that `hold` remembered; Active if the queue was held otherwise."""
    try:
        return Mode(before or Mode.ACTIVE)
    except ValueError:
        return Mode.ACTIVE


def _new(name: str, queue: str, mode: Mode) -> Object:
    from volcano_elastic.kube.resource import QUEUEPOLICIES

    return {
        "apiVersion": QUEUEPOLICIES.api_version,
        "kind": QUEUEPOLICIES.kind,
        "metadata": {"name": name, "annotations": {MODE_BEFORE: ""}},
        "spec": {"queue": queue, "mode": str(mode)},
    }


async def _carry_out(client: Client, queue: str, mode: Mode | None) -> Change:
    from volcano_elastic.kube.client import Conflict, NotFound
    from volcano_elastic.kube.resource import QUEUEPOLICIES, QUEUES

    parents = {
        obj["metadata"]["name"]: (obj.get("spec") or {}).get("parent") or "root"
        for obj in await objects(client, QUEUES)
    }
    if queue not in parents:
        names = ", ".join(sorted(parents)) or "none"
        raise Trouble(f"there is no queue {queue}; there are: {names}")
    below = tuple(sorted(name for name, parent in parents.items() if parent == queue != name))
    for _ in range(_ATTEMPTS):
        change = decide(queue, (await client.list(QUEUEPOLICIES))["items"], mode)
        try:
            if change.create is not None:
                await client.create(QUEUEPOLICIES, change.create)
            elif change.patch is not None:
                await client.patch(QUEUEPOLICIES, change.policy, None, change.patch)
            elif change.delete is not None:
                await client.delete(QUEUEPOLICIES, change.policy, resource_version=change.delete)
        except (Conflict, NotFound):
            # Somebody else changed it, the operator its status: look again.
            await asyncio.sleep(0.05)
            continue
        return replace(change, below=below)
    raise Trouble(f"the policy of queue {queue} is being changed by somebody else; try again")


def _say(queue: str, change: Change, as_json: bool) -> None:
    if as_json:
        answer: dict[str, Any] = {
            "queue": queue,
            "policy": change.policy or None,
            "before": str(change.before),
            "mode": str(change.mode),
            "below": list(change.below),
        }
        print_json(answer)
        return
    gone = " deleted, which hold had made" if change.delete else ""
    policy = f" (QueuePolicy {change.policy}{gone})" if change.policy else ""
    if change.before is change.mode:
        click.echo(f"queue {queue} is in mode {change.mode} already{policy}")
    else:
        click.echo(f"queue {queue}: {change.before} -> {change.mode}{policy}")
    if change.below:
        below = ", ".join(change.below)
        click.echo(f"Note: queues below it keep modes of their own: {below}", err=True)
