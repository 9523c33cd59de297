"""The newest state for every rank of a round, from where it can be had; `recovery.py` decides."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from elastic_trainer.checkpoint.chain import arrange_chain
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.model_state import MismatchError, ModelState
from elastic_trainer.checkpoint.outcome import Outcome
from elastic_trainer.checkpoint.parts import UnreadablePartsError, load_parts
from elastic_trainer.checkpoint.recovery import (
    NOTHING,
    Available,
    Identity,
    Recovery,
    Source,
    Stored,
    choose_recovery_source,
    common_training,
    find_other_training,
    is_contested,
    is_live,
    next_run,
    run_unasked,
    why_not_begin,
)
from elastic_trainer.checkpoint.sharded import Shards
from elastic_trainer.checkpoint.split_read import first_of_each, read_split
from elastic_trainer.checkpoint.split_state import SplitStates
from elastic_trainer.checkpoint.transfer import give, take
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.commit import Commit
from elastic_trainer.store.content import Content
from elastic_trainer.store.errors import OwnershipError, StorageError, UnavailableError
from elastic_trainer.store.ownership import Job
from elastic_trainer.store.replica import STATE, decode_replica, read_replica
from elastic_trainer.store.slot import Label, Slot, SlotError, digest_of_location
from elastic_trainer.store.storage import FIRST_COMMIT, Storage

EARLY_SECONDS = 5.0
"""For so long at most a storage that fails is tried again before live peers are looked for, and
before a contested round goes on without its answer."""
SPLIT_BYTES = 1 << 25
"""Bytes from which on each node reads a part of a commit in storage."""

log = logging.getLogger(__name__)


class _ElsewhereError(Exception):
    """Another rank's part is not what it should be."""


class Restorer:
    """Restores a Checkpointer's state at the beginning of each run.

    Args:
        storage: of the commits.
        state: what is restored; None: `hold` says it later.
        data: the order of the samples, whose group's ranks restore together.
        link: to the agent.
        shards: of a sharded state.
        split: what commits name that is split over the ranks.
        tell: called with a slot and its label, whose state may not be in storage yet.
        resume_from, fresh, wall: as Checkpointer's.
    """

    def __init__(
        self,
        storage: Storage,
        state: ModelState | None,
        data: ElasticData,
        link: WorkerLink,
        shards: Shards | None,
        split: SplitStates,
        *,
        tell: Callable[[Slot, Label], None],
        resume_from: str,
        fresh: bool,
        wall: Callable[[], float],
    ) -> None:
        self._storage, self._data = storage, data
        self._link, self._split, self._tell = link, split, tell
        self.hold(state, shards)
        self._resume_from, self._fresh, self._wall = resume_from, fresh, wall
        self._job = Job.from_environment(os.environ)
        self._place = digest_of_location(storage.location)
        self._looked: tuple[tuple[str, Identity], ...] | None = None
        """States that a newcomer found in memory before its first round."""
        self._commits: tuple[Commit, ...] = ()
        """On rank 0, what storage had when this run began."""
        self.token = uuid.uuid4().hex
        """Token of this process's claims to the storage."""
        self.training = ""
        """Which one this is; empty until it is known."""
        self.run = 0
        """The run that was begun last; see recovery.py."""
        self._stood: tuple[int, Identity] = (0, NOTHING)
        """The round that ended with all ranks' saving of a state, and that state."""
        self._contested = False
        """Others may have gone on from a state that was live here, and storage was not asked."""

    def hold(self, state: ModelState | None, shards: Shards | None) -> None:
        """Restore this from now on; nothing until the next call if None."""
        self._held, self._shards = state, shards
        self._memory: Memory | None = None

    @property
    def _state(self) -> ModelState:
        assert self._held is not None
        return self._held

    @property
    def _group(self) -> ProcessGroup:
        return self._data.group

    def opening(self, memory: Memory | None, live: Identity) -> Available | None:
        """Return what this rank has for the round that it is about to begin, where it is known at
        once; None: it is to look in its memory first, which its agent may still be verifying.

        Args:
            memory, live: as `restore`'s.
        """
        self._begin(memory)
        live = self._trusted(live)
        known = memory is None or live != NOTHING or self._looked is not None
        return self._available(live) if known else None

    def stand(self, identity: Identity) -> None:
        """Know that all ranks have saved this state to memory, and leave their round with it."""
        self._stood = (self._link.round, identity)

    def _begin(self, memory: Memory | None) -> None:
        self._memory = memory
        self._contested = self._contested or self._link.contested

    def _trusted(self, live: Identity) -> Identity:
        return NOTHING if self._link.diverged else live

    def restore(
        self,
        memory: Memory | None,
        live: Identity,
        *,
        share: bool = False,
        spoiled: bool = False,
        said: Sequence[Available | None] = (None,),
    ) -> Recovery:
        """Give every rank the newest state that can be had, and a new run; return which state that
        is, NOTHING where it is the initial one, and where it came from. On all ranks.

        Args:
            memory: of this worker, where there is room in it.
            live: of the state that this rank holds.
            share: where there is no state at all, rank 0's initial one is everybody's.
            spoiled: this process's initial state isn't there any more.
            said: by rank, what `opening` returned in this round; the same on all ranks.

        Raises:
            StorageError, MismatchError: as Checkpointer.
            RuntimeError: a rank was lost, or the initial state is wanted and isn't there.
        """
        self._begin(memory)
        layout = self._state.layout(self._group.gather) if self._state.sharded else ""
        if memory is not None:
            memory.spread_as(layout)
        if self._link.diverged and live != NOTHING:
            log.warning(
                "this rank's state of step %d was found to be another than the others': it takes "
                "theirs",
                live[1],
            )
        live = self._trusted(live)
        everyone = [one for one in said if one is not None]
        if len(everyone) < len(said):
            everyone = self._group.gather(self._available(live))
        if not is_live(everyone) and not all(one.training for one in everyone):
            everyone = self._identify_training(live)
        if not is_live(everyone) and find_other_training(everyone) is not None:
            # Where a store can't create a file exclusively, pods that begin at once all make one:
            # now that all have, the last one counts.
            self.training = ""
            everyone = self._identify_training(live)
        available = everyone[self._group.rank]
        self._refuse_other_training(everyone)
        self.training = common_training(everyone)
        self._storage.adopt(self.training)
        unasked = is_live(everyone) and not is_contested(everyone)
        stored = self._begin_run(everyone, asks=not unasked)
        while True:
            found = choose_recovery_source(everyone, stored, sharded=self._state.sharded)
            reason = why_not_begin(found, everyone, stored)
            if reason is not None and not self._fresh:
                self._give_up(
                    StorageError(
                        f"the checkpoint folder {self._storage.location} can't be used: {reason}. "
                        "Bring back what it held, name another folder, or pass fresh=True to "
                        "train from the beginning"
                    )
                )
            if not found.loads:
                break
            found, content = self._read_split(found, [one.node for one in everyone])
            outcome = self._load(found, available, content)
            outcomes = self._group.gather(replace(outcome, available=Available()))
            self._refuse_outcomes(found, outcomes)
            available = outcome.available
            damaged = next((one.damaged for one in outcomes if one.damaged is not None), None)
            if damaged is None:
                break
            # Once more, without it.
            if Source.STORAGE in found.sources:
                kept = tuple(one for one in stored.commits if one != found.identity)
                stored = replace(stored, commits=kept, unusable=(*stored.unusable, damaged))
            elif found.holders and not outcome.parts_left:
                others_parts = tuple(one for one in available.parts if not found.takes(one[1]))
                available = replace(available, parts=others_parts)
            elif found.mirrors:
                others = tuple(one for one in available.mirrored if one[1] != found.identity)
                available = replace(available, mirrored=others)
            everyone = self._group.gather(available)
            if unasked and not is_live(everyone):  # what was to be whole in memory isn't
                unasked = False
                stored = self._begin_run(everyone, asks=True)
        if share and spoiled and found.identity == NOTHING and found.giver == self._group.rank:
            raise RuntimeError(
                "those whose training this process followed have all ended before their first "
                "commit: expected a new process, which begins with the initial state"
            )
        self._hand_over(found, [one.node for one in everyone], share)
        self._contested, self._looked = stored.unasked, None
        if live not in (NOTHING, found.identity) and Source.STORAGE in found.sources:
            log.warning(
                "step %d of run %d, live here, gave way to step %d of run %d: others had gone on "
                "without this process, and committed it, before they ended",
                *reversed(live),
                *reversed(found.identity),
            )
        return found

    def _begin_run(self, everyone: Sequence[Available], *, asks: bool) -> Stored:
        """Begin a new run; return what storage has where it is asked. On all ranks."""
        stored = Stored(run=next_run(everyone))
        if asks:
            with self._storage.calls.telling(self._link.transferred):
                asked = self._ask_storage(everyone) if self._group.rank == 0 else Stored()
                stored = self._group.from_rank(0, asked)
        if stored.refusal is not None:
            self._give_up(StorageError(stored.refusal))
        self.run = stored.run
        if self._group.rank == 0:
            self._storage.hold(self.run, self.token)
        return stored

    def open_storage_early(self, memory: Memory | None) -> None:
        """Before this process's peers, if it has any yet, wait for it: find out which training the
        folder is of. They may hand the state over where it can't be read here just now.

        An empty folder stays so: whether it is new or has lost what it held, the round may know.

        Raises:
            StorageError: the folder can be read, and can't be used.
        """
        self._memory = memory
        replicated = self._held is not None and not self._held.sharded
        if memory is not None and not self._link.round and replicated:
            # Nobody saves there before this process has a place: the others need not wait for this.
            self._looked = memory.look(ProcessGroup())  # a replicated state asks for no place
        try:
            with self._storage.patience(EARLY_SECONDS):
                self.training = self._open_storage(create=False)
        except UnavailableError as error:
            log.warning("looking for live peers before the checkpoint folder: %s", error)
        except StorageError as error:
            self._give_up(error)

    def _identify_training(self, live: Identity) -> list[Available]:
        """On all ranks: find out from storage, where it isn't known, which training goes on; return
        what every rank has. None can take part without."""
        refusal = None
        if not self.training:
            try:
                with self._storage.calls.telling(self._link.transferred):
                    self.training = self._open_storage()
            except StorageError as error:
                refusal = error
        said = self._group.gather((self._available(live), refusal))
        for _, refused in said:
            if refused is not None:
                self._give_up(refused)
        return [one for one, _ in said]

    def _available(self, live: Identity) -> Available:
        """Return the states that this rank can load from."""
        found = Available(
            live,
            training=self.training,
            host=socket.gethostname(),
            node=f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}",
            # Its own, too: the storage may be claimed for it. Clocks go back, and runs end that
            # nobody here was in.
            last_run=max(int(self._wall()) - 1, self.run, self._link.last_run),
            begun=self.run,
            contested=self._contested,
            slots=self._memory is not None,
        )
        round_, stood = self._stood
        if round_ and round_ + 1 == self._link.round:  # later, others may have gone on from it
            found = replace(found, stood=stood)
        if self._memory is not None and live == NOTHING:
            # What a rank has live is newer than what it has in memory.
            found = replace(
                found,
                memory=self._memory.look(self._group) if self._looked is None else self._looked,
                orphaned=self._memory.orphaned(self.training, self._place) if self.training else (),
            )
            if self._memory.mirror is not None:
                found = replace(
                    found,
                    mirrored=self._memory.mirror.look(self._group),
                    parts=self._memory.parts(),
                )
        return found

    def _open_storage(self, *, create: bool = True) -> str:
        """The training that the folder is of, as this node sees it; empty where it is new and not
        to be created. Raises StorageError."""

        def known() -> str:
            found = self._memory.orphaned("", self._place) if self._memory is not None else ()
            if not found:
                return self._known_commit()
            _, (_, step) = max(found, key=lambda one: one[1])
            return f"this node's memory knows step {step} of a training that was kept there"

        return self._storage.open(
            self._job, self._resume_from, known=known, fresh=self._fresh, create=create
        )

    def _known_commit(self) -> str:
        """Return the round's knowledge of this folder's commits, in words; empty: none."""
        step = self._link.newest_commit(self._place)
        return f"this job's nodes know that step {step} was committed to it" if step >= 0 else ""

    def _why_gone(self) -> str:
        """Return how it is known that there were commits; empty: it isn't. Raises StorageError."""
        if known := self._known_commit():
            return known
        step = self._storage.first_commit()
        if step is None:
            return ""
        which = f"step {step}" if step >= 0 else "a step"
        return f"its {FIRST_COMMIT} says that {which} was committed to it"

    def _ask_storage(self, everyone: Sequence[Available]) -> Stored:
        """By rank 0: what there is to go on from, once nobody else may write any more."""
        if not is_live(everyone):
            try:
                return self._take_storage_over(everyone)
            except StorageError as error:
                return Stored(refusal=str(error))
        try:
            with self._storage.patience(EARLY_SECONDS):
                self._storage.expect(self.training)  # a volume that isn't mounted has no commits
                return self._take_storage_over(everyone)
        except UnavailableError as error:
            log.warning(
                "going on from the live state, though others may have gone on from it, too, and "
                "ended since; if they have committed, no later commit will be taken: %s",
                error,
            )
            return Stored(run=run_unasked(everyone), unasked=True)
        except StorageError as error:
            return Stored(refusal=str(error))

    def _take_storage_over(self, everyone: Sequence[Available]) -> Stored:
        """Raises StorageError."""
        self._storage.prepare()
        least = max(next_run(everyone) - 1, self._data.last_run())
        claim, survey = self._storage.take_over(least, self.token)
        self._storage.own(self._job)
        gone = "" if survey.commits else self._why_gone()
        self._commits = survey.commits
        identities = tuple(commit.identity for commit in survey.commits)
        return Stored(identities, survey.damaged, gone, claim.run)

    def _refuse_other_training(self, everyone: Sequence[Available]) -> None:
        """Refuse a folder that the pods don't share; on all ranks, or, where others have a live
        state, on the one that came with another folder."""
        rank = find_other_training(everyone)
        if rank is None:
            return
        training = common_training(everyone)
        if is_live(everyone):
            if self.training in ("", training):
                return
            rank = self._group.rank
        first, other = everyone[0], everyone[rank]
        self._give_up(
            OwnershipError(
                f"the checkpoint folder {self._storage.location} is not the same in all pods: "
                f"expected training {training}, as rank 0 on {first.host} finds it, rank "
                f"{rank} on {other.host} finds {other.training}; name a folder on a volume "
                "that all pods mount (ReadWriteMany), or a URL"
            )
        )

    def _refuse_outcomes(self, found: Recovery, outcomes: Sequence[Outcome]) -> None:
        for rank, outcome in enumerate(outcomes):
            if outcome.refusal is None:
                continue
            reason = f"rank {rank} can't restore step {found.step}: {outcome.refusal}"
            error = UnavailableError(reason) if outcome.unavailable else MismatchError(reason)
            self._give_up(error)

    def _give_up(self, error: Exception) -> NoReturn:
        """No other try would help: say so to the agent, and raise it."""
        self._link.give_up(str(error))
        raise error

    def _read_split(self, found: Recovery, nodes: Sequence[str]) -> tuple[Recovery, Content | None]:
        """On all ranks: where rank 0 would read a large replicated state from storage for all, have
        a rank of each node read a part of it; return who loads it then, and its file.

        Args:
            nodes: by rank.
        """
        readers = first_of_each(nodes)
        whole = self._state.sharded or Source.STORAGE not in found.sources
        if whole or len(readers) == 1:
            return found, None
        commit = next((one for one in self._commits if one.identity == found.identity), None)
        commit = self._group.from_rank(0, commit)
        if commit is None or STATE not in commit.files or commit.size < SPLIT_BYTES:
            return found, None
        calls = self._storage.calls
        with self._storage.patience(EARLY_SECONDS), calls.telling(self._link.transferred):
            content = read_split(
                self._storage, commit, STATE, readers, self._group, self._link.transferred
            )
        if not any(self._group.gather(content is not None)):
            return found, None
        sources = tuple(
            Source.STORAGE if rank in readers else Source.PEER for rank in range(len(nodes))
        )
        if self._group.rank:
            self._commits = (commit,)
        return replace(found, sources=sources), content

    def _load(
        self, found: Recovery, available: Available, content: Content | None = None
    ) -> Outcome:
        """From this rank's own memory, that of all, or from storage.

        Args:
            content: of the state's file in storage, where it was read with others.
        """
        source = found.sources[self._group.rank]
        try:
            if self._memory is not None:
                self._memory.restore_mirrored(self.training, found)
            if source in (Source.MEMORY, Source.MIRROR):
                self._load_memory(found.identity)
            elif source is Source.PARTS:
                self._load_parts(found)
            elif source is Source.STORAGE:
                with self._storage.calls.telling(self._link.transferred):
                    self._load_storage(found.identity, content)
            else:
                return Outcome(available)
        except _ElsewhereError:
            return Outcome(available, damaged="another rank's part is damaged")
        except UnavailableError as error:
            return Outcome(available, refusal=str(error), unavailable=True)
        except UnreadablePartsError as error:
            log.warning("looking for other parts of step %d: %s", found.step, error)
            mine = {one for one in error.owners if found.holders[one] == self._group.rank}
            parts = tuple(
                (training, part)
                for training, part in available.parts
                if not found.takes(part) or part.owner not in mine
            )
            left = replace(available, parts=parts)
            return Outcome(left, damaged=str(error), parts_left=True)
        except (SlotError, StorageError) as error:
            log.warning("passing over step %d in %s: %s", found.step, source.value, error)
            kept = tuple(one for one in available.memory if one[1] != found.identity)
            return Outcome(replace(available, memory=kept), damaged=str(error))
        except ValueError as error:
            return Outcome(available, refusal=str(error))
        return Outcome(replace(available, live=found.identity))

    def _load_memory(self, identity: Identity) -> None:
        assert self._memory is not None
        problem = found = None
        try:
            found = self._memory.read(self.training, identity, self._state.meshes, self._group)
        except SlotError as error:
            problem = error
        if self._state.sharded and any(self._group.gather(problem is not None)) and not problem:
            raise _ElsewhereError  # nothing was given: parts of two states are no state
        if found is None:
            raise problem or AssertionError
        state, label, slot = found
        self._give(state)
        if label.rank == self._group.rank:
            self._state.give_generators(state)
        if self._memory.saves:
            self._tell(slot, label)  # it may not have come to storage yet

    def _load_parts(self, found: Recovery) -> None:
        """From the memory of all, whose parts are another world's."""
        memory, training = self._memory, self.training

        def read(owner: int) -> dict[str, Any]:
            assert memory is not None
            return memory.read_part(training, found.identity, owner, found.world, found.layout)

        load_parts(self._state, read, found.holders, self._group, self._link.transferred)

    def _load_storage(self, identity: Identity, content: Content | None) -> None:
        if self._shards is not None:
            self._shards.load(identity, self._group)
            return
        commit = next(one for one in self._commits if one.identity == identity)
        if content is not None:
            state = decode_replica(commit, content)
        else:
            state = read_replica(self._storage, commit)
        self._give(state)
        if self._group.rank:
            return
        self._state.give_generators(state)
        self._link.committed(commit.step, commit.round, self._place, commit.size)

    def _give(self, state: dict[str, Any]) -> None:
        """With what it names; where that is damaged, nothing was given."""
        with self._storage.calls.telling(self._link.transferred):
            self._split.load(self._storage, state["extra"])
        self._state.give(state)

    def _hand_over(self, found: Recovery, nodes: Sequence[str], share: bool) -> None:
        """On all ranks: whoever lacks the state gets it.

        Args:
            nodes: by rank.
        """
        takers = found.takers
        if share and found.identity == NOTHING:
            takers = list(range(1, self._group.world))
        giver = found.giver
        if found.sources.count(Source.STORAGE) > 1:  # one of each node has read it
            mates = [rank for rank, one in enumerate(nodes) if one == nodes[self._group.rank]]
            giver, takers = mates[0], [rank for rank in takers if rank in mates]
        relay = arrange_chain(giver, takers, nodes).get(self._group.rank)
        if relay is None or (relay.source is None and relay.next is None):
            # Asked for its state, a sharded model's fresh optimizer that isn't torch's would step.
            return
        if relay.source is None:
            give(self._state.take(), relay, self._link.transferred, lambda: self._link.over)
            return
        state = take(relay, self._link.transferred, lambda: self._link.over)
        try:
            self._state.give(state)
        except ValueError as error:
            self._link.give_up(f"rank {found.giver} trains something else: {error}")
            raise
