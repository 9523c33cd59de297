"""Decides which of a job's pods stay, which go, and at which indexes new ones come.

The elastic role of an elastic job: pod 0 first and last, the others keep their indexes, new ones
take the lowest free. Those that run go on without pod 0 where they can. Other roles, and a fixed
job's: indexes 0 to replicas-1. A pod on its way out holds its index; one that no kubelet lets go
loses it in the end, where the job cannot do without that index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import Role
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.size import Size

# A pod that ran this long before it failed starts its back-off afresh.
_STEADY = timedelta(minutes=10)
_LONGEST_BACKOFF = timedelta(minutes=5)
# Past its grace the kubelet has killed its processes, unless its node is gone.
_STUCK = timedelta(minutes=1)
# So that a huge job is looked at anew between its pods, and holds up nobody else's.
_MOST_AT_ONCE = 2000
_PRESENT = (State.LIVE, State.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class New:
    role: Role
    index: int
    restarts: int = 0
    failures: int = 0


@dataclass(slots=True)
class Placement:
    keep: list[Replica] = field(default_factory=list)
    """Live and staying."""
    leave: list[Replica] = field(default_factory=list)
    """Told to leave, with their own grace."""
    clear: list[Replica] = field(default_factory=list)
    """Ended already, lost with the node, or stuck; the object goes at once."""
    create: list[New] = field(default_factory=list)
    retry_at: datetime | None = None
    """When the next failed or stuck pod may be made again."""
    without_first: bool = False
    """The elastic role's pod 0 is a pod like the others."""

    @property
    def complete(self) -> bool:
        """True while nothing comes and nothing goes."""
        return not (self.leave or self.clear or self.create or self.retry_at)

    def take_over_restarts(self, restarts: int) -> Replica | None:
        """Have another pod take over the restarts of pods that have gone, so that the job's go on
        adding up: a new one if there is any, else the one that is returned."""
        if self.create:
            self.create[0] = replace(self.create[0], restarts=self.create[0].restarts + restarts)
            return None
        return self.keep[0] if self.keep else None


def place(
    job: PyTorchJob,
    view: Sequence[Replica],
    size: Size | None,
    now: datetime,
    move: frozenset[str] = frozenset(),
    *,
    without_first: bool = False,
) -> Placement:
    """Return which pods stay, go and come for a job of this size; None: of fixed size.

    Args:
        move: names of the pods that go, and that others come for.
        without_first: pod 0 is a pod like the others, since those go on without it.
    """
    out = Placement(without_first=without_first)
    for spec in job.replicas.values():
        mine = [r for r in view if r.role is spec.role]
        if spec.role.elastic and size is not None:
            _elastic(out, spec.role, mine, size, now, move, needed=not without_first)
        else:
            _fixed(out, spec.role, mine, spec.replicas, now, move)
    if len(out.create) >= _MOST_AT_ONCE:
        _look_again(out, now)
    return out


def _fixed(
    out: Placement,
    role: Role,
    mine: list[Replica],
    count: int,
    now: datetime,
    move: frozenset[str],
) -> None:
    by_index = {r.index: r for r in mine}
    for index in range(count):
        replica = by_index.get(index)
        if replica is None:
            if len(out.create) >= _MOST_AT_ONCE:
                break
            out.create.append(New(role, index))
        elif replica.live and replica.name in move:
            out.leave.append(replica)
        elif replica.live:
            out.keep.append(replica)
        elif replica.state is State.RETRY:
            _again(out, replica, now)
        elif replica.state is State.LEAVING:
            _wait_for(out, replica, now)
        elif replica.state is State.NODE_LOST:
            _anew(out, replica)
        elif replica.state is State.OUT_OF_MEMORY:
            _with_more_memory(out, replica)
    for replica in mine:
        if replica.index >= count:
            _dismiss(out, replica)


def _elastic(
    out: Placement,
    role: Role,
    mine: list[Replica],
    size: Size,
    now: datetime,
    move: frozenset[str],
    *,
    needed: bool,
) -> None:
    going = size.remove | move
    first = next((r for r in mine if r.index == 0), None) if needed else None
    others = [r for r in mine if r.index != 0] if needed else mine
    for replica in mine:
        left = replica.state is State.NODE_LOST and replica.leaves_by and replica is not first
        if replica.state is State.EVICTED or left:
            out.clear.append(replica)
    # Where it is needed, pod 0 always has a place, even while it is away.
    members = [r for r in others if _member(r)]
    staying = [r for r in members if r.name not in going]
    for replica in members:
        if replica.name in going:
            _dismiss(out, replica)
    done = sum(r.state is State.SUCCEEDED for r in others)
    surplus = len(staying) + done - (size.desired - needed)
    if surplus > 0:
        # What holds least goes first; of equals, the highest index. Unlike in the planner's
        # `eviction_order` protection doesn't count: a decision has named in `remove` whoever it
        # means, what it counts as absent isn't live, and protection moves to those that stay.
        staying.sort(key=lambda r: (r.live, r.bound, r.running, -r.index))
        for replica in staying[:surplus]:
            _dismiss(out, replica)
        staying = staying[surplus:]
    for replica in sorted(staying, key=lambda r: r.index):
        if replica.live:
            out.keep.append(replica)
        elif replica.state is State.NODE_LOST:
            _anew(out, replica)
        elif replica.state is State.OUT_OF_MEMORY:
            _with_more_memory(out, replica)
        elif replica.state is State.LEAVING:
            _wait_for(out, replica, now)
        else:
            _again(out, replica, now)
    if not needed:
        _fill(out, role, mine, -surplus, least=0)
        return
    if first is not None and first.live and first.name in move:
        out.leave.append(first)
        # The others come once it is back.
        out.create = [new for new in out.create if not new.role.elastic]
        return
    if first is not None and first.state in _PRESENT:
        if first.live:
            out.keep.insert(0, first)
    else:
        # Nobody new before pod 0 exists.
        out.create = [new for new in out.create if not new.role.elastic]
        if first is None or first.state is State.EVICTED:
            out.create.append(New(role, 0))
        elif first.state is State.RETRY:
            _again(out, first, now)
        elif first.state is State.LEAVING:
            _wait_for(out, first, now)
        elif first.state is State.NODE_LOST:
            _anew(out, first)
        elif first.state is State.OUT_OF_MEMORY:
            _with_more_memory(out, first)
        return
    _fill(out, role, mine, -surplus, least=1)


def _fill(out: Placement, role: Role, mine: list[Replica], count: int, least: int) -> None:
    """New pods at so many of the lowest free indexes."""
    taken = {r.index for r in mine if r not in out.clear}
    taken |= {new.index for new in out.create if new.role.elastic}
    free = (index for index in range(least, least + len(taken) + count + 1) if index not in taken)
    for _ in range(min(count, _MOST_AT_ONCE)):
        out.create.append(New(role, next(free)))


def _dismiss(out: Placement, replica: Replica) -> None:
    if replica.live or replica.runs_out_of_memory:
        out.leave.append(replica)
    elif replica.state in (State.OUT_OF_MEMORY, State.RETRY, State.EVICTED, State.NODE_LOST):
        out.clear.append(replica)


def _again(out: Placement, replica: Replica, now: datetime) -> None:
    """Made again at once the first time, then after 1, 2, 4… seconds from its end."""
    if replica.interrupted:
        _anew(out, replica)
        return
    ended = replica.ended or replica.created
    past = 0 if ended - replica.created >= _STEADY else replica.failures
    wait = min(timedelta(seconds=2 ** min(past - 1, 10)), _LONGEST_BACKOFF) if past else None
    if wait is not None and now < ended + wait:
        _look_again(out, ended + wait)
        return
    out.clear.append(replica)
    out.create.append(New(replica.role, replica.index, replica.restarts, past + 1))


def _member(replica: Replica) -> bool:
    """Return whether the pod fills a place of the job's size, now or once it is made again."""
    if replica.state is State.NODE_LOST:
        return replica.leaves_by is None
    return replica.comes_back or replica.state in (State.LIVE, State.RETRY, State.OUT_OF_MEMORY)


def _anew(out: Placement, replica: Replica) -> None:
    """Made again at once. Where its node is lost, elsewhere: no scheduler gives a pod to a node in
    trouble."""
    out.clear.append(replica)
    out.create.append(New(replica.role, replica.index, replica.restarts, replica.failures))


def _with_more_memory(out: Placement, replica: Replica) -> None:
    """Made again at once; if its container runs again, that is told to leave before."""
    if replica.runs_out_of_memory:
        out.leave.append(replica)
    else:
        _anew(out, replica)


def _wait_for(out: Placement, replica: Replica, now: datetime) -> None:
    given_up = (replica.leaves_by or now) + _STUCK
    if now < given_up:
        _look_again(out, given_up)
        return
    _anew(out, replica)


def _look_again(out: Placement, when: datetime) -> None:
    out.retry_at = min(out.retry_at or when, when)
