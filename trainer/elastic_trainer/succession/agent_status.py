"""An agent's word to others of itself and the coordinator that it follows; data only."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_trainer.protocol.message import Member


@dataclass(frozen=True)
class AgentStatus:
    """An agent's word of itself and the coordinator that it follows."""

    job: str
    agent: str
    term: int
    address: str
    """HOST:PORT of the coordinator; empty: it knows none."""
    hosts: bool
    """It runs the coordinator, or is about to start it again."""
    heard: bool
    """It hears from the coordinator."""
    round: int = 0
    """The newest that it knows of; 0: none."""
    stays: bool = True
    """It takes part in further rounds."""


@dataclass(frozen=True)
class Found:
    """The answer to a question to a member."""

    status: AgentStatus | None = None
    gone: bool = False
    """Its process has ended: nobody listens, or another agent does."""
    closed: bool = False
    """It closed the connection without an answer, as a process that is ending does."""

    @property
    def term(self) -> int:
        return self.status.term if self.status is not None else 0


@dataclass(frozen=True)
class EndedPods:
    """Pods that have ended for good, as the job's owner says."""

    addresses: frozenset[str] = frozenset()
    """Where no other pod of the job is."""
    pods: frozenset[tuple[str, int]] | None = None
    """Address and index of each; None from an owner that tells addresses alone."""

    def have(self, member: Member) -> bool:
        """Tell whether a member's pod is one of them. On hostNetwork pods share an address."""
        if self.pods is not None:
            return (member.address, member.pod_index) in self.pods
        return member.address in self.addresses


def read_address(text: str) -> tuple[str, int]:
    """Raises ValueError for anything but HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"expected HOST:PORT, found {text!r}")
    return host.strip("[]"), int(port)
