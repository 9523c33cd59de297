"""The faults of the harness: each hits some part of a running job, chosen by the seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from elastic_trainer.identity import SUCCESSION_VARIABLE
from elastic_trainer.store.memory_folder import OWNER
from elastic_trainer.store.slot import Slot, SlotError
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.fault_job import NODES, FaultyJob
from tests.elastic_trainer.fault_proxy import Proxy
from tests.elastic_trainer.torchrun_job import children


class Faults:
    """Faults that can be done to the job, and those to be undone later."""

    def __init__(
        self, job: FaultyJob, chance: random.Random, tell: Callable[[str], None], fixed: bool
    ) -> None:
        self.job = job
        self.chance = chance
        self.tell = tell
        self.storage = Storage(job.folder / "commits")
        self.fixed = fixed
        """Nodes are neither added nor removed."""
        self.wanted = {0, 1} if fixed else {0, 1, 2}
        """The pods that should be there."""
        self.away: set[int] = set()
        """Pods that have ended, and are not made anew yet."""
        self.damaged: set[tuple[int, int]] = set()
        """Run and step of the commits that were damaged."""
        self._later: list[tuple[float, Callable[[], object]]] = []
        self.kinds: tuple[Callable[[], bool], ...] = (
            *(self.kill_worker,) * 4,
            *(self.terminate_worker, self.freeze_worker, self.kill_all_workers),
            *(self.kill_node, self.terminate_node, self.freeze_agent, self.freeze_node),
            *(self.kill_coordinator, self.terminate_coordinator, self.freeze_coordinator),
            *(self.add_node, self.remove_node) * 2,
            *(self.delay_network, self.drop_network, self.cut_network),
            *(self.damage_commit, self.damage_memory) * 2,
            *(self.fail_storage,) * 6,
            *(self.unmount_storage,) * 2,
            self.truncate_commit,
            *(self.jump_clock,) * 5,
        )
        if not fixed and os.environ.get(SUCCESSION_VARIABLE) != "0":
            self.kinds += (
                *(self.kill_coordinator_node, self.freeze_coordinator_node) * 2,
                *(self.part_network,) * 4,
            )

    def keep(self, names: Collection[str]) -> None:
        """Do nothing but these. Raises ValueError for what is no fault."""
        kept = tuple(kind for kind in self.kinds if kind.__name__ in names)
        if unknown := set(names) - {kind.__name__ for kind in kept}:
            known = sorted({kind.__name__ for kind in self.kinds})
            raise ValueError(f"expected faults of {known}, found {sorted(unknown)}")
        self.kinds = kept

    def later(self, seconds: float, undo: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    @property
    def lasting(self) -> bool:
        """Tell whether any fault is still to be undone."""
        return bool(self._later)

    def undo_due(self) -> None:
        now = time.monotonic()
        due = [undo for at, undo in self._later if at <= now]
        self._later = [(at, undo) for at, undo in self._later if at > now]
        for undo in due:
            undo()

    # ---- whom to hit

    def _node(self) -> int | None:
        there = [i for i, agent in self.job.agents.items() if agent.poll() is None]
        return self.chance.choice(sorted(there)) if there else None

    def process(self, index: int, name: str) -> int | None:
        with contextlib.suppress(OSError):
            for found, pid in children(self.job.agents[index].pid).items():
                if found.startswith(name):
                    return pid
        return None

    def send(self, number: signal.Signals, *pids: int | None) -> bool:
        sent = False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, number)
                    sent = True
        return sent

    def _freeze(self, seconds: float, *pids: int | None) -> bool:
        self.later(seconds, lambda: self.send(signal.SIGCONT, *pids))
        return self.send(signal.SIGSTOP, *pids)

    # ---- faults: each returns whether it could be done

    def kill_worker(self) -> bool:
        node = self._node()
        return node is not None and self.send(signal.SIGKILL, self.process(node, "ve-worker"))

    def terminate_worker(self) -> bool:
        node = self._node()
        return node is not None and self.send(signal.SIGTERM, self.process(node, "ve-worker"))

    def freeze_worker(self) -> bool:
        node = self._node()
        if node is None:
            return False
        return self._freeze(self.chance.uniform(0, 1.5), self.process(node, "ve-worker"))

    def kill_all_workers(self) -> bool:
        return self.send(
            signal.SIGKILL, *(self.process(node, "ve-worker") for node in self.job.agents)
        )

    def kill_node(self) -> bool:
        node = self._node()
        return node is not None and self.send(signal.SIGKILL, self.job.agents[node].pid)

    def terminate_node(self) -> bool:
        """It leaves, and a new one comes in its place."""
        node = self._node()
        return node is not None and self.send(signal.SIGTERM, self.job.agents[node].pid)

    def freeze_agent(self) -> bool:
        node = self._node()
        if node is None:
            return False
        return self._freeze(self.chance.uniform(0, 2.5), self.job.agents[node].pid)

    def freeze_node(self) -> bool:
        node = self._node()
        if node is None:
            return False
        agent = self.job.agents[node].pid
        with contextlib.suppress(OSError):
            return self._freeze(self.chance.uniform(0, 2.5), agent, *children(agent).values())
        return False

    def kill_coordinator(self) -> bool:
        return 0 in self.job.agents and self.send(signal.SIGKILL, self.process(0, "coordinator"))

    def terminate_coordinator(self) -> bool:
        return 0 in self.job.agents and self.send(signal.SIGTERM, self.process(0, "coordinator"))

    def freeze_coordinator(self) -> bool:
        return 0 in self.job.agents and self._freeze(
            self.chance.uniform(0, 2.0), self.process(0, "coordinator")
        )

    def _host(self) -> int | None:
        """Return the node whose agent runs the coordinator."""
        host = self.job.status().get("host")
        there = host in self.job.agents and self.job.agents[host].poll() is None
        return host if there else None

    def kill_coordinator_node(self) -> bool:
        """Another is made in its place, some time later."""
        node = self._host()
        if node is None:
            return False
        self.tell(f"    the coordinator's node is {node}")
        self.away.add(node)
        self.later(self.chance.uniform(0, 3), lambda: self.away.discard(node))
        agent = self.job.agents[node].pid
        with contextlib.suppress(OSError):
            return self.send(signal.SIGKILL, agent, *children(agent).values())
        return False

    def freeze_coordinator_node(self) -> bool:
        node = self._host()
        if node is None:
            return False
        self.tell(f"    the coordinator's node is {node}")
        agent = self.job.agents[node].pid
        with contextlib.suppress(OSError):
            return self._freeze(self.chance.uniform(0, 4), agent, *children(agent).values())
        return False

    def add_node(self) -> bool:
        if self.fixed or len(self.wanted) == NODES:
            return False
        self.wanted.add(len(self.wanted))
        return True

    def remove_node(self) -> bool:
        if self.fixed or len(self.wanted) == 1:
            return False
        self.wanted.remove(index := len(self.wanted) - 1)
        agent = self.job.agents.get(index)
        return agent is not None and self.send(signal.SIGTERM, agent.pid)

    def delay_network(self) -> bool:
        ways = self.job.network.of(self.chance.randrange(NODES))
        self._delay(ways, self.chance.uniform(0, 0.3))
        self.later(self.chance.uniform(0, 2), lambda: self._delay(ways, 0.0))
        return True

    def _delay(self, ways: list[Proxy], seconds: float) -> None:
        for way in ways:
            way.delay = seconds

    def drop_network(self) -> bool:
        return self._part({self.chance.randrange(NODES)})

    def cut_network(self) -> bool:
        for way in self.job.network.of(self.chance.randrange(NODES)):
            way.cut()
        return True

    def part_network(self) -> bool:
        """Some nodes are cut off from the others."""
        side = {node for node in range(NODES) if self.chance.random() < 0.5}
        self.tell(f"    network: {sorted(side)} apart from the others")
        return self._part(side)

    def _part(self, side: set[int]) -> bool:
        self.job.network.part(side)
        self.later(self.chance.uniform(0, 4), lambda: self.job.network.join(side))
        return True

    def damage_commit(self) -> bool:
        """The newest one, and never so many that none is left."""
        intact = [c for c in self.storage.commits() if c.identity not in self.damaged]
        if len(intact) < 2:
            return False
        newest = intact[0]
        path = Path(self.storage.path(newest)) / self.chance.choice(["COMMITTED", "state.pt"])
        self.damaged.add(newest.identity)
        if self.chance.random() < 0.2:
            with contextlib.suppress(OSError), path.open("r+b") as file:
                file.truncate(self.chance.randrange(os.fstat(file.fileno()).st_size))
                return True
            return False
        return self._flip(path)

    def damage_memory(self) -> bool:
        """A state at rest in a node's shared memory; half of the time, the workers die of it."""
        node = self._node()
        if node is None:
            return False
        flipped = False
        for path in sorted(self._memory_of(self.job.agents[node].pid)):
            slot = Slot(path)
            # One that is being written is not damaged at rest: nobody has verified it yet.
            with contextlib.suppress(SlotError), slot.locked(exclusive=True) as ours:
                flipped |= ours and slot.sealed() is not None and self._flip(path)
        if flipped and self.chance.random() < 0.5:
            self.kill_all_workers()
        return flipped

    def fail_storage(self) -> bool:
        """For a while; half of the time, the workers die of it and must read."""
        kind = self.chance.choice(["EIO", "ESTALE", "503", "slow", "full", "read-only"])
        fault = self.job.folder / "fault"
        fault.write_text(kind)
        self.tell(f"    storage: {kind}")
        self.later(self.chance.uniform(0.2, 3), lambda: fault.unlink(missing_ok=True))
        if self.chance.random() < 0.5:
            self.kill_all_workers()
        return True

    def unmount_storage(self) -> bool:
        """The folder vanishes and returns; not before a commit says that it isn't a new one."""
        folder, away = self.job.folder / "commits", self.job.folder / "commits-away"
        if away.exists() or not self.storage.commits():
            return False
        folder.rename(away)
        if empty := self.chance.random() < 0.5:
            folder.mkdir()
        self.tell(f"    storage: {'empty' if empty else 'gone'}")

        def mount() -> None:
            if folder.exists():  # what was written meanwhile is hidden by the mount
                folder.rename(self.job.folder / f"beneath-{time.monotonic_ns()}")
            away.rename(folder)

        self.later(self.chance.uniform(0.2, 3), mount)
        if self.chance.random() < 0.5:
            self.kill_all_workers()
        return True

    def truncate_commit(self) -> bool:
        intact = [c for c in self.storage.commits() if c.identity not in self.damaged]
        if len(intact) < 2:
            return False
        path = Path(self.storage.path(intact[0])) / "state.pt"
        self.damaged.add(intact[0].identity)
        with contextlib.suppress(OSError), path.open("r+b") as file:
            file.truncate(self.chance.randrange(os.fstat(file.fileno()).st_size))
            return True
        return False

    def jump_clock(self) -> bool:
        """One node's or all nodes' wall clocks, for good; half of the time, the workers die too."""
        nodes = range(NODES)
        if self.chance.random() < 0.6:
            node = self._node()
            if node is None:
                return False
            nodes = range(node, node + 1)
        hours = self.chance.choice((0.0, *(self.chance.uniform(-48, 48) for _ in range(4))))
        for index in nodes:
            new = self.job.folder / "clock.new"
            new.write_text(str(hours * 3600))
            new.rename(self.job.clock(index))
        self.tell(f"    clock of {[*nodes]}: {hours:+.1f} h")
        if self.chance.random() < 0.5:
            self.kill_all_workers()
        return True

    def _memory_of(self, agent: int) -> list[Path]:
        """The slots of its workers."""
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{agent}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if (target := descriptor.readlink()).name == OWNER:
                        return list(target.parent.glob("rank-*"))
        return []

    def _flip(self, path: Path) -> bool:
        """A bit somewhere in it."""
        with contextlib.suppress(OSError), path.open("r+b") as file:
            at = self.chance.randrange(os.fstat(file.fileno()).st_size)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << self.chance.randrange(8)]), at)
            return True
        return False
