"""The operator's end of a job's coordinator: reads its status, tells it its range."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

import aiohttp

from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.kube import retry
from volcano_elastic.operator import (
    checkpoint_report,
    divergence_report,
    failure_report,
    hang_report,
    job_answer,
    load_report,
    progress_report,
    round_report,
    straggler_report,
)
from volcano_elastic.operator.divergence_report import DivergedRank
from volcano_elastic.operator.failure_report import Exclusion, Failure
from volcano_elastic.operator.hang_report import HungRound
from volcano_elastic.operator.load_report import PodUse
from volcano_elastic.operator.progress_report import Progress
from volcano_elastic.operator.round_report import ReportedRound
from volcano_elastic.operator.straggler_report import SlowRank
from volcano_elastic.operator.token import HEADER
from volcano_elastic.pytorchjob import goodput, rendezvous
from volcano_elastic.pytorchjob.goodput import Goodput
from volcano_elastic.snapshot.snapshot import SPEEDS

_log = logging.getLogger(__name__)
_MOST_BYTES = 1 << 20
_MOST_PLACES = 64
_PLACE = re.compile("[0-9a-f]{8,64}")
_PAUSES = 5
_LONGEST_PAUSE = 1e12


@dataclass(frozen=True, slots=True)
class Report:
    speeds: Mapping[int, float] = field(default_factory=dict)
    """Samples a second by size, or another number proportional to it."""
    pause: timedelta | None = None
    """How long training stood still at the latest changes of its round."""
    failures: tuple[Failure, ...] = ()
    """Failures of its workers, by time."""
    excluded: tuple[Exclusion, ...] = ()
    """Nodes that are in no further round."""
    nodes: tuple[int, int] | None = None
    """Fewest and most agents of its rounds; None from a trainer that can't be told others."""
    heard: frozenset[int] | None = None
    """Indexes of the pods that it is connected to; None: it gave no answer."""
    missing: bool = False
    """It makes no round without agents that it does not hear, unless it is told that they ended."""
    hung: tuple[HungRound, ...] = ()
    """Rounds that were ended as no step came."""
    goodput: Goodput | None = None
    """Its processes' time, by uses."""
    commits: Mapping[str, int] = field(default_factory=dict)
    """Newest step in each storage that was committed to, by a digest of its place."""
    slow: tuple[SlowRank, ...] = ()
    """Ranks that slow it down."""
    progress: Progress | None = None
    """How far training is; None where that isn't known."""
    diverged: tuple[DivergedRank, ...] = ()
    """Ranks whose state is, or was, another than the others'."""
    loads: Mapping[str, PodUse] = field(default_factory=dict)
    """Use of memory, CPUs and GPUs by containers, by their pods' names."""
    checkpoint: Bytes | None = None
    """Size of the newest commit; None: none is told."""
    host: str = ""
    """Address of the pod that it was asked in, whether or not it gave an answer."""
    round: int = 0
    """Number of the running round, else of the last; 0: there was none."""
    members: frozenset[int] = frozenset()
    """Indexes of the running round's pods."""
    rounds: tuple[ReportedRound, ...] = ()
    """Its newest rounds, by number."""
    reached: bool = False
    """True if an agent answered, though maybe no coordinator."""
    vouched: bool = False
    """True if an agent that answered hears the coordinator, which gave no answer itself."""
    asked: bool = True
    """False where the question could not be put, which says nothing of who would answer."""


def endpoint(job: PyTorchJob, pod: Mapping[str, Any] | None) -> str | None:
    """Return where the job's coordinator serves HTTP; None while it has none that runs."""
    return _url(job, pod, 1)


def succession(job: PyTorchJob, pod: Mapping[str, Any] | None) -> str | None:
    """Return where the agent in a pod tells who hosts the coordinator; None while none runs."""
    return _url(job, pod, 2)


def _url(job: PyTorchJob, pod: Mapping[str, Any] | None, offset: int) -> str | None:
    policy, sized = job.elastic, job.sized
    if policy is None or sized is None or not rendezvous.hosted(job):
        return None
    status = (pod or {}).get("status") or {}
    address = status.get("podIP")
    if status.get("phase") != "Running" or not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{(policy.rdzv_port or sized.port) + offset}"


@dataclass(frozen=True, slots=True, order=True)
class Followed:
    """The coordinator that an agent follows."""

    term: int
    heard: bool
    """True if the agent hears it."""
    url: str
    """Where it serves HTTP."""


def followed_of(body: bytes, job: PyTorchJob) -> Followed | None:
    """Return the coordinator that an agent follows; None if it knows none, or is another job's."""
    told = job_answer.parse(body)
    if not isinstance(told, dict) or told.get("job") != job.key:
        return None
    term, address = told.get("term"), told.get("address")
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not isinstance(term, int) or not host or not port.isdecimal() or len(port) > 5:
        return None
    url = f"http://{f'[{host}]' if ':' in host else host}:{int(port) + 1}"
    return Followed(term, told.get("heard") is True, url)


def read(body: bytes, job: PyTorchJob) -> Report:
    """Return a coordinator's answer; an empty one if it makes no sense or is another job's."""
    policy, answer = job.elastic, job_answer.parse(body)
    if policy is None or not isinstance(answer, dict) or answer.get("job") != job.key:
        return Report()
    speeds = {}
    speeds_by_world = answer.get("speeds")
    for size, speed in speeds_by_world.items() if isinstance(speeds_by_world, dict) else ():
        known = size.isdecimal() and len(size) < 7
        workers = rendezvous.workers(job, int(size)) if known else 0
        if 1 <= workers <= policy.max and _sensible(speed, *SPEEDS):
            speeds[workers] = float(f"{speed:.3g}")
    rounds = answer.get("rounds")
    pauses = [
        r["pause_seconds"]
        for r in (rounds if isinstance(rounds, list) else ())
        if isinstance(r, dict) and _sensible(r.get("pause_seconds"), 0.0, _LONGEST_PAUSE)
    ]
    pause = timedelta(seconds=round(median(pauses[-_PAUSES:]), 2)) if pauses else None
    return Report(
        speeds,
        pause,
        failure_report.read(answer),
        failure_report.read_exclusions(answer),
        _nodes(answer.get("range")),
        _connected(answer),
        bool(answer.get("missing")),
        hang_report.read(answer),
        goodput.read(answer.get("goodput")),
        _commits(answer.get("commits")),
        straggler_report.read(answer),
        progress_report.read(answer.get("progress"), answer.get("metrics")),
        divergence_report.read(answer),
        load_report.read(answer.get("loads"), job),
        checkpoint_report.read(answer.get("commit_bytes")),
        round=_round(answer.get("round")),
        members=_indexes(answer.get("ranks")) or frozenset(),
        rounds=round_report.read(rounds),
    )


def _commits(found: object) -> dict[str, int]:
    told = found.items() if isinstance(found, dict) else ()
    sensible = {
        place: step
        for place, step in told
        if _PLACE.fullmatch(place) and type(step) is int and 0 <= step < 1 << 53
    }
    return sensible if len(sensible) <= _MOST_PLACES else {}


def _nodes(found: object) -> tuple[int, int] | None:
    if not isinstance(found, dict):
        return None
    low, high = found.get("min"), found.get("max")
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def _round(found: object) -> int:
    return found if type(found) is int and found > 0 else 0


def _connected(answer: Mapping[str, Any]) -> frozenset[int] | None:
    """Return the indexes of pods whose agents are there; None if the answer doesn't say."""
    found = answer.get("connected")
    if not isinstance(found, list):  # a trainer of an older version names those that train
        return _indexes(answer.get("pids"))
    return frozenset(one for one in found if type(one) is int and 0 <= one < 10**6)


def _indexes(found: object) -> frozenset[int] | None:
    """Return the keys of an object that name pods by index; None if it is none."""
    if not isinstance(found, dict):
        return None
    return frozenset(int(index) for index in found if index.isdecimal() and len(index) < 7)


def owed(job: PyTorchJob, report: Report) -> tuple[int, int] | None:
    """Return the range that its coordinator is to be told; None if it is in force there."""
    if job.elastic is None or report.nodes is None:
        return None
    asked = rendezvous.nodes(job)
    return None if asked == report.nodes else asked


def _sensible(number: object, least: float, most: float) -> bool:
    return (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and number > 0
        and least <= number <= most
    )


async def ask(session: aiohttp.ClientSession, url: str, job: PyTorchJob, token: str) -> Report:
    """Return what the coordinator tells; empty if it gives no answer."""
    code, body = await _request(session, "GET", f"{url}/status", job, token)
    return read(body, job) if code == 200 else Report()


async def ask_for(session: aiohttp.ClientSession, url: str, job: PyTorchJob, token: str) -> bytes:
    """Return what is told at `url`; nothing if there is no answer."""
    code, body = await _request(session, "GET", url, job, token)
    return body if code == 200 else b""


async def find(
    session: aiohttp.ClientSession, urls: Sequence[str], job: PyTorchJob, token: str
) -> Followed | None:
    """Return the newest coordinator that the agents at `urls` follow."""
    answers = await asyncio.gather(
        *(_request(session, "GET", f"{url}/host", job, token) for url in urls)
    )
    found = [followed_of(body, job) for code, body in answers if code == 200]
    return max((one for one in found if one is not None), default=None)


async def tell_gone(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    job: PyTorchJob,
    token: str,
    ended: Mapping[str, object],
) -> None:
    """Tells a coordinator, or agents, which pods have ended, as `EndedPods.told` has it."""
    await asyncio.gather(
        *(_request(session, "PUT", f"{url}/gone", job, token, ended) for url in urls)
    )


async def tell_range(
    session: aiohttp.ClientSession, url: str, job: PyTorchJob, token: str, nodes: tuple[int, int]
) -> None:
    """Tells the coordinator how many agents a round may have. One that did not hear is asked again
    like any other."""
    asked = {"min": nodes[0], "max": nodes[1]}
    code, body = await _request(session, "PUT", f"{url}/range", job, token, asked)
    if code == 200:
        _log.info("%s: rounds may have %d to %d nodes", job.key, *nodes)
    elif code not in (0, 401):
        _log.warning("%s: %s/range refuses %s: %d %r", job.key, url, asked, code, body[:300])


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    job: PyTorchJob,
    token: str,
    content: Mapping[str, object] | None = None,
) -> tuple[int, bytes]:
    """Return code and body of the answer; 0 if there is none, or one of more than 1 MiB."""

    async def once() -> tuple[int, bytes]:
        async with session.request(
            method, url, headers={HEADER: token}, json=content, allow_redirects=False
        ) as answer:
            body = b""
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > _MOST_BYTES:
                    _log.warning("%s: %s answers more than %d bytes", job.key, url, _MOST_BYTES)
                    return 0, b""
            if answer.status == 401:
                _log.warning("%s: %s takes another token", job.key, url)
            return answer.status, body

    try:
        # Pods that have just started have no coordinator yet: nothing to warn of.
        return await retry.COORDINATOR.call(once, what=f"{job.key}: {url}", level=logging.DEBUG)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        _log.debug("%s: %s: %s", job.key, url, error or type(error).__name__)
        return 0, b""
