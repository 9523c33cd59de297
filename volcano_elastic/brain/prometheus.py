"""Asks Prometheus what pods' training containers use, by the kubelets' cAdvisor metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import aiohttp

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import CONTAINER
from volcano_elastic.brain.estimate.amounts import Amounts

_CPU = (
    "sum by (namespace, pod) "
    f'(rate(container_cpu_usage_seconds_total{{container="{CONTAINER}"}}[2m]))'
)
_MEMORY = f'max by (namespace, pod) (container_memory_working_set_bytes{{container="{CONTAINER}"}})'
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)


class PrometheusError(Exception):
    """Prometheus gave no answer, or one that makes no sense; says which."""


async def used(url: str) -> dict[tuple[str, str], Amounts]:
    """Return by namespace and name what pods use now; those of which one of both isn't known are
    left out.

    Args:
        url: Prometheus' own, without /api.

    Raises:
        PrometheusError: it was not told.
    """
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        answers = [await _ask(session, url, query) for query in (_CPU, _MEMORY)]
    cpu, memory = (read(answer) for answer in answers)
    return {
        pod: Amounts(Cpu.cores(cpu[pod]), Bytes(math.ceil(memory[pod])))
        for pod in cpu.keys() & memory.keys()
    }


async def _ask(session: aiohttp.ClientSession, url: str, query: str) -> Any:
    try:
        async with session.get(f"{url.rstrip('/')}/api/v1/query", params={"query": query}) as found:
            found.raise_for_status()
            return await found.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise PrometheusError(f"Prometheus at {url}: {error or 'no answer in time'}") from error


def read(answer: Any) -> dict[tuple[str, str], float]:
    """Return by namespace and pod the values of an instant query's vector; what is no number, or
    has no such labels, is left out.

    Raises:
        PrometheusError: it is no such answer.
    """
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, Mapping) or data.get("resultType") != "vector":
        raise PrometheusError(f"expected a vector from Prometheus, found {str(answer)[:200]}")
    found = {}
    for one in data.get("result") or ():
        labels = one.get("metric") or {}
        try:
            value = float(one["value"][1])
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        if math.isfinite(value) and value >= 0 and labels.get("namespace") and labels.get("pod"):
            found[labels["namespace"], labels["pod"]] = value
    return found
