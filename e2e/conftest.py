"""What the suite runs on, as fixtures: see each one's docstring, and README.md beside this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e import program, real_groups
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import (
    ControlPlane,
    EmbeddedControlPlane,
    ForeignControlPlane,
)
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from volcano_elastic.demo import machine_speed

_KINDS = {kind.name: kind for kind in (EmbeddedControlPlane, RealControlPlane, ForeignControlPlane)}


def _control_plane(config: pytest.Config) -> ControlPlane:
    plane = _KINDS[config.getoption("--control-plane")]()
    plane.start = program.start
    return plane


@pytest.fixture(scope="session")
def slowness() -> float:
    """Return the factor for promised seconds on this machine, busy as it is; 1 on a quiet one."""
    return machine_speed.slowness(asyncio.run(machine_speed.measure_start()))


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """An API server with all our CRDs, shared by the whole run: leave in it what disturbs nobody.

    No operator, scheduler or node is there. `control_plane.kubeconfig` is the administrator's,
    `control_plane.client()` an `async with` Client; `kubeconfig_of(user)` and `requests(user)`
    (audit log) need RBAC: ask for the fixture `rbac_control_plane` then.
    """
    with _control_plane(request.config) as plane:
        yield plane


@pytest.fixture
def rbac_control_plane(control_plane: ControlPlane) -> ControlPlane:
    """The same, and the test is skipped where there is only one user."""
    if not control_plane.rbac:
        pytest.skip(f"the {control_plane.name} control plane has one user only")
    return control_plane


@pytest.fixture
def fresh_control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One for this test alone: it may be filled, restarted and killed."""
    with _control_plane(request.config) as plane:
        yield plane


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """A fresh control plane with two nodes of two GPUs, scheduler, kubelet and operator."""
    async with running(fresh_control_plane, tmp_path) as stage:
        yield stage


@pytest.fixture
def control_groups() -> Iterator[None]:
    """Has pods that `real_groups.entered` begin be in control groups of their own."""
    try:
        with real_groups.made():
            yield
    except real_groups.NoGroupsError as error:
        pytest.skip(str(error))
