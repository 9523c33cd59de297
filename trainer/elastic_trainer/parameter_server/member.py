"""Member: a server among those of its job: who it is, what it holds, and what it was told last."""

from __future__ import annotations

import asyncio
import time
import uuid

from elastic_trainer.parameter_server.load import Meter
from elastic_trainer.parameter_server.machine import usage
from elastic_trainer.parameter_server.service import Service
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.stubs import Stubs
from elastic_trainer.proto import parameter_server_pb2 as messages


class Member:
    """All on the server's event loop.

    Args:
        address: where others reach this server.
        token: the job's.
        leaves_after: seconds until it says that it is to leave.
    """

    def __init__(self, address: str, token: str = "", leaves_after: float = 0.0) -> None:
        self.address, self.life = address, uuid.uuid4().hex[:16]
        self.stubs = Stubs(token)
        self.meter = Meter(time.monotonic(), usage())
        self.service = Service(self.meter, lambda: self.share.epoch)
        self.share = Share(self.service.holder)
        self.owners = messages.Owners()
        """The first server's last word."""
        self.news = asyncio.Event()
        """There is something that the first server is to hear at once."""
        self.leaving, self._says_so, self._leaves_after = False, 0.0, leaves_after
        self.ended = asyncio.Event()

    def hold(self, share: Share) -> None:
        """Hold and serve this share in place of what was held."""
        self.share, self.service.holder = share, share.holder

    @property
    def may_serve(self) -> bool:
        return time.monotonic() < self.service.leased_until

    def is_meant(self, life: str, epoch: str) -> bool:
        """Tell whether a request for this life, about rows of this epoch, is for this server."""
        return life == self.life and self.share.epoch in ("", epoch)

    def leave(self) -> None:
        """Give everything away, then end."""
        if not self.leaving:
            self.leaving, self._says_so = True, time.monotonic() + self._leaves_after

    @property
    def says_it_leaves(self) -> bool:
        return self.leaving and time.monotonic() >= self._says_so

    def look_after_itself(self) -> None:
        """Measure its load, and forget workers that have long been silent."""
        now, holder = time.monotonic(), self.share.holder
        self.meter.load(now, usage(), holder.tables, holder.steps)
        holder.forget_silent(now)
