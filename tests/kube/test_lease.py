"""Writing is for the Lease's holder alone; whole replicas are in test_operator_process.py."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.patience import eventually
from volcano_elastic.kube.client import Client, Conflict, NotLeading
from volcano_elastic.kube.lease import Election, Timing, claimable_in, claimed, released
from volcano_elastic.kube.resource import CONFIGMAPS, LEASES, Object

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
QUICK = Timing(lease_duration=2, renew_deadline=1.2, retry_period=0.2)


def lease(holder: str, duration: float = 15, transitions: int = 4) -> Object:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration,
        "acquireTime": "2020-01-01T00:00:00.000000Z",
        "renewTime": "2020-01-01T00:00:10.000000Z",
        "leaseTransitions": transitions,
    }
    return {"metadata": {"name": "x", "resourceVersion": "7"}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        pytest.param(None, 0, id="no lease yet"),
        pytest.param(lease(""), 0, id="released"),
        pytest.param(lease("me"), 0, id="our own, from before a restart"),
        pytest.param(lease("you"), 15 - 4, id="held, and seen to change 4 s ago"),
        pytest.param(lease("you", 2), 2 - 4, id="expired 2 s ago"),
        pytest.param({"metadata": {}, "spec": {}}, 0, id="made by hand, empty"),
    ],
)
def test_when_a_candidate_may_take_the_lease(found: Object | None, seconds: float) -> None:
    # The times in the record are another machine's, years off: they must not matter.
    assert claimable_in(found, seen=100.0, now=104.0, identity="me") == seconds


def test_taking_the_lease_counts_as_a_transition_and_renewing_does_not() -> None:
    timing = Timing()
    stamp = "2026-01-02T03:04:05.678901Z"
    taken = claimed(lease("you"), "me", timing, NOW)
    assert taken == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": 5,
    }
    renewed = claimed(lease("me"), "me", timing, NOW)
    assert renewed["leaseTransitions"] == 4
    assert renewed["acquireTime"] == "2020-01-01T00:00:00.000000Z"
    assert renewed["renewTime"] == stamp
    assert claimed(None, "me", timing, NOW)["leaseTransitions"] == 0
    assert released(lease("me"), NOW)["holderIdentity"] == ""


@pytest.mark.parametrize(
    "seconds", [(15, 15, 2), (10, 15, 2), (15, 2, 2), (15, 10, 0), (1.5, 1, 0.2), (0, -1, -2)]
)
def test_timing_that_would_allow_two_leaders_is_refused(seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Timing(*seconds)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServerProcess]:
    with ApiServerProcess(tmp_path) as server:
        yield server


class Replica:
    """Leads by noting that it does; `led` is who led, in order."""

    def __init__(self, election: Election, name: str, led: list[str]) -> None:
        self.election, self._name, self._led = election, name, led
        self.leads = False

    async def lead(self) -> None:
        self._led.append(self._name)
        self.leads = True
        try:
            await asyncio.Event().wait()
        finally:
            self.leads = False


@asynccontextmanager
async def replica(
    server: ApiServerProcess, name: str, led: list[str], timing: Timing = QUICK
) -> AsyncIterator[Replica]:
    async with server.client() as client:
        election = Election(client, namespace="default", name="x", identity=name, timing=timing)
        one = Replica(election, name, led)
        task = asyncio.create_task(election.run(one.lead))
        try:
            yield one
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def holder(client: Client) -> str:
    found = await client.get(LEASES, "x", "default")
    return str(found["spec"]["holderIdentity"])


async def until(one: Replica, leads: bool = True) -> None:
    async def holds() -> bool:
        return one.leads is leads

    await eventually(holds, f"leads: {leads}")


@pytest.mark.process
async def test_one_of_two_leads_and_the_other_follows_at_once_when_it_stops(
    server: ApiServerProcess,
) -> None:
    led: list[str] = []
    # So long that a standby's wait for the end of the lease can't be taken for a slow machine.
    slow = Timing(lease_duration=300, renew_deadline=200)
    async with server.client() as client, replica(server, "b", led, slow) as b:
        await until(b)
        async with replica(server, "a", led, slow) as a:
            await asyncio.sleep(0.3)
            assert b.leads and not a.leads
            with pytest.raises(NotLeading, match="a does not hold the lease"):
                a.election.write_limit()
            assert 0 < b.election.write_limit() <= slow.renew_deadline
        assert await holder(client) == "b"
        assert led == ["b"]
    async with server.client() as client, replica(server, "a", led, slow) as a:
        # Long before the lease's duration is over, since it was released.
        async with asyncio.timeout(slow.lease_duration / 3):
            await until(a)
        assert await holder(client) == "a"
    assert led == ["b", "a"]


@pytest.mark.process
async def test_a_leader_that_cannot_renew_stops_writing_before_another_may_begin(
    server: ApiServerProcess,
) -> None:
    led: list[str] = []
    async with replica(server, "a", led) as a:
        await until(a)
        server.process.send_signal(signal.SIGSTOP)
        try:
            # The last renewal may have been sent just before the server stopped.
            assert a.election.write_limit() <= QUICK.renew_deadline < QUICK.lease_duration
            await until(a, leads=False)
            with pytest.raises(NotLeading):
                a.election.write_limit()
        finally:
            server.process.send_signal(signal.SIGCONT)
        await until(a)
    assert led == ["a", "a"]


@pytest.mark.process
async def test_a_lease_taken_by_force_is_given_up(server: ApiServerProcess) -> None:
    led: list[str] = []
    async with server.client() as client, replica(server, "a", led) as a:
        await until(a)
        taken = {"holderIdentity": "somebody", "leaseDurationSeconds": 60}
        await client.patch(LEASES, "x", "default", {"spec": taken})
        await until(a, leads=False)
        await asyncio.sleep(QUICK.lease_duration)
        assert not a.leads and await holder(client) == "somebody"


@pytest.mark.process
async def test_work_that_ends_by_itself_is_not_taken_for_a_lost_lease(
    server: ApiServerProcess,
) -> None:
    async def broken() -> None:
        raise LookupError("a defect")

    async with server.client() as client:
        election = Election(client, namespace="default", name="x", identity="a", timing=QUICK)
        with pytest.raises(LookupError, match="a defect"):
            await asyncio.wait_for(election.run(broken), 120)
        assert await holder(client) == ""


@pytest.mark.process
async def test_a_client_without_the_lease_begins_no_write_and_leaves_none_open(
    server: ApiServerProcess,
) -> None:
    left = [0.3]

    def write_limit() -> float:
        if left[0] <= 0:
            raise NotLeading("over")
        return left[0]

    body = {"metadata": {"name": "c", "namespace": "default"}}
    async with server.client() as free, Client(free.access, write_limit=write_limit) as client:
        await client.create(CONFIGMAPS, body)
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                await client.patch(CONFIGMAPS, "c", "default", {"data": {"a": "b"}})
        finally:
            server.process.send_signal(signal.SIGCONT)
        left[0] = 0
        with pytest.raises(NotLeading, match="over"):
            await client.delete(CONFIGMAPS, "c", "default")
        # Reading is free.
        assert (await client.get(CONFIGMAPS, "c", "default"))["metadata"]["name"] == "c"
        with pytest.raises(Conflict):
            await free.create(CONFIGMAPS, body)
