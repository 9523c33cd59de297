"""The state of a training: taken from model, optimizer and data, and given back to them."""

from __future__ import annotations

import copy
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch
import xxhash
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.nn.parallel import DataParallel, DistributedDataParallel

from elastic_trainer.checkpoint.refusal import (
    refuse_fsdp1,
    refuse_sharded_extra,
    refuse_unsaved_in_backward,
    refuse_zero,
    sharded_tensors,
)
from elastic_trainer.checkpoint.replicas import layouts, number_parts
from elastic_trainer.checkpoint.sharded_extra import (
    Described,
    ExtraMismatchError,
    empty_targets,
    find_unplaced,
    join,
    take_apart,
)
from elastic_trainer.checkpoint.sharded_optimizer import (
    NotedState,
    OptimizerMismatchError,
    empty_state,
    load_optimizer,
    stepped_state,
    take_state,
)
from elastic_trainer.checkpoint.state_value import from_plain, own, to_plain
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.store.blob import MeshKey, mesh_key
from elastic_trainer.store.digest import REPLICATED

log = logging.getLogger(__name__)

DIGESTS_VARIABLE = "VOLCANO_ELASTIC_DIGESTS"
"""0: states of ranks are not compared, as where their arithmetic differs."""
SHOWN = 5
"""Differences that a message lists."""
_OTHERS = "Restore the script that wrote it, or start in a new folder"


class MismatchError(ValueError):
    """The checkpoint is of another model, optimizer or data set."""


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class ModelState:
    """Takes and gives the state that a commit is made of. Replicated: any rank's is everybody's.
    Sharded (DTensor parameters, as fully_shard makes them): a rank's is its own part.

    State dicts are `{"model", "optimizer", "extra", "cursor"}`, and `REPLICATED` of one that is.

    Raises:
        TypeError: no module, or no optimizer.
        ValueError: the optimizer is of other parameters, or `extra` holds sharded tensors beside a
            model that isn't sharded.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: ElasticData,
        extra: Mapping[str, Stateful],
    ) -> None:
        _refuse_wrong_parts(model, optimizer, extra)
        for module in (model, *extra.values()):
            if isinstance(module, torch.nn.Module):
                refuse_fsdp1(module)
        refuse_zero((optimizer, *extra.values()))
        refuse_unsaved_in_backward(model, (optimizer, *extra.values()))
        self.model = _unwrapped(model)
        self.optimizer = optimizer
        self.data = data
        self.extra = dict(extra)
        # Found now: within a forward pass the parameters are whole, and no DTensors.
        parameters = [one for one in self.model.parameters() if isinstance(one, DTensor)]
        self.sharded = bool(parameters)
        held = [one for part in extra.values() for one in sharded_tensors(part)]
        for name, part in extra.items():
            if not self.sharded:
                refuse_sharded_extra(name, part)
        self._spread = layouts([*parameters, *held])
        named: list[tuple[str, DTensor]] = [("", one) for one in held]
        for name, parameter in self.model.named_parameters():
            if isinstance(parameter, DTensor):
                named.append((name, parameter))
        self._spread_here = [
            (name, mesh_key(one.device_mesh), str(one.placements)) for name, one in named
        ]
        """How this rank sees its tensors spread, by name."""
        self._numbers: list[int] = []
        """Numbers of all ranks' parts in this world; none until they are asked for."""
        self.meshes: dict[MeshKey, DeviceMesh] = {
            mesh_key(one.device_mesh): one.device_mesh for one in (*parameters, *held)
        }
        _warn_of_schedule(optimizer, extra)

    def part(self, rank: int, world: int) -> tuple[int, int]:
        """Return the number of this rank's part of the state, and how many parts there are."""
        if not self.sharded:
            return 0, 1
        if len(self._numbers) != world:
            self._numbers = number_parts(self._spread, world)
        return self._numbers[rank], max(self._numbers) + 1

    def layout(self, gather: Callable[[str], list[str]]) -> str:
        """Return a digest of how a sharded state is spread over its ranks, the same on all.

        Args:
            gather: returns, on all ranks, what each gave it, by rank.
        """
        said = gather(repr(self._spread_here))
        return xxhash.xxh3_64_hexdigest(repr(said).encode())

    def take(self) -> dict[str, Any]:
        """Return the state, which shares its memory with the model.

        Raises:
            StateValueError: part of it couldn't be brought back.
            ValueError: `extra` has sharded tensors that couldn't.
        """
        if self.sharded:
            # By parameter names, which another world knows too, where torch has numbers.
            model = get_model_state_dict(self.model)
            optimizer = take_state(self.model, self.optimizer)
        else:
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        state = {
            "model": to_plain(model),
            "optimizer": to_plain(optimizer),
            "extra": {name: to_plain(part.state_dict()) for name, part in self.extra.items()},
            "cursor": self.data.state_dict(),
        }
        for name, part in self.extra.items():
            saved = state["extra"][name]
            if not self.sharded or find_unplaced(part, saved) is not None:
                refuse_sharded_extra(name, saved)
        if self.sharded:
            take_apart(state["extra"])  # raises where names are ambiguous
        promised = not self.sharded and os.environ.get(DIGESTS_VARIABLE) != "0"
        return {**state, REPLICATED: self._replicated()} if promised else state

    def _replicated(self) -> dict[str, Any]:
        """Return what every rank has alike by what a model promises: all parameters but those that
        DistributedDataParallel was told to leave alone."""
        ignored = set(getattr(self.model, "_ddp_params_and_buffers_to_ignore", ()))
        given = dict(self.model.named_parameters(remove_duplicate=False))
        left_out = {id(given[name]) for name in ignored & given.keys()}
        trained = [one for group in self.optimizer.param_groups for one in group["params"]]
        ours = {id(one) for one in given.values()} - left_out
        return {
            "model": [name for name in sorted(given) if id(given[name]) in ours],
            "optimizer": [number for number, one in enumerate(trained) if id(one) in ours],
        }

    def give(self, state: Mapping[str, Any], *, owned: bool = False) -> None:
        """Copies it.

        Args:
            owned: its sharded tensors are nobody else's: the optimizer keeps them uncopied.

        Raises:
            MismatchError: it is another model's or optimizer's; nothing was changed.
            ValueError: it was made with other data, see ElasticData.load_state_dict.
        """
        self._compare(state)
        model = _given(state["model"])
        if self.sharded:
            set_model_state_dict(self.model, model)
            # The optimizer keeps the tensors that it loads.
            kept: dict[str, Any] = {}
            optimizer = state["optimizer"]
            if owned:
                optimizer, kept = take_apart(optimizer)
            try:
                load_optimizer(self.model, self.optimizer, join(from_plain(optimizer), kept))
            except OptimizerMismatchError as error:
                raise MismatchError(f"{error}. {_OTHERS}") from None
        else:
            self.model.load_state_dict(model)
            _load_optimizer(self.optimizer, state["optimizer"])
        for name, part in self.extra.items():
            part.load_state_dict(from_plain(state["extra"][name]))
        self.data.load_state_dict(state["cursor"])

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Take over what is not in tensors, of a replicated state whose tensors are those that
        `take` returned here, or hold the same.

        Raises:
            ValueError: as `give`.
        """
        self._compare(state)
        if not _is_live(self.model, state["model"]):
            self.model.load_state_dict(_given(state["model"]))
        _adopt_optimizer(self.optimizer, state["optimizer"])
        for name, part in self.extra.items():
            saved = state["extra"][name]
            if not (isinstance(part, torch.nn.Module) and _is_live(part, saved)):
                part.load_state_dict(from_plain(saved))
        self.data.load_state_dict(state["cursor"])

    @property
    def complete(self) -> bool:
        """The optimizer has its state, which most make at their first step."""
        return bool(self.optimizer.state)

    def capture(self) -> dict[str, Any]:
        """Return what a save holds: the state, as `take`, and this rank's generators."""
        return {**self.take(), "rng": self.generators()}

    def generators(self) -> dict[str, torch.Tensor]:
        """States of torch's random generators of this rank, and of no GPU but the model's."""
        found = {"cpu": torch.get_rng_state()}
        if (gpu := self._gpu()) is not None:
            found["cuda"] = torch.cuda.get_rng_state(gpu)
        return found

    def _gpu(self) -> torch.device | None:
        """Return the model's first GPU."""
        devices = (one.device for one in self.model.parameters())
        return next((device for device in devices if device.type == "cuda"), None)

    def steady(self) -> dict[int, set[torch.Tensor]]:
        """Return what only the application of a step changes, by the address of its memory: the
        parameters that optimizers have, and the optimizers' state for them. Of a sharded tensor
        both it and this rank's part, whose changes torch counts apart."""
        optimizers = [
            one
            for one in (self.optimizer, *self.extra.values())
            if isinstance(one, torch.optim.Optimizer)
        ]
        held = list[Any]()
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                held += [parameter, *(state.values() if isinstance(state, dict) else ())]
            for group in optimizer.param_groups:
                held += group["params"]
        found = defaultdict[int, set[torch.Tensor]](set)
        with torch.no_grad():  # else a part is a new view of it
            for one in held:
                if isinstance(one, torch.Tensor):
                    here = one.to_local() if isinstance(one, DTensor) else one
                    found[here.data_ptr()] |= {one, here}
        return found

    def give_generators(self, state: Mapping[str, Any]) -> None:
        """To the rank that saved them. Others keep what their script seeded: alike ones would drop
        out alike."""
        torch.set_rng_state(state["rng"]["cpu"])
        if "cuda" in state["rng"] and (gpu := self._gpu()) is not None:
            torch.cuda.set_rng_state(state["rng"]["cuda"], gpu)

    def compare_model(self, found: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Raises MismatchError unless these are the shapes and dtypes of the model's state."""
        described = {name: _described(*one) for name, one in found.items()}
        _refuse("the model", _shapes(get_model_state_dict(self.model)), described)

    def targets(
        self,
        noted: NotedState | None = None,
        groups: Any = None,
        names: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return model and optimizer of a state, as `take`, to load its sharded tensors into; the
        optimizer's may be new ones, which it is yet to be given.

        Args:
            noted, groups: the optimizer's saved state and its `param_groups`, where they are known,
                see sharded_optimizer.py.
            names: else, the parameters that it has a state of; None: of all, perhaps.

        Raises:
            MismatchError: it is another optimizer's.
        """
        model = to_plain(get_model_state_dict(self.model))
        optimizer = None
        if noted is not None:
            optimizer = empty_state(self.model, self.optimizer, noted, groups, model)
            names = noted.values.keys()
        if optimizer is None:
            try:
                optimizer = to_plain(stepped_state(self.model, self.optimizer, names))
            except OptimizerMismatchError as error:
                raise MismatchError(f"{error}. {_OTHERS}") from None
        return {"model": model, "optimizer": optimizer}

    def extra_targets(
        self, noted: Mapping[str, Any], described: Mapping[str, Described]
    ) -> dict[str, DTensor]:
        """Return tensors of this world, by name, to load those of `extra` into that are sharded.

        Args:
            noted: the `extra` of a state, see sharded_extra.py.
            described: by name, shapes and dtypes that there are.

        Raises:
            MismatchError: it is another script's.
        """
        try:
            return empty_targets(noted, self.extra, described)
        except ExtraMismatchError as error:
            raise MismatchError(f"{error}. {_OTHERS}") from None

    def _compare(self, state: Mapping[str, Any]) -> None:
        if not self.sharded:  # else it was done before it was read
            _refuse(
                "the model", _shapes(to_plain(self.model.state_dict())), _shapes(state["model"])
            )
        if not self.sharded:
            found = state["optimizer"]["param_groups"]
            _refuse(
                f"the optimizer ({type(self.optimizer).__name__})",
                _groups(self.optimizer.state_dict()["param_groups"]),
                _groups(found),
            )
        here, there = set(self.extra), set(state["extra"])
        if not here <= there:
            raise MismatchError(
                f"the checkpoint has no extra {sorted(here - there)}: expected {sorted(here)}, "
                f"found {sorted(there)}; start in a new folder, or leave them out"
            )


def _given(saved: dict[str, Any]) -> dict[str, Any]:
    """Return a module's state as its load_state_dict takes it."""
    model = copy.copy(saved)
    for name in model:
        if name.endswith(_EXTRA_STATE_KEY_SUFFIX):  # kept by the module; the others it copies
            model[name] = from_plain(model[name])
    return model


def _load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Like optimizer.load_state_dict, but values come back as they were saved.

    torch's own turns every float tensor into the parameter's dtype (bfloat16 for NAdam's running
    product), and other values into dicts and generators; and it keeps tensors that need no copy,
    which may be views of a slot.
    """
    optimizer.load_state_dict(dict(state))
    memory: dict[Any, torch.Tensor] = {}
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for key, value in saved.items():
            if key != "params" and not isinstance(value, torch.Tensor):
                group[key] = from_plain(value, memory)
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            held = optimizer.state.get(parameter, {})
            for key, value in state["state"].get(number, {}).items():
                if key in held:
                    held[key] = _exact(held[key], value, memory)


def _is_live(module: torch.nn.Module, state: Mapping[str, Any]) -> bool:
    """Return whether a module's state is its own memory, so that there is nothing to load."""
    live = {one.data_ptr() for one in (*module.parameters(), *module.buffers())}
    return all(isinstance(one, torch.Tensor) and one.data_ptr() in live for one in state.values())


def _adopt_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Set what differs from the optimizer's own state."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        _load_optimizer(optimizer, state)
        return
    memory: dict[Any, torch.Tensor] = {}
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for key, value in saved.items():
            if key != "params":
                group[key] = _same(group.get(key), value, memory)
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            values = state["state"].get(number, {})
            held = optimizer.state[parameter] if values else {}
            for key, value in values.items():
                held[key] = _same(held.get(key), value, memory)


def _same(held: Any, saved: Any, memory: dict[Any, torch.Tensor]) -> Any:
    """Return what is held, where that is what was saved, else a copy of that."""
    both = isinstance(saved, torch.Tensor) and isinstance(held, torch.Tensor)
    if both and held.dtype == saved.dtype and held.data_ptr() == saved.data_ptr():
        return held
    return from_plain(saved, memory)


def _exact(held: Any, saved: Any, memory: dict[Any, torch.Tensor]) -> Any:
    """Return what the optimizer holds where that is a copy of `saved`, else such a copy."""
    if isinstance(saved, torch.Tensor) and isinstance(held, torch.Tensor):
        if held.dtype == saved.dtype and held.data_ptr() != saved.data_ptr():
            return held
        return own(saved, memory).to(held.device)
    if type(saved) in (list, tuple) and len(held) == len(saved):
        return type(saved)(_exact(*pair, memory) for pair in zip(held, saved, strict=True))
    return from_plain(saved, memory)


def _refuse_wrong_parts(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Mapping[str, Stateful]
) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}: expected a torch.optim.Optimizer"
        )
    saved = [model, *(part for part in extra.values() if isinstance(part, torch.nn.Module))]
    known = {id(parameter) for part in saved for parameter in part.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = [parameter for parameter in given if id(parameter) not in known]
    if strangers:
        shapes = ", ".join(str(tuple(one.shape)) for one in strangers[:SHOWN])
        raise ValueError(
            f"the optimizer ({type(optimizer).__name__}) has {len(strangers)} of {len(given)} "
            f"parameters that the model ({type(model).__name__}) hasn't, of shape {shapes}"
            f"{', …' if len(strangers) > SHOWN else ''}: expected one of model.parameters(). Make "
            "it of this model, after what replaces its parameters (fully_shard); put "
            "other modules that it trains into `extra`, or they aren't saved"
        )


def _warn_of_schedule(optimizer: torch.optim.Optimizer, extra: Mapping[str, Stateful]) -> None:
    """A scheduler that is made of an optimizer replaces its `step`, and leaves a mark there."""
    scheduled = hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched")
    if scheduled and not any(hasattr(part, "get_last_lr") for part in extra.values()):
        log.warning(
            "the optimizer has a learning rate scheduler, and extra has none: it would begin anew "
            "at each restart. Expected extra={'schedule': scheduler, ...}"
        )


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module, so that a commit loads into any wrapping."""
    while isinstance(model, DistributedDataParallel | DataParallel):
        model = model.module
    return model


def _shapes(state: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: _described(tuple(value.shape), value.dtype)
        if isinstance(value, torch.Tensor)
        else type(value).__name__
        for name, value in state.items()
    }


def _described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{shape} {str(dtype).removeprefix('torch.')}"


def _groups(groups: list[dict[str, Any]]) -> dict[str, str]:
    return {
        f"parameter group {number}": f"{len(group['params'])} parameters"
        for number, group in enumerate(groups)
    }


def _refuse(what: str, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    differences = [
        f"{name}: expected {expected.get(name, 'none')}, found {found.get(name, 'none')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if differences:
        more = len(differences) - SHOWN
        raise MismatchError(
            f"the checkpoint doesn't fit {what}: {'; '.join(differences[:SHOWN])}"
            f"{f'; and {more} more' if more > 0 else ''}. {_OTHERS}"
        )
