"""Finds the job's coordinator for a process that is no agent."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.succession.agent_status import AgentStatus
from elastic_trainer.succession.peers import Place
from elastic_trainer.succession.service import ANSWER_BYTES, HOST_PATH, SECONDS, read_status


def find_coordinator(places: Sequence[Place], job: str, token: str) -> str | None:
    """Return HOST:PORT of the newest coordinator that agents follow; None where nobody knows one.

    Args:
        places: of the agents' succession services.
        job: whose agents they must be; empty: any.
    """
    if not places:
        return None
    with ThreadPoolExecutor(len(places)) as pool:
        answers = pool.map(lambda place: _ask(place, token), places)
    known = [
        one
        for one in answers
        if one is not None and one.address and job in ("", one.job) and (one.heard or one.hosts)
    ]
    return max(known, key=lambda one: one.term).address if known else None


def any_agent_answers(places: Sequence[Place], job: str, token: str) -> bool:
    """Tell whether some agent of the job takes part in elections: others answer nothing."""
    if not places:
        return False
    with ThreadPoolExecutor(len(places)) as pool:
        answers = pool.map(lambda place: _ask(place, token), places)
    return any(one is not None and one.job == job for one in answers)


def _ask(place: Place, token: str) -> AgentStatus | None:
    connection = http.client.HTTPConnection(*place, timeout=SECONDS)
    try:
        connection.request("GET", HOST_PATH, headers={HEADER: token})
        answer = connection.getresponse()
        return read_status(answer.read(ANSWER_BYTES)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
