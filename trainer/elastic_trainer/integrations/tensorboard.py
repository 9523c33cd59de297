"""A job's goodput, speed and embedding tables as TensorBoard's scalars, from its coordinator."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol

from elastic_trainer.protocol.auth import HEADER, TOKEN_VARIABLE
from elastic_trainer.succession.peers import PEERS_VARIABLE, read_peers
from elastic_trainer.succession.search import find_coordinator

ENDPOINT_VARIABLE = "PET_RDZV_ENDPOINT"
"""HOST:PORT of the rendezvous, which the operator gives each pod."""
JOB_VARIABLE = "VOLCANO_ELASTIC_JOB"
SECONDS = 2.0
"""For the coordinator's answer, which training doesn't depend on."""
ANSWER_BYTES = 16 << 20
TABLE_FIGURES = ("rows", "bytes", "admitted", "evicted", "updated_per_second", "holders", "skew")


class ScalarWriter(Protocol):
    """torch.utils.tensorboard's SummaryWriter is one; it needs the package `tensorboard`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any: ...


def scalars(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a coordinator's /status: `goodput/USE`, the part of all time that was
    for it, so that all of them add up to 1; `goodput/hours`, that time; the speeds; and
    `tables/NAME/rows` and so on of each embedding table that workers hold."""
    goodput = told.get("goodput") or {}
    spent = goodput.get("milliseconds") or {}
    total = sum(spent.values())
    found = {f"goodput/{use}": value / total for use, value in spent.items() if total}
    found["goodput/hours"] = total / 3_600_000
    world = told.get("world") or 0
    found["speed/nodes"] = float(world)
    found["speed/steps_per_second"] = float(told.get("steps_per_second") or 0.0)
    samples = (told.get("speeds") or {}).get(str(world))
    if samples is not None:
        found["speed/samples_per_second"] = float(samples)
    for name, table in (told.get("tables") or {}).items():
        for figure in TABLE_FIGURES:
            found[f"tables/{name}/{figure}"] = float(table[figure])
        found[f"tables/{name}/hottest_share"] = float((table["hot_share"] or (0.0,))[0])
    return found


class GoodputWriter:
    """Writes what the whole job's time was used for; on one rank, now and then:

        board = GoodputWriter(SummaryWriter("runs")) if loop.rank == 0 else None
        ...
        if board is not None and loop.stepped and loop.steps % 1000 == 0:
            board.write(loop.steps)

    Args:
        writer: takes the scalars.
        endpoint: HOST:PORT of the rendezvous; from PET_RDZV_ENDPOINT if None.
        token: the job's; from VOLCANO_ELASTIC_TOKEN if None.

    Raises:
        ValueError: no endpoint is known, or what is given is none.
    """

    def __init__(
        self, writer: ScalarWriter, *, endpoint: str | None = None, token: str | None = None
    ) -> None:
        given = os.environ.get(ENDPOINT_VARIABLE, "") if endpoint is None else endpoint
        host, _, port = given.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(
                f"endpoint is {given!r}: expected HOST:PORT of the job's rendezvous, which "
                f"{ENDPOINT_VARIABLE} says in its pods"
            )
        self._writer = writer
        self._endpoint = host.strip("[]"), int(port)
        self._peers = read_peers(os.environ.get(PEERS_VARIABLE, ""), int(port))
        self._job = os.environ.get(JOB_VARIABLE, "")
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token

    def write(self, step: int) -> bool:
        """Write the job's scalars at `step`; return False where its coordinator gives no answer.
        That is waited for a few seconds at most."""
        told = _status(*self._endpoint, self._token)
        if told is None:
            moved = find_coordinator(self._peers, self._job, self._token)
            if moved is None:
                return False
            host, _, port = moved.rpartition(":")
            self._endpoint = host.strip("[]"), int(port)
            told = _status(*self._endpoint, self._token)
        if told is None:
            return False
        for tag, value in scalars(told).items():
            self._writer.add_scalar(tag, value, step)
        return True


def _status(host: str, port: int, token: str) -> Mapping[str, Any] | None:
    connection = http.client.HTTPConnection(host, port + 1, timeout=SECONDS)
    try:
        connection.request("GET", "/status", headers={HEADER: token})
        answer = connection.getresponse()
        told = json.loads(answer.read(ANSWER_BYTES)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return told if isinstance(told, dict) else None
