"""The planes that the suite runs on, as fixtures: see their docstrings, and README.md here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e import real_groups
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import (
    ControlPlane,
    EmbeddedControlPlane,
    ForeignControlPlane,
)
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from tests import program
from volcano_elastic.demo import machine_speed

_KINDS = {kind.name: kind for kind in (EmbeddedControlPlane, RealControlPlane, ForeignControlPlane)}


def _control_plane(config: pytest.Config) -> ControlPlane:
    plane = _KINDS[config.getoption("--control-plane")]()
    plane.start = program.start
    return plane


class Promised:
    """Holds seconds to what was promised, where the machine has no other work (`--long`).

    Elsewhere they are printed alone: how long anything takes on a busy machine says more of its
    other work than of ours.
    """

    def __init__(self, slowness: float | None) -> None:
        self._slowness = slowness

    def __call__(self, what: str, seconds: float, most: float) -> None:
        """Note how long it took; `most` seconds were promised, of a machine as fast as the one
        that machine_speed knows."""
        said = f"{what}: {seconds:.2f} s, promised {most:g} s"
        print(said)
        if self._slowness is not None:
            assert seconds <= most * self._slowness, f"{said}; slowness {self._slowness:.2f}"


@pytest.fixture(scope="session")
def promised(request: pytest.FixtureRequest) -> Promised:
    """Return what holds seconds to a promise with --long, and prints them without."""
    if not request.config.getoption("--long"):
        return Promised(None)
    return Promised(machine_speed.slowness(asyncio.run(machine_speed.measure_start())))


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
