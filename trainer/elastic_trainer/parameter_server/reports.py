"""Reports: what a server says of itself to the first one, as data and as messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from elastic_trainer.parameter_server.load import read_load
from elastic_trainer.parameter_server.placement import Kept, Server
from elastic_trainer.parameter_server.wire import pack, unpack
from elastic_trainer.proto import parameter_server_pb2 as messages


def write_report(server: Server, *, version: int, load: bool) -> messages.ServerReport:
    """Return what a server says, as it is told.

    Args:
        version: of the owners that it heard of last.
        load: whether its load is told, too.
    """
    return messages.ServerReport(
        address=server.address,
        life=server.life,
        epoch=server.epoch,
        version=version,
        held=server.held.tobytes(),
        giving_to=server.giving_to,
        giving=server.giving,
        leaving=server.leaving,
        copies=[copy_message(one) for one in server.copies],
        turns=pack(server.turns),
        uncopied=pack(server.uncopied),
        expects_from=sorted(server.expects_from),
        load=server.load.as_text() if load and server.load is not None else "",
        bucket_rows=server.rates.tobytes() if load and server.rates is not None else b"",
    )


def read_report(request: messages.ServerReport) -> Server:
    """Return what was told just now. Raises ValueError where that is no report."""
    return Server(
        request.address,
        request.life,
        np.frombuffer(request.held, dtype=np.int8),
        time.monotonic(),
        request.giving,
        request.giving_to,
        request.leaving,
        request.epoch,
        tuple(read_copies(request.copies)),
        read_load(request.load) if request.load else None,
        np.frombuffer(request.bucket_rows) if request.load else None,
        unpack(request.turns),
        unpack(request.uncopied),
        frozenset(request.expects_from),
    )


def copy_message(kept: Kept) -> messages.Copy:
    """Return it as it is told."""
    return messages.Copy(
        life=kept.life, buckets=pack(kept.buckets), turns=pack(kept.turns), given=kept.given
    )


def read_copies(told: Iterable[Any]) -> list[Kept]:
    return [Kept(one.life, unpack(one.buckets), unpack(one.turns), one.given) for one in told]
