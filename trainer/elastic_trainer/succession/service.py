"""The succession service of an agent, asked and answered: who hosts the coordinator, and votes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.protocol.message import Member
from elastic_trainer.succession.agent_status import AgentStatus, EndedPods, Found
from elastic_trainer.succession.ballot import Ballot, Vote

HOST_PATH = "/host"
VOTE_PATH = "/vote"
GONE_PATH = "/gone"
SECONDS = 0.5
"""For an agent's answer."""
ANSWER_BYTES = 65536


class GoneError(Exception):
    """An agent has ended: nobody listens where it did, or another agent does."""


async def look(member: Member, token: str, seconds: float = SECONDS, *, ended: bool) -> Found:
    """Ask a member how it stands. Silence, and what is no answer of an agent, proves nothing.

    Args:
        ended: a stream has ended by the other end's doing, so that a refusal proves that the
            process has ended, too. Firewalls also refuse connections, but let streams fall silent.
    """
    try:
        body = await ask(member.address, member.port, "GET", HOST_PATH, None, token, seconds)
        status = read_status(body)
    except GoneError:
        return Found(gone=True)
    except ConnectionRefusedError:
        return Found(gone=ended)
    except (ConnectionError, asyncio.IncompleteReadError):
        return Found(closed=True)
    except (OSError, ValueError, TimeoutError):
        return Found()
    return Found(status) if status.agent == member.agent else Found(gone=True)


async def ask_vote(
    member: Member, ballot: Ballot, token: str, seconds: float, *, ended: bool
) -> Vote | None:
    """Return a member's vote; None if it can't be had. Raises GoneError; `ended`: see `look`."""
    try:
        body = await ask(
            member.address,
            member.port,
            "PUT",
            VOTE_PATH,
            {**dataclasses.asdict(ballot), "voter": member.agent},
            token,
            seconds,
        )
        told = _object(body)
        return Vote(bool(told["granted"]), int(told["term"]), str(told["why"]))
    except ConnectionRefusedError as error:
        if not ended:
            return None
        raise GoneError(f"{member.address}:{member.port}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, TimeoutError, asyncio.IncompleteReadError):
        return None


async def announce(
    host: str, port: int, status: AgentStatus, token: str, seconds: float = SECONDS
) -> None:
    """Tell whoever listens at an address where the coordinator is. Raises OSError, TimeoutError."""
    told = dataclasses.asdict(status)
    await ask(host, port, "PUT", HOST_PATH, told, token, seconds)


async def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    told: dict[str, Any] | None,
    token: str,
    seconds: float,
) -> bytes:
    """Return the body of a service's answer.

    Raises:
        OSError, TimeoutError, asyncio.IncompleteReadError: there is none in time.
        GoneError: whom it was meant for is gone.
        ValueError: it is no success.
    """
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            body = json.dumps(told).encode() if told is not None else b""
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{HEADER}: {token}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.read(ANSWER_BYTES)
        except asyncio.LimitOverrunError as error:
            raise ValueError(f"{host}:{port}{path}: expected an answer, found {error}") from error
        finally:
            writer.transport.abort()
    if head.startswith(b"HTTP/1.1 410 "):
        raise GoneError(f"{host}:{port}{path}: another agent listens there")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ValueError(f"{host}:{port}{path}: expected 200, found {head[:60]!r}")
    return answer


def read_status(body: bytes) -> AgentStatus:
    """Raises ValueError for what is none."""
    told = _object(body)
    try:
        return AgentStatus(
            job=str(told["job"]),
            agent=str(told["agent"]),
            term=int(told["term"]),
            address=str(told["address"]),
            hosts=bool(told["hosts"]),
            heard=bool(told["heard"]),
            round=int(told.get("round", 0)),
            stays=bool(told.get("stays", True)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected an agent's status, found {told}") from error


def read_ballot(body: bytes) -> tuple[str, Ballot]:
    """Return whose vote is asked for, and the ballot. Raises ValueError for what is none."""
    told = _object(body)
    try:
        return str(told["voter"]), Ballot(
            term=int(told["term"]),
            candidate=str(told["candidate"]),
            address=str(told["address"]),
            electorate_term=int(told["electorate_term"]),
            electorate_round=int(told["electorate_round"]),
            trial=bool(told["trial"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a ballot, found {told}") from error


def read_gone(body: bytes) -> EndedPods:
    """Return which pods have ended for good. Raises ValueError."""
    told = _object(body)
    addresses, pods = told.get("addresses"), told.get("pods")
    try:
        if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
            raise TypeError
        if pods is None:
            return EndedPods(frozenset(addresses))
        each = frozenset((str(one["address"]), int(one["index"])) for one in pods)
        return EndedPods(frozenset(addresses), each)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            'expected {"addresses": [ADDRESS, ...], "pods": [{"address": ADDRESS, "index": '
            f"INDEX}}, ...]}}, found {body[:200]!r}"
        ) from None


def _object(body: bytes) -> dict[str, Any]:
    told = json.loads(body)
    if not isinstance(told, dict):
        raise ValueError(f"expected a JSON object, found {body[:100]!r}")
    return told
