"""RoundMember: this process's way into a round's process group, and out of it."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    TCPStore,
    default_pg_timeout,
    distributed_c10d,
)
from torch.nn.parallel import DistributedDataParallel

from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.device_collectives import DeviceCollectives, GlooCollectives
from elastic_trainer.loop.making import forget_world, warm_up_sharded
from elastic_trainer.loop.place import set_environment
from elastic_trainer.ranks.connection import Address, Connections
from elastic_trainer.ranks.gathering import gather_objects
from elastic_trainer.ranks.gloo_wait import Wait, message_waits
from elastic_trainer.ranks.neighbours import (
    await_all,
    connecting_when_used,
    full_mesh_ranks,
    meet,
    neighbours,
)
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.ranks.reverse_lookup import stop_reverse_lookups
from elastic_trainer.ranks.stream import in_callers_stream
from elastic_trainer.ranks.waiting import main_thread_in, main_thread_leaves, wait_in_round

T = TypeVar("T")

ARRIVE_SECONDS = 1800.0
"""For all of a round's ranks to come to it, as long as torch waits: a script may have more to do on
one node before its loop, where it finds no data, say. A lost rank ends the round before."""
CONNECT_SECONDS = 10.0
"""For ranks that are there to connect."""
PEER_SECONDS = 5.0
"""Patience for one connection in a large world, once all ranks are there. gloo tries five times,
and nobody can break the wait; it is as long where a rank comes late to what is used for the first
time."""
ANSWER_SECONDS = 60.0
"""How long an error waits for the word that its round is over, or stands, where a peer's connection
may have failed. One of them comes sooner, but where a process takes long to end."""
SHUT_AGAIN_SECONDS = 0.01
"""While the main thread is on its way out of a round, it may still be opening connections."""
SHUT_LATE_SECONDS = 0.5
"""So often once it could have connected: it computes, or reads a state, for as long as it takes."""
STUCK_SECONDS = 0.2
"""For so long a wait of gloo that nothing can end is looked at before it is taken for one."""

_GROUP_MAKERS = [
    inspect.unwrap(maker).__code__
    for maker in (distributed_c10d._new_process_group_helper, dist.split_group)
]
"""Where the main thread is while it makes a group, and may wait for a peer's connection."""


class RoundMember:
    """Connects this process to the others of a round, one round after another. Methods are for the
    main thread, but for `break_collectives`."""

    def __init__(self) -> None:
        self.group = ProcessGroup()
        """Rank and world in the present round."""
        self._torch_group: dist.ProcessGroup | None = None
        self._backends: set[Any] = set()
        """The group's, of all devices."""
        self._device: DeviceCollectives = GlooCollectives()
        self._aborts: dict[Connections, Callable[[], None]] = {}
        """By a round's connections: aborts its collectives on the device, as long as they may be.
        Nothing else says which round that is, as the main thread may be on its way to the next."""
        self._aborting = threading.Lock()
        self._connections: Connections | None = None
        self._peers: int | None = None
        """Ranks of a large world that this one is connected to at least; None: to all others."""
        self._sharded = False
        self._excepthooks = sys.excepthook, sys.excepthook
        """Before and after torch's, which begins lines with the rank, was put before it."""
        self._store: TCPStore | None = None
        self._stuck: Callable[[], None] = lambda: None
        """Says that this process can't leave its round."""
        self._left_waits: frozenset[Wait] = frozenset()
        """Waits of rounds before, in threads that were left behind."""

    def connect(
        self,
        link: WorkerLink,
        say: Callable[[], T],
        *,
        again: bool,
        meanwhile: Callable[[], bool] | None = None,
        device: DeviceCollectives | None = None,
        sharded: bool = False,
    ) -> list[T]:
        """Join the next round's group, or stay in this one; without an agent, torchrun's or none.
        Return what every rank says there, by rank.

        Args:
            link: says the place.
            say: called once this rank knows its place, to say something that is known at once:
                the others wait for it.
            again: this process has left the round that it was started for.
            meanwhile: called again and again while it waits for its place, until it returns
                False.
            device: the collectives of a round that is yet to be joined; gloo's alone if None.
            sharded: the model will be, so this process needs a group in a world of one, too.

        Raises:
            RuntimeError: not all came, or the round was over before.
        """
        if link.agent and self._torch_group is not None:  # the loop was left, and is entered again
            if not link.over:
                return self.group.gather(say())
            self.disconnect(link)
            again = True
        self._sharded = sharded
        self._stuck = link.stuck
        if self._torch_group is None:
            self._device = device or GlooCollectives()
        place = self._next_place(link, again, meanwhile)
        said = None
        if place is not None:
            said = self._connect(link, place, say())
        elif dist.is_torchelastic_launched() and not dist.is_initialized():
            dist.init_process_group(self._device.backends)
        elif sharded and not dist.is_initialized():
            dist.init_process_group(self._device.backends, store=HashStore(), rank=0, world_size=1)
        self._torch_group = dist.group.WORLD if dist.is_initialized() else None
        self._backends = _backends(self._torch_group)
        self.group = ProcessGroup.current()
        if place is not None:
            self.group = replace(self.group, over=lambda: link.over)
        return self.group.gather(say()) if said is None else said

    def _connect(self, link: WorkerLink, place: Place, own: T) -> list[T]:
        self._connections = connections = Connections(place.port, place.world)
        self._left_waits = message_waits()
        if link.over:  # said before there was anything to break
            raise RuntimeError("the round was over before this rank was in it")
        set_environment(place)
        stop_reverse_lookups()  # where the process was started cold
        self._store = TCPStore(
            place.address,
            place.port,
            place.world,
            is_master=False,
            timeout=timedelta(seconds=CONNECT_SECONDS),
            wait_for_workers=False,
        )
        large = place.world > full_mesh_ranks(os.environ)
        self._peers = len(neighbours(place.rank, place.world)) if large else None
        await_all(self._store, place.world, timedelta(seconds=ARRIVE_SECONDS))
        if link.over:  # the others came before, and have left
            raise RuntimeError("the round was over before this rank was in it")
        before = sys.excepthook
        with connecting_when_used() if large else contextlib.nullcontext():
            # Who waits for a peer's connection waits at no connection that could be shut down: one
            # that dies just then is noticed by this time only.
            dist.init_process_group(
                self._device.backends,
                store=self._store,
                rank=place.rank,
                world_size=place.world,
                timeout=timedelta(seconds=PEER_SECONDS if large else CONNECT_SECONDS),
                **self._device.options(),
            )
        self._excepthooks = before, sys.excepthook
        # Not as a control message: until the time-out is the usual one those would get a group of
        # their own, whose connections nobody here would know of and could break.
        group = distributed_c10d._get_default_group()
        self._aborts[connections] = partial(self._device.abort, group)
        cpu = group._get_backend(torch.device("cpu"))
        if large:
            cpu._set_default_timeout(timedelta(seconds=CONNECT_SECONDS))
            meet(place.rank, place.world)
        said: list[tuple[set[Address], str, T]]
        said = gather_objects((connections.listeners(), self._device.handle(group), own))
        cpu._set_default_timeout(default_pg_timeout)
        listeners = set().union(*(one for one, _, _ in said))
        connections.seal(listeners, more_come=large, groups_come=self._has_more_groups)
        handles = [handle for _, handle, _ in said]
        connect = partial(self._device.connect, group, place.round, handles)
        if self._device.silent:
            what = "making the device's communicator"
            wait_in_round(in_callers_stream(connect), lambda: link.over, what)
        else:
            connect()
        return [one for _, _, one in said]

    def _next_place(
        self, link: WorkerLink, again: bool, meanwhile: Callable[[], bool] | None
    ) -> Place | None:
        """None where there are no rounds."""
        if not link.agent:
            return None
        if link.round and not again:
            names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
            rank, world, port = (int(os.environ[name]) for name in names)
            return Place(link.round, rank, world, os.environ["MASTER_ADDR"], port)
        if not link.round:
            warm_up(self._device, sharded=self._sharded)
        return link.next_place(meanwhile)

    def disconnect(self, link: WorkerLink) -> None:
        """Leave the round's group, whole or broken; without an agent the group stays."""
        self._torch_group = None
        self._backends = set()
        if self._connections is not None:
            self._connections.forget()
            self._abort(self._connections)  # nobody waits for what is left of a round
        if link.agent and dist.is_initialized():
            # gloo's own thread hears of its end after up to 10 ms: somebody else waits for that.
            group = [distributed_c10d._get_default_group()]
            dist.destroy_process_group()
            threading.Thread(target=group.clear, name="old group").start()
        before, of_round = self._excepthooks
        if sys.excepthook is of_round:
            # else an error's lines begin with the rank in each round so far
            sys.excepthook = before
        # A group is named by how many were made, and ranks find one another by the name; one whose
        # making failed was counted, but can't be destroyed.
        distributed_c10d._world.group_count = 0
        self._store = None

    def collectives(self) -> int:
        """The number of collectives that this process has begun in the round: those of its group,
        and on the device those of a mesh's groups, too."""
        group = self._torch_group
        begun = set() if group is None else {*self._backends, *self._device.backends_of(group)}
        return sum(one._get_sequence_number_for_group() for one in begun)

    def confirm(self) -> None:
        """Return once all ranks' collectives so far are known to have ended well, before the result
        is used; at once where one that didn't would have raised an error.

        Raises:
            RuntimeError: one didn't, on some rank, or a rank is lost.
        """
        if not self._device.silent or self._connections is None or self.group.world == 1:
            return
        broken = torch.zeros(self.group.world, dtype=torch.uint8, device="cpu")
        broken[self.group.rank] = not self._device.ended_well(self._torch_group)
        dist.all_reduce(broken)
        if broken.any():
            ranks = ", ".join(str(rank) for rank in broken.nonzero().flatten().tolist())
            raise RuntimeError(f"collectives did not end well on rank {ranks}")

    def peer_lost(self, link: WorkerLink) -> bool:
        """Asked after an error: whether it came of a lost peer; it is the training's own if not."""
        # A large world's later connections are forgotten once they have failed; and one of another
        # group may fail before it is seen here that the same peer's other one does.
        untold = self._peers is not None or self._has_more_groups()
        if untold or self.forsaken:
            return link.peer_lost(ANSWER_SECONDS, asks=True)
        return link.over

    def _has_more_groups(self) -> bool:
        """Return whether there may be groups beside the round's: the script's own, or a mesh's."""
        return self._sharded or len(distributed_c10d._world.pg_map) > 1 or _makes_group()

    @property
    def silent(self) -> bool:
        """Return whether a collective that a lost peer broke raises no error."""
        return self._device.silent

    @property
    def failed(self) -> bool:
        """Return whether a collective of this round may have failed: a peer's connection has."""
        return self._connections is not None and self._connections.failed()

    @property
    def forsaken(self) -> bool:
        """Return whether a peer's connection has ended, or there never was one to each that there
        is to be one to."""
        connections = self._connections
        peers = self.group.world - 1 if self._peers is None else self._peers
        return connections is None or not connections.intact(peers)

    def break_collectives(self) -> None:
        """In the link's thread: the round is over, whatever the main thread waits for."""
        connections = self._connections
        if connections is not None and connections.shut():
            # As an abort on the device may take long, another thread waits for it.
            threading.Thread(
                target=self._break_until_left, args=(connections,), name="break", daemon=True
            ).start()

    def _break_until_left(self, connections: Connections) -> None:
        connecting = time.monotonic() + 3 * CONNECT_SECONDS
        waits: frozenset[Wait] = frozenset()
        since = making = math.inf
        # Where ranks connect as they need one another, they may still wait for a connection.
        watched = self._peers is None
        while connections.shut():
            self._abort(connections)
            now = time.monotonic()
            making = min(making, now) if _makes_group() else math.inf
            if now - making > STUCK_SECONDS:
                # One that is split off another listens where that does, its numbers after those.
                groups = len(distributed_c10d._world.pg_map) + 1
                connections.end_waits_for_peers(groups, waits=_makes_group)
            if watched:
                ends = not connections.given_up() or main_thread_leaves()
                lasting = frozenset() if ends else message_waits() - self._left_waits
                if not (lasting and lasting <= waits):
                    waits, since = lasting, now
                elif now - since > STUCK_SECONDS:
                    self._stuck()
                    watched = False
            time.sleep(SHUT_AGAIN_SECONDS if now < connecting else SHUT_LATE_SECONDS)

    def _abort(self, connections: Connections) -> None:
        """Abort the collectives on the device of the round with these connections, once: who comes
        later waits for that."""
        with self._aborting:
            abort = self._aborts.pop(connections, None)
            if abort is not None:
                abort()


def _makes_group() -> bool:
    return main_thread_in(_GROUP_MAKERS)


def warm_up(device: DeviceCollectives, *, sharded: bool = False) -> None:
    """Make a group, its first collectives and a first step alone: a newcomer does while the others
    train on, since its first ones take 50 ms longer than later ones, those of a sharded model
    twice that."""
    excepthook = sys.excepthook
    dist.init_process_group(
        device.backends, store=HashStore(), rank=0, world_size=1, **device.options()
    )
    group = distributed_c10d._get_default_group()
    device.connect(group, 0, [device.handle(group)])
    gather_objects(None)
    # On "meta" it draws no numbers, which would change those that the script draws next.
    model = torch.nn.Linear(1, 1, device="meta").to_empty(device="cpu")
    if sharded:
        warm_up_sharded(model)
    else:
        data_parallel(model)(torch.zeros(1, 1, device="cpu")).sum().backward()
    del model
    if sharded:
        forget_world()
    dist.destroy_process_group()
    sys.excepthook = excepthook


def _backends(group: Any) -> set[Any]:
    if group is None:
        return set()
    return {group._get_backend(device) for device in group._device_types}


def data_parallel(model: torch.nn.Module) -> torch.nn.Module:
    """The model in DistributedDataParallel, without its first broadcast: all have the same state
    already."""
    return DistributedDataParallel(model, init_sync=False)
