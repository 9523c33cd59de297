"""Plays all cases on two servers at a time."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path

from embedded_cluster.cluster import LocalCluster
from embedded_cluster.conformance.case import Case, Step, cases
from embedded_cluster.conformance.client_program import run
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.conformance.difference import Difference, differences
from embedded_cluster.conformance.player import Answer, Player

_AT_ONCE = 6
_SDK = "sdk"


async def compare(
    real: ControlPlane, ours: ControlPlane, nouns: tuple[str, ...] = ()
) -> list[Difference]:
    """Return the differences between two servers' answers to the same cases; no nouns: to all."""
    life, played = secrets.token_hex(2), list(cases(nouns))
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def of(number: int, case: Case) -> list[Difference]:
        namespace = f"c{life}-{number}"
        async with at_once:
            answers = await asyncio.gather(one.play(case, namespace), other.play(case, namespace))
        return differences(case, namespace, *answers)

    async with (
        Player(real.kubeconfig) as one,
        Player(ours.kubeconfig) as other,
    ):
        found = await asyncio.gather(*(of(number, case) for number, case in enumerate(played)))
    if not nouns or _SDK in nouns:
        # Last: its scheduler would place the other cases' pods.
        found.append(await _compare_sdk(real, ours))
    return [one for some in found for one in some]


async def _compare_sdk(real: ControlPlane, ours: ControlPlane) -> list[Difference]:
    """Compare what Kubeflow's SDK sees of a job, with operator, scheduler and kubelet on both
    servers."""
    step = Step("PROGRAM sdk kubeflow_sdk", "PROGRAM", "", None, "", "", False)
    with tempfile.TemporaryDirectory(prefix="ve-sdk-") as folder:

        async def of(plane: ControlPlane) -> list[Answer]:
            kubeconfig, own = plane.kubeconfig, Path(folder) / plane.name
            own.mkdir()
            async with LocalCluster(
                nodes=1, existing=kubeconfig, kubelet_arguments=plane.kubelet_arguments
            ):
                seen = await run("sdk", "kubeflow_sdk", "elastic", str(kubeconfig), str(own))
            return [Answer(step, body=seen)]

        answers = await asyncio.gather(of(real), of(ours))
    return differences(Case("client", "the SDK", (step,)), "default", *answers)
