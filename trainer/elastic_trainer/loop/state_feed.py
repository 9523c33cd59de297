"""StateFeed: an ElasticLoop's newcomers follow the state of those that train, before they join."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from elastic_trainer.checkpoint.model_state import DIGESTS_VARIABLE, ModelState
from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.checkpoint.state_value import from_plain, to_plain
from elastic_trainer.feed.feeder import Feeder, Job
from elastic_trainer.feed.follower import Follower
from elastic_trainer.feed.following import count_missing
from elastic_trainer.feed.relay import Relay
from elastic_trainer.link.worker_link import SOCKET_VARIABLE, LinkError, WorkerLink
from elastic_trainer.protocol.auth import TOKEN_VARIABLE, is_loopback
from elastic_trainer.store.byte_limit import read_byte_limit

FOLLOW_VARIABLE = "VOLCANO_ELASTIC_FOLLOW_BYTES"
"""Bytes of a state from which on newcomers follow it before they join; negative: never."""
LEAST_BYTES = 32 << 20
"""Least bytes of a state to follow: others wait for less than is worth it."""
POD_IP_VARIABLE = "VOLCANO_ELASTIC_POD_IP"
TRAINING = "training"
"""Key of a state, as it is fed: which training it is of."""
FEED_SUFFIX = "-feed"
LOOK_SECONDS = 0.005
"""Between looks at whether a newcomer's place has come."""
PLACE_SECONDS = 1.0
"""For so long newcomers that are still on their way are kept, where nobody trains."""
BROKEN_SECONDS = 2.0
"""For so long at most newcomers are waited for where a round broke."""

log = logging.getLogger(__name__)


class StateFeed:
    """Feeds newcomers, or follows as one; methods are for the main thread.

    Args:
        link: to the agent.
        state: returns the loop's.
        apply: applies a step, as the loop does, once its gradients are there.
        training: says which one this process takes part in; empty where that isn't known.
        prepare: called once a newcomer has a state of the size of all that follow, beside which it
            has time.
        nodes: returns how many are in the round.
        possible: whether a step can be made again of its gradients at all.
    """

    def __init__(
        self,
        link: WorkerLink,
        state: Callable[[], ModelState],
        apply: Callable[[], None],
        training: Callable[[], str],
        prepare: Callable[[], None] = lambda: None,
        *,
        possible: bool,
        nodes: Callable[[], int] = lambda: 1,
    ) -> None:
        self._link, self._told_state, self._apply = link, state, apply
        self._nodes = nodes
        self._job = Job(nodes=0, over=lambda: link.over)
        """The job as the last round began."""
        self._missing = 0
        """Nodes that were lost and are not back."""
        self._stood = False
        """The last round ended at a fence."""
        self._training, self._prepare = training, prepare
        least = read_byte_limit(os.environ, FOLLOW_VARIABLE, LEAST_BYTES)
        digests = os.environ.get(DIGESTS_VARIABLE) != "0"
        self._possible = possible and link.agent and digests and least >= 0
        self._least = least
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        self._feeder: Feeder | None = None
        self._follower: Follower | None = None
        self._synced: Identity = NOTHING
        """The state that guests were brought to last."""
        self._sending_away: threading.Timer | None = None

    @property
    def _state(self) -> ModelState:
        return self._told_state()

    # ---- a member's

    def serve(self) -> int:
        """Return the port where newcomers may follow from now on; 0: nowhere."""
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        if self._feeder is None and self._possible and first:
            host = os.environ.get(POD_IP_VARIABLE) or "127.0.0.1"
            try:
                if self._token or is_loopback(host):
                    self._feeder = Feeder(host, self._token, self._least, self._link.transferred)
            except OSError as error:
                log.warning("newcomers can't follow the state: %s can't be served: %s", host, error)
        return self._feeder.port if self._feeder is not None else 0

    def passed(self, identity: Identity) -> None:
        """Between two steps."""
        if self._feeder is None:
            return
        self._feeder.stepped()
        if self._feeder.guests:
            size = sum(one.nbytes for one in self._trained())
            self._attempt(lambda feeder: feeder.passed(self._take, identity, size, self._job))

    def apply(self, identity: Identity) -> None:
        """Before a step is applied that leads to this state."""
        if self._feeder is not None and self._feeder.guests:
            self._attempt(lambda feeder: feeder.apply(self._change, identity))

    def sync(self, identity: Identity, *, broken: bool) -> None:
        """Compares states as the round ends."""
        self._stood = self._stood or not broken
        feeder = self._feeder
        if feeder is None:
            return
        if feeder.guests:
            if identity not in (NOTHING, self._synced):
                self._synced = identity
                seconds = BROKEN_SECONDS if broken else float("inf")
                self._attempt(lambda feeder: feeder.sync(self._take, identity, seconds))
            feeder.wait_for_copy()  # the next round may bring another state
        # Newcomers that were told of this process before may come only now.
        if self._sending_away is None:
            timer = threading.Timer(PLACE_SECONDS, feeder.send_unready_away)
            timer.daemon = True
            self._sending_away = timer
            timer.start()

    def placed(self) -> None:
        """A place has come: others train soon."""
        if self._sending_away is not None:
            self._sending_away.cancel()
            self._sending_away = None
        if self._feeder is not None:
            self._feeder.welcome()

    def go_on_from(self, identity: Identity) -> None:
        """The round begins with that state."""
        self._follower = None
        nodes = self._nodes()
        self._missing = count_missing(self._missing, self._job.nodes, nodes, stood=self._stood)
        self._job = replace(self._job, nodes=nodes, missed=self._missing > 0)
        self._stood = False
        if self._feeder is not None and self._feeder.guests:
            self._feeder.go_on_from(identity)

    def close(self) -> None:
        """The state may be changed by others from now on."""
        self.placed()
        feeder, self._feeder = self._feeder, None
        if feeder is not None:
            feeder.close()

    def _attempt(self, feed: Callable[[Feeder], None]) -> None:
        """Nobody's training ends because a newcomer can't be helped."""
        assert self._feeder is not None
        try:
            feed(self._feeder)
        except Exception as error:  # gradients that aren't dense, no memory (torch's RuntimeError)
            log.warning("newcomers can't follow this training: %s", error)
            self._feeder.wait_for_copy()
            self._feeder.send_away()
            self._possible = False

    def _take(self) -> dict[str, Any]:
        return {**self._state.take(), TRAINING: self._training()}

    def _change(self) -> dict[str, Any]:
        """Return what a step applies, and is applied by."""
        return {
            "gradients": [one.grad for one in self._trained()],
            "groups": [
                [
                    {key: to_plain(value) for key, value in group.items() if key != "params"}
                    for group in optimizer.param_groups
                ]
                for optimizer in self._optimizers()
            ],
            "cursor": self._state.data.state_dict(),
        }

    def _optimizers(self) -> Sequence[torch.optim.Optimizer]:
        others = self._state.extra.values()
        return [
            self._state.optimizer,
            *(one for one in others if isinstance(one, torch.optim.Optimizer)),
        ]

    def _trained(self) -> list[torch.nn.Parameter]:
        found = {
            id(parameter): parameter
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return list(found.values())

    # ---- a newcomer's

    @property
    def spoiled(self) -> bool:
        """Return whether the state isn't the initial one, and perhaps not one that anybody made."""
        return self._follower is not None and self._follower.touched

    def follow(self) -> Callable[[], bool] | None:
        """Before a newcomer asks for its first place: follow who trains, up to the present step;
        return what it is to do while it waits for that place."""
        if self._link.round or not self._possible or self._follower is not None:
            return None
        try:
            addresses = self._link.feeders()
        except LinkError:
            return None
        local_rank, size = (
            int(os.environ.get(name, default))
            for name, default in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
        )
        # The agent's socket has a name of its own, which no other node of this machine has.
        place = os.environ.get(SOCKET_VARIABLE, "").removeprefix("@") + FEED_SUFFIX
        relay = None
        if addresses and size > 1 and local_rank == 0:
            try:
                relay = Relay(place, size - 1, self._token)
            except OSError as error:
                log.warning("this node's other newcomers can't follow: %s", error)
        follower = Follower(self._state, self._replay, self._link.transferred, relay)
        if local_rank == 0:
            follower.begin(addresses, self._token)
        elif addresses:
            follower.begin_behind(place, self._token)
        self._follower = follower
        prepared = False
        while not follower.ready:
            follower.follow(1.0)
            if follower.touched and not prepared:
                prepared = True
                self._prepare()
        return lambda: follower.follow(LOOK_SECONDS)

    def settle(self, identity: Identity) -> tuple[Identity, str]:
        """Return which state this process has as it gets its place, and of which training.

        Args:
            identity: of the one that it had.
        """
        self.placed()
        own = self._training()
        if self._follower is None or identity != NOTHING:
            return identity, own
        found = self._follower.settle()
        told = str(self._follower.told.get(TRAINING, ""))
        if found == NOTHING or not told or own not in ("", told):  # another folder: it is refused
            return NOTHING, own
        log.info("this newcomer has followed the others up to step %d", found[1])
        return found, told

    def _replay(self, step: Mapping[str, Any]) -> None:
        trained, optimizers = self._trained(), self._optimizers()
        for parameter, gradient in zip(trained, step["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        memory: dict[Any, torch.Tensor] = {}
        for optimizer, groups in zip(optimizers, step["groups"], strict=True):
            for group, told in zip(optimizer.param_groups, groups, strict=True):
                for key, value in told.items():
                    if not isinstance(value, torch.Tensor):
                        group[key] = from_plain(value, memory)
                    elif isinstance(group.get(key), torch.Tensor):
                        group[key].copy_(value)
        self._state.data.load_state_dict(step["cursor"])
        for part in self._state.extra.values():
            if isinstance(part, GradScaler) and part.is_enabled() and trained:
                part.scale(torch.zeros((), device=trained[0].device))  # makes its tensors
        self._apply()
        for parameter in trained:
            parameter.grad = None
