"""Checks who may speak to a coordinator: holders of the job's token, of its version and shape."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable

from elastic_trainer.protocol.message import ABRIDGED_VERSION, VERSION, Hello

TOKEN_VARIABLE = "VOLCANO_ELASTIC_TOKEN"
"""The job's secret, the same in all its pods. Without it, only this machine is served."""

HEADER = "volcano-elastic-token"
"""Header of HTTP requests, and key in gRPC's metadata. Not `Authorization`, which an API
server that passes a request on to a pod keeps to itself."""


def check_token(token: str, given: str | None) -> str | None:
    """Why the holder of `given` is refused; None if it is let in. Names no token."""
    if not token or (given is not None and hmac.compare_digest(token.encode(), given.encode())):
        return None
    found = "another one" if given else "none"
    return (
        f"expected this job's token ({TOKEN_VARIABLE}, or header {HEADER} over HTTP), found "
        f"{found}; all pods of a job get it from the same Secret"
    )


def check_compatible(
    hello: Hello, job: str, processes: Iterable[tuple[int, int]], program: str = ""
) -> str | None:
    """Why an agent can't take part; None if it can.

    Args:
        processes: pod index and workers of each node that takes part now; 0 for not known.
        program: that trains here, as identity.py has it; empty: not known.
    """
    if hello.version not in (VERSION, ABRIDGED_VERSION):
        return (
            f"expected protocol version {VERSION} or {ABRIDGED_VERSION}, found {hello.version}: "
            "run the same version of volcano-elastic in all pods of a job"
        )
    if hello.job != job:
        return (
            f"expected a worker of job {job}, found one of {hello.job or 'no job'}: this "
            "coordinator is another job's; see --rdzv-endpoint and --rdzv-id"
        )
    if hello.program and program and hello.program != program:
        return (
            f"expected the training that runs here, {program}, found {hello.program}: without "
            "--rdzv-id what starts with the same --rdzv-endpoint is one job. If they are two, give "
            "this one an --rdzv-endpoint of its own (its port and the next one are used); if they "
            "are one, give all its nodes the same --rdzv-id"
        )
    for pod_index, others in processes:
        if hello.processes and others and others != hello.processes:
            return (
                f"expected {others} workers a node, as worker {pod_index} has, found "
                f"{hello.processes}: give all nodes the same --nproc-per-node (nprocPerNode)"
            )
    return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to `host`. Raises OSError if
    unknown."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(item[4][0])).is_loopback for item in found)
