"""A rank of a sharded training in ElasticLoop, which lives on through rounds, and may be lost at a
chosen point of one; the rounds are those of sharded_round.py."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from elastic_trainer import ElasticLoop, WorkerLink
from elastic_trainer.checkpoint.restorer import Restorer
from elastic_trainer.link.message import StopAt
from elastic_trainer.link.order import Order
from elastic_trainer.loop import round_member
from elastic_trainer.parent_death import die_with
from elastic_trainer.store.slot import Slot

from tests.elastic_trainer.sharded_round import (
    NEVER_SECONDS,
    SHOW_STACKS,
    STEPS,
    Extra,
    Rank,
    Round,
    apply,
    digest,
    make_all,
    make_data,
    train_late,
    whole,
)

DEVICE_VARIABLE = "HARNESS_GPU"
"""Number of a process's GPU; there may be fewer, which then share theirs."""


def run_life(folder: Path, name: str, environment: Mapping[str, str]) -> NoReturn:
    """Train until the training's end, or this process's; in a process that was forked for it.

    Args:
        name: of this process, for its log.
        environment: as an agent gives it to its workers.
    """
    die_with(os.getppid())
    output = os.open(folder / f"log-{name}", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    faulthandler.register(SHOW_STACKS)
    os.environ.update(environment)
    if DEVICE_VARIABLE in environment:
        torch.cuda.set_device(int(environment[DEVICE_VARIABLE]) % torch.cuda.device_count())
    code = 1
    try:
        _Life(folder).train()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Life(Rank):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Round(0, (), 1, 0, 1), 0)
        self._loop: ElasticLoop
        self._extra: Extra = {}
        self._digested = True
        self._unconfirmed: list[dict[str, Any]] = []
        self._asked = False
        """It looked into storage for commits as the round began."""

    def train(self) -> None:
        self._watch()
        self._watch_link()
        torch.set_num_threads(1)
        every = int(os.environ["HARNESS_EVERY"])
        self._loop = loop = ElasticLoop(
            self.folder / "commits",
            make=self._make_round,
            data=make_data(),
            apply=self._apply,
            begin=self._begun,
            every=every,
        )
        for inputs, wanted in loop:
            with loop.step():
                if not self._digested:
                    # Between rounds nobody may communicate, in a body all do.
                    self._digested = True
                    identity = (loop.checkpointer.parent, loop.steps)
                    self.log(kind="restored", identity=identity, **self._seen())
                    if identity != (0, 0):
                        self._log_made(identity)
                train_late(loop.module, loop.steps)
                inputs, wanted = inputs.to(self.round.device), wanted.to(self.round.device)
                error = torch.nn.functional.mse_loss(loop.model(inputs, loop.steps), wanted)
                (loop.weight * error).backward()
                if loop.data.last:
                    self.reach("in a step")
            if loop.stepped:
                self._log_confirmed()
                if loop.steps == STEPS:
                    loop.stop()
        self.log(kind="finished")

    def _log_made(self, identity: tuple[int, int]) -> None:
        """Log the content of a state; on a GPU after the step, as what broke the collectives by
        which it is gathered raises no error."""
        made = digest(self._loop.module, self._loop.optimizer, self._extra)
        self._unconfirmed.append({"kind": "made", "identity": identity, "digest": made})
        if self.round.device == "cpu":
            self._log_confirmed()

    def _log_confirmed(self) -> None:
        for said in self._unconfirmed:
            self.log(**said)
        self._unconfirmed.clear()

    def _make_round(self) -> tuple[torch.nn.Module, torch.optim.Optimizer, Extra]:
        """Begin a round, of which the loop knows its number alone."""
        number = self._loop.link.round
        self.round = pickle.loads((self.folder / f"round-{number}").read_bytes())
        self.rank = int(os.environ["RANK"])
        self._hits, self._mirrored, self.reads = 0, 0, 0
        self._unconfirmed.clear()
        self._restoring, self._asked = True, False
        self._said.close()
        self._said = open(self.folder / f"said-{number}-{self.rank}", "w", buffering=1)  # noqa: SIM115
        model, optimizer, self._extra = make_all(self.round)
        return model, optimizer, self._extra

    def _begun(self, loop: ElasticLoop) -> None:
        self.reach("restored")
        self._restoring = False
        self._digested = False
        if loop.steps == STEPS:  # a node was lost after the last step, which was saved
            identity = (loop.checkpointer.parent, loop.steps)
            self.log(kind="restored", identity=identity, **self._seen())
            loop.stop()

    def _seen(self) -> dict[str, Any]:
        assert self._found is not None
        sources = sorted({source.name for source in self._found.sources})
        threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
        groups = threads.count("gloo_tcp_loop")
        return {"sources": sources, "reads": self.reads, "asked": self._asked, "groups": groups}

    def _apply(self) -> None:
        loop = self._loop
        apply(loop.module, loop.optimizer, self._extra, loop.steps + 1)
        made = (loop.checkpointer.run, loop.steps + 1)
        self._log_made(made)
        if made[1] == STEPS:
            file = io.BytesIO()
            torch.save(whole(loop.module, loop.optimizer, self._extra), file)
            if self.rank == 0:
                (self.folder / "final.new").write_bytes(file.getvalue())
                os.rename(self.folder / "final.new", self.folder / "final")
        if self.round.mirrors and loop.steps + 1 == 2:
            while self._mirrored < self.round.mirrors:
                time.sleep(0.001)
        self.reach("stepped")

    def _watch_link(self) -> None:
        """A fence comes at a step known before; what is saved is verified at once."""
        life = self

        def boundary_known(
            link: WorkerLink, step: int, samples: int = 0, waited: float = 0.0
        ) -> Order:
            if link.over:
                return Order.ABORTED
            if step != life.round.fence:
                return Order.GO
            leaves = life.round.node_of(life.rank) in life.round.leavers
            commit = life.round.all_leave
            link.told = StopAt(1, step, leaves, commit, memory_stays=not leaves)
            return Order.LEAVE if leaves else Order.FENCE

        def saved(_: WorkerLink, path: str, *__: Any, **___: Any) -> None:
            life.reach("in memory")
            assert Slot(Path(path)).verify() is not None
            life.reach("sealed")

        survey = Restorer._take_storage_over

        def surveys(*arguments: Any) -> Any:
            life._asked = True
            return survey(*arguments)

        # A busy machine may let this rank run, and not who is to say that the round is over.
        round_member.ANSWER_SECONDS = NEVER_SECONDS
        Restorer._take_storage_over = surveys  # type: ignore[method-assign]
        WorkerLink.boundary = boundary_known  # type: ignore[method-assign]
        WorkerLink.saved = saved  # type: ignore[assignment,method-assign]
