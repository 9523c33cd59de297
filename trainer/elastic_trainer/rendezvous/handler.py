"""The torchrun plug-in `--rdzv-backend=volcano-elastic`.

Every process that imports torch.distributed.elastic loads this module, workers too, so it imports
nothing of ours until a handler is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

if TYPE_CHECKING:
    from elastic_trainer.agent.agent import Agent
    from elastic_trainer.launch.zygote import Zygote

BACKEND = "volcano-elastic"
CHECK_OPTION = "node_check"
"""--rdzv-conf=node_check=1, a PyTorchJob's rdzvConf: nodes are checked before the first round."""
JOIN_SECONDS = 900.0
"""Default for --rdzv-conf=timeout=…: how long to wait for a round."""

_SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_EXIT_BARRIER = "torchelastic/agent/terminal_state/last_member"

log = logging.getLogger(__name__)


def register() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point: what torchrun calls to learn the backend's creator."""
    return create


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Starts this node's agent: zygote, coordinator if it runs here, thread. Main thread only.

    Raises ValueError if the endpoint or an environment variable can't be read.
    """
    from elastic_trainer.agent.agreement import as_the_others
    from elastic_trainer.agent.coordinator_process import CoordinatorProcess
    from elastic_trainer.identity import Identity
    from elastic_trainer.launch import log_folder
    from elastic_trainer.launch.cuda import cuda_is_initialised, initialiser
    from elastic_trainer.launch.launcher import start_workers_from
    from elastic_trainer.launch.zygote import Zygote, preload_names
    from elastic_trainer.ranks.reverse_lookup import stop_reverse_lookups
    from elastic_trainer.rendezvous.command_line import (
        count_processes,
        program_of,
        torchrun_options,
    )

    options = torchrun_options(sys.argv[1:])
    processes = count_processes(options)
    identity = Identity.read(
        parameters.endpoint,
        parameters.min_nodes,
        parameters.max_nodes,
        parameters.run_id,
        parameters.local_addr,
        parameters.get_as_int("node_unit"),
        os.environ,
        sys.argv[1:],
        processes,
        program_of(options),
    )
    stop_reverse_lookups()  # in what it forks, too
    zygote = None
    if os.environ.get("VOLCANO_ELASTIC_WARM", "1") != "0" and "PYTHON_EXEC" not in os.environ:
        if cuda_is_initialised():
            who = initialiser(os.environ)
            log.warning("workers start cold, as a fork could not use a GPU: %s", who)
        else:
            # First of all: nothing of what follows may be in the workers.
            zygote = Zygote.start(preload_names(dict(os.environ)))
    identity = as_the_others(identity)
    coordinator = CoordinatorProcess(identity)
    if identity.pod_index == 0 and identity.may_host:
        coordinator.ensure()

    # NCCL's watchdog ends a worker for a lost peer. Told "1", as torchrun would, it ends the
    # collectives first, so that the worker may still apply what they left, and save it.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from elastic_trainer.agent.agent import Agent
    from elastic_trainer.link.worker_link import ROUND_VARIABLE, SOCKET_VARIABLE
    from elastic_trainer.store.memory_folder import MemoryFolder
    from elastic_trainer.store.slot import MEMORY_VARIABLE

    memory = MemoryFolder.claim(identity.job, identity.pod)
    if memory is not None:
        os.environ[MEMORY_VARIABLE] = str(memory.path)
    # All nodes have the same number of workers, which the coordinator sees to, so torchrun can
    # number them without a store.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    # SIGTERM means leave at the next fence; torchrun, which reads this when it starts workers,
    # would end them at once.
    signals = os.environ.get(_SIGNALS_VARIABLE, "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")
    kept = [name for name in signals if name.strip() != "SIGTERM"]
    os.environ[_SIGNALS_VARIABLE] = ",".join(kept) or "SIGQUIT"
    # A new name moves the C library's table while threads of gRPC read it, and the process is
    # gone: from the agent's start on, names that are there get other values only.
    os.environ |= {SOCKET_VARIABLE: "", ROUND_VARIABLE: "0"}
    agent = Agent(identity, coordinator, memory, None if zygote is None else zygote.launch)
    watched = start_workers_from(zygote, agent.worker_failed, agent.patience, agent.may_end)
    if not watched and zygote is not None:
        zygote.close()
        zygote = None
    atexit.register(_end, agent)  # the last of what is registered from here on
    atexit.register(log_folder.remove_unnamed)  # after torchrun has read its workers' last errors
    os.environ[SOCKET_VARIABLE] = agent.start()
    timeout = parameters.get("timeout")
    handler = ElasticHandler(
        agent,
        zygote,
        parameters.run_id,
        float(timeout) if timeout else JOIN_SECONDS,
        checked=not parameters.get_as_bool(CHECK_OPTION, False),
    )
    handler.take_sigterm()
    return handler


class ElasticHandler(RendezvousHandler):
    """torchrun's questions, answered by the agent."""

    def __init__(
        self,
        agent: Agent,
        zygote: Zygote | None,
        run_id: str,
        timeout: float,
        checked: bool = True,
    ) -> None:
        self._agent = agent
        self._checked = checked
        """No node check is asked for, or it has been held."""
        self._zygote = zygote
        self._run_id = run_id
        self._timeout = timeout
        self._interrupted = False

    def take_sigterm(self) -> None:
        """From now on SIGTERM means leave at the next fence."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self._agent.exit_code is None:
            if self._agent.leaves_by_a_round:
                self._agent.leave()
                return
            self._agent.exit_code = 0
        if not self._interrupted:
            self._interrupted = True
            self._end_if_told()

    def _end_if_told(self) -> None:
        """Also asked where torchrun comes by: what a signal's handler raises interrupts a wait, but
        is lost if it comes in a finalizer or after a fork."""
        if self._agent.exit_code is not None:
            sys.exit(self._agent.exit_code)

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True  # the round's own store, served by the agent of its first node

    def next_rendezvous(self) -> RendezvousInfo:
        from elastic_trainer.agent.errors import DismissedError, PermanentFailureError, RefusedError
        from elastic_trainer.link.worker_link import ROUND_VARIABLE

        self._end_if_told()
        if self._zygote is not None and not self._zygote.wait_ready(self._timeout):
            log.warning("the warm process is not ready; workers will start cold")
        if not self._checked:
            self._checked = True
            self._check_node()
            self._end_if_told()
        try:
            begun = self._agent.join(self._timeout)
        except DismissedError as error:
            log.info("no further round: %s", error)
            sys.exit(0)
        except (PermanentFailureError, RefusedError) as error:
            # An exception would end in the frames of torchrun, which had no part in it.
            sys.exit(f"{BACKEND}: {error}")
        except TimeoutError:
            raise RendezvousTimeoutError(
                f"no round within {self._timeout:.0f} s: fewer than the least number of nodes "
                f"joined at {self._agent.identity.host}:{self._agent.identity.port}"
            ) from None
        os.environ[ROUND_VARIABLE] = str(begun.round)
        rank = begun.rank_of(self._agent.identity.agent)
        assert rank is not None, f"round {begun.round} was sent to an agent that isn't in it"
        return RendezvousInfo(
            _local_store(),
            rank,
            len(begun.members),
            RendezvousStoreInfo(begun.master_address, begun.master_port),
        )

    def _check_node(self) -> None:
        """Takes part in a node check. Whatever comes of it, this node asks for a round then: the
        coordinator knows who is to be in none."""
        from elastic_trainer.node_check.member import Member, launch_cold

        identity = self._agent.identity
        try:
            member = Member.of_agent(
                identity,
                processes=identity.processes,
                launch=launch_cold if self._zygote is None else self._zygote.launch,
            )
            over = member.run(self._timeout, stopped=self._agent.is_ending)
        except Exception:  # a check that cannot run fails no job
            log.exception("node check: it could not be run; nothing is known of this node")
            return
        level = logging.INFO if over.verdict == "proven" else logging.WARNING
        log.log(level, "node check: this node is %s: %s", over.verdict, over.reason)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Rounds end by what agents say, never by closing."""

    def num_nodes_waiting(self) -> int:
        self._end_if_told()
        return int(self._agent.restart_wanted())

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        """Called by torchrun when its workers are done, or on the way out of an error."""
        complete = sys.exc_info()[0] is None
        self._agent.close(complete)
        if complete and self._agent.exit_code is None:
            self._agent.exit_code = 0
        if self._zygote is not None:
            self._zygote.close()
        return True


def _end(agent: Agent) -> None:
    """The interpreter's own end, which takes torch's modules apart, costs over a second of CPU: so
    much longer the pod would keep its place from the next."""
    if agent.exit_code is not None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(agent.exit_code)


def _local_store() -> HashStore:
    """torchrun's agents agree on nothing through it, so none depends on another.

    It asks for its exit barrier's last member: there already, or agents whose last rounds differ
    would wait 300 s for one another.
    """
    store = HashStore()
    store.set(_EXIT_BARRIER, json.dumps(True))
    return store
