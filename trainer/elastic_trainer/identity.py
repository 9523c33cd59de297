"""Reads an agent's identity and its coordinator's address, once, from torchrun's parameters."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from elastic_trainer.protocol.auth import TOKEN_VARIABLE
from elastic_trainer.protocol.keepalive import heartbeat_timeout
from elastic_trainer.protocol.message import COMMITS_VARIABLE, NewestCommit, commits_before
from elastic_trainer.succession.peers import PEERS_VARIABLE, Place, read_peers

POD_INDEX_VARIABLE = "VOLCANO_ELASTIC_POD_INDEX"
POD_IP_VARIABLE = "VOLCANO_ELASTIC_POD_IP"
POD_UID_VARIABLE = "VOLCANO_ELASTIC_POD_UID"
JOB_VARIABLE = "VOLCANO_ELASTIC_JOB"
NODE_UNIT_VARIABLE = "VOLCANO_ELASTIC_NODE_UNIT"
COORDINATOR_VARIABLE = "VOLCANO_ELASTIC_COORDINATOR"
"""`dedicated`: it has a pod of its own, so no agent starts one."""
METRICS_VARIABLE = "VOLCANO_ELASTIC_METRICS_ADDRESS"
"""PORT (on loopback) or HOST:PORT where the agent serves its workers' metrics; unset: nowhere."""

GRACE_VARIABLE = "VOLCANO_ELASTIC_GRACE_SECONDS"
"""From SIGTERM to SIGKILL: the pod's terminationGracePeriodSeconds."""
GRACE_SECONDS = 30.0
"""Where it isn't set: Kubernetes' own."""
PATIENCE_VARIABLE = "VOLCANO_ELASTIC_PATIENCE_SECONDS"
"""The least that a worker may take to come out of a round that is over; four of its steps where
they are longer."""
PATIENCE_SECONDS = 30.0
NODE_VARIABLE = "VOLCANO_ELASTIC_NODE_NAME"
"""The machine that this pod runs on; unset: the host's name."""
SUCCESSION_VARIABLE = "VOLCANO_ELASTIC_SUCCESSION"
"""0: a coordinator whose agent is lost waits for worker 0; otherwise another agent takes its place.
Agents that are told 0 take part all the same while others of the job do."""

DEFAULT_PORT = 23456
UNNAMED = "none"
"""The job where there is neither JOB_VARIABLE nor --rdzv-id: what torchrun says then."""

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Identity:
    agent: str
    pod_index: int
    """-1: the coordinator hands one out."""
    address: str
    """Where this node's workers can be reached; empty: found on connecting."""
    host: str
    port: int
    job: str
    min_nodes: int
    max_nodes: int
    node_unit: int
    heartbeat_timeout: float
    pod: str = ""
    """Stays the same when this container is restarted."""
    in_pod: bool = False
    processes: int = 0
    """Workers of this node; 0: not known."""
    dedicated: bool = False
    """The coordinator has a pod of its own."""
    token: str = field(default="", repr=False)
    metrics: tuple[str, int] | None = None
    """Where to serve the workers' metrics."""
    grace: float = GRACE_SECONDS
    """Seconds from SIGTERM to SIGKILL."""
    patience: float = PATIENCE_SECONDS
    """Seconds, at least, for a worker to come out of a round that is over."""
    node: str = ""
    """The machine it runs on."""
    elects: bool = True
    """It is to take part in elections of the coordinator's host."""
    peers: tuple[Place, ...] = ()
    """Where some of the job's agents say who hosts the coordinator."""
    commits: tuple[NewestCommit, ...] = ()
    """Commits of this job, heard of before this pod was made."""
    program: str = ""
    """Script and arguments, by which jobs that nobody named are told apart; empty: not known, or
    the job has a name."""

    @classmethod
    def read(
        cls,
        endpoint: str,
        min_nodes: int,
        max_nodes: int,
        run_id: str,
        local_address: str | None,
        node_unit: int | None,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        processes: int = 0,
        program: str = "",
    ) -> Identity:
        """Raises ValueError if the endpoint or a variable can't be read.

        Args:
            processes: workers of this node; 0: not known.
            program: that torchrun starts; empty: not known.
        """
        host, port = parse_endpoint(endpoint)
        pod_index = _pod_index(environment, arguments)
        job = environment.get(JOB_VARIABLE) or run_id
        return cls(
            agent=uuid.uuid4().hex[:16],
            pod_index=pod_index,
            address=environment.get(POD_IP_VARIABLE) or local_address or "",
            host=host,
            port=port,
            job=job,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            node_unit=node_unit or _number(environment, NODE_UNIT_VARIABLE, int, 1),
            heartbeat_timeout=heartbeat_timeout(environment),
            pod=f"{environment.get(POD_UID_VARIABLE) or socket.gethostname()}/{pod_index}",
            in_pod=bool(environment.get(POD_UID_VARIABLE)),
            processes=processes,
            dedicated=environment.get(COORDINATOR_VARIABLE, "") == "dedicated",
            token=environment.get(TOKEN_VARIABLE, ""),
            metrics=_metrics_address(environment.get(METRICS_VARIABLE, "")),
            grace=_seconds(environment, GRACE_VARIABLE, GRACE_SECONDS),
            patience=_seconds(environment, PATIENCE_VARIABLE, PATIENCE_SECONDS),
            node=environment.get(NODE_VARIABLE) or socket.gethostname(),
            elects=_switch(environment, SUCCESSION_VARIABLE),
            peers=read_peers(environment.get(PEERS_VARIABLE, ""), port),
            commits=commits_before(environment.get(COMMITS_VARIABLE, "")),
            program=program if job == UNNAMED else "",
        )

    @property
    def may_host(self) -> bool:
        """True if the coordinator runs in this agent's pod.

        Without pod indexes: any agent on the endpoint's machine; the first to bind has it.
        """
        if self.dedicated:
            return False
        return self.pod_index == 0 or (self.pod_index < 0 and is_local(self.host))

    @property
    def succession(self) -> bool:
        """Return whether this job's agents take the coordinator over from one another."""
        return self.elects and self.pod_index >= 0 and not self.dedicated

    @property
    def bind_host(self) -> str:
        if _literal(self.host) or self.pod_index < 0:
            return self.host
        return self.address or self.host


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Raises ValueError for anything but HOST or HOST:PORT."""
    host, colon, port = endpoint.strip().rpartition(":")
    if not colon:
        host, port = port, str(DEFAULT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65535:
        raise ValueError(
            f"--rdzv-endpoint: expected HOST:PORT with a port below 65535 (the next port is used "
            f"too), found {endpoint!r}"
        )
    return host.strip("[]"), int(port)


def _metrics_address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{METRICS_VARIABLE}: expected PORT or HOST:PORT, found {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_local(host: str) -> bool:
    """Return whether a socket can be bound to `host` on this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def address_toward(host: str, port: int) -> str:
    """This machine's address on the way to `host`. Raises OSError if there is no way."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def _pod_index(environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    if environment.get(POD_INDEX_VARIABLE):
        return _number(environment, POD_INDEX_VARIABLE, int, -1)
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in ("--node-rank", "--node_rank"):
            return int(value if equals else arguments[i + 1])
    return _number(environment, "PET_NODE_RANK", int, -1)


def _number(
    environment: Mapping[str, str], name: str, kind: Callable[[str], _Number], default: _Number
) -> _Number:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, found {text!r}; fix or unset it") from None


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name) or "1"
    if text not in ("0", "1"):
        raise ValueError(f"{name}: expected 0 or 1, found {text!r}; fix or unset it")
    return text == "1"


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    seconds = _number(environment, name, float, default)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name}: expected seconds above 0, found {seconds:g}; fix or unset it")
    return seconds


def _literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False
