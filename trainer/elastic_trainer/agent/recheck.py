"""This node's part in node checks between rounds, in a thread beside the agent's own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from elastic_trainer.identity import Identity

if TYPE_CHECKING:
    from elastic_trainer.node_check.member import Launch

log = logging.getLogger(__name__)

SECONDS = 600.0
"""For a check; the coordinator ends it before."""
END_SECONDS = 3.0
"""For a trial's processes to end."""


class Recheck:
    """Takes part in one check at a time, the newest.

    Args:
        launch: starts a trial's processes; None: new interpreters.
    """

    def __init__(self, identity: Identity, launch: Launch | None) -> None:
        self._identity, self._launch = identity, launch
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, host: str, port: int) -> None:
        """The coordinator that serves its agents at HOST:PORT leads a check."""
        self.end()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(host, port + 1, self._stop), name="node check", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Leaves the check, if there is one, without waiting."""
        self._stop.set()

    def close(self) -> None:
        """Leaves it, and waits for its processes to end."""
        self.end()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _run(self, host: str, port: int, stop: threading.Event) -> None:
        from elastic_trainer.node_check.member import Member, launch_cold

        identity = self._identity
        try:
            member = Member(
                agent=identity.agent,
                node=identity.node,
                pod_index=identity.pod_index,
                address=identity.address,
                host=host,
                port=port,
                token=identity.token,
                processes=identity.processes,
                launch=self._launch or launch_cold,
            )
            over = member.run(SECONDS, stopped=stop.is_set)
        except Exception:  # a check that cannot run fails no job
            log.exception("node check: it could not be run; nothing is known of this node")
            return
        if not stop.is_set():
            log.info("node check: this node is %s: %s", over.verdict, over.reason)
