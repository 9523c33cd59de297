"""SplitState: state of a model that is split over the ranks, and saved with the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.checkpoint.state_value import from_plain
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.metrics.table_load import TableLoad
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.storage import Storage


class SplitState(Protocol):
    """Each rank has a part, which only it changes; so a lost rank's isn't anybody's.

    A step: `begin_batch` and `end_batch` around each batch; `push`, in which ranks exchange what
    they will change; `apply`, which doesn't communicate. Nobody applies a step before all have
    received what they need for it: so who has not applied it, when the round breaks, still can.

    A round: `meet` tells whether the newest state is still whole; when the replicated state is
    there, `level` gives each rank its part of the split one; `move_on`, after each step, what it
    left for later. `hand_over`, after steps that ranks may leave behind, until it has given all;
    `save`, before the replicated state is saved, which has `state_dict` in it.
    """

    name: str
    """Name of its part in a commit."""

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        """Return those whose state it is."""

    @property
    def steps(self) -> int:
        """Return the step that its state is of."""

    def follow(self, data: ElasticData) -> None:
        """Know of each batch whether it counts, in a loop of one's own."""

    def begin_batch(self) -> None: ...

    def end_batch(self, *, counts: bool) -> None:
        """Args:
        counts: False where this rank's batch only kept pace with the others'.
        """

    def push(self, identity: Identity) -> None:
        """Exchange, on all ranks, what the step changes that will be known as `identity`."""

    def apply(self) -> None: ...

    def undo(self) -> None:
        """Forget the batches of a step that broke."""

    def meet(self, group: ProcessGroup, live: Identity) -> bool:
        """Tell whether the ranks still have all parts of the newest state that any has live; else
        a commit is to be restored. On all ranks."""

    def load(self, storage: Storage, saved: Mapping[str, Any]) -> None:
        """Read what this rank can by itself of a state that is about to be restored, after `meet`.

        Args:
            saved: its `state_dict`.

        Raises:
            DamagedError: a part isn't what was written; an older state is restored then.
            StorageError: a part can't be read.
            MismatchError: it is of another model.
        """

    def level(self, identity: Identity, version: int, storage: Storage) -> None:
        """Give each rank its part of the state that `meet` found, or that was restored.

        Raises:
            StorageError: a part can't be read.
        """

    def move_on(self) -> None:
        """Move a bit of what `level` has left where it was. On all ranks, between steps."""

    def hand_over(self, leaving: Sequence[bool]) -> bool:
        """Before some ranks leave: give a bit of their parts to the others, within seconds all.
        Tell whether that is done. On all ranks, between steps.

        Args:
            leaving: by rank, the same on all; more may leave at the next call.
        """

    def loads(self, now: float) -> Mapping[str, TableLoad] | None:
        """Return what this rank holds of each table, where it is time to tell; else None."""

    def save(self, storage: Storage, identity: Identity) -> None:
        """Bring all parts to storage. On all ranks. Raises StorageError, the same on all."""

    def state_dict(self) -> dict[str, Any]:
        """Return where in storage the parts are."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def split_states(model: torch.nn.Module) -> list[SplitState]:
    """Return the split states of a model's modules: those that have a `make_split_state`, called
    once with all modules that name the same."""
    if not isinstance(model, torch.nn.Module):
        return []  # Checkpointer refuses it
    found: dict[Callable[..., SplitState], list[torch.nn.Module]] = {}
    for module in model.modules():
        make = getattr(module, "make_split_state", None)
        if make is not None:
            found.setdefault(make, []).append(module)
    return [make(modules) for make, modules in found.items()]


class SplitStates:
    """All split states of a training, as Checkpointer sees them.

    Args:
        states: one, or several.
    """

    def __init__(self, states: SplitState | Sequence[SplitState]) -> None:
        self._states = states if isinstance(states, Sequence) else (states,)

    def __bool__(self) -> bool:
        return bool(self._states)

    def __iter__(self) -> Iterator[SplitState]:
        return iter(self._states)

    def follow(self, data: ElasticData) -> dict[str, SplitState]:
        """Have all know of each batch whether it counts; return them by name."""
        for one in self._states:
            one.follow(data)
        return {one.name: one for one in self._states}

    def meet(self, group: ProcessGroup, live: Identity) -> Identity:
        """Return the live state of this rank; NOTHING where some part of the newest is nobody's."""
        whole = [one.meet(group, live) for one in self._states]
        return live if all(whole) else NOTHING

    def load(self, storage: Storage, extra: Mapping[str, Any]) -> None:
        """Load what a saved `extra` names. Raises as SplitState.load."""
        for one in self._states:
            if one.name in extra:  # else ModelState refuses it
                one.load(storage, from_plain(extra[one.name]))

    def level(self, identity: Identity, version: int, storage: Storage) -> None:
        for one in self._states:
            one.level(identity, version, storage)

    def save(self, storage: Storage, identity: Identity) -> None:
        for one in self._states:
            one.save(storage, identity)

    def refuse_other_step(self, step: int) -> None:
        """Raises RuntimeError unless all are of this step."""
        for one in self._states:
            if one.steps != step:
                raise RuntimeError(
                    f"the tables are at step {one.steps}, and training at step {step}: expected "
                    "one tables.step() before each checkpointer.step()"
                )
