"""The planner's answer: sizes to change, with reasons, and why others stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from volcano_elastic.cluster_state.queue_figures import QueueFigures
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.snapshot.record import record
from volcano_elastic.snapshot.snapshot import Memory


@record
class Decision:
    """Change `job` from one size to another; when shrinking, exactly these pods leave."""

    job: str
    old: int
    new: int
    reason: Reason
    message: str
    """One sentence for people: what for, with numbers."""
    remove: tuple[str, ...] = ()
    """Keys (namespace/name) of the pods that leave; fewer than old - new if some did not exist."""
    move: tuple[str, ...] = ()
    """Keys of the pods that leave their node, and are made anew elsewhere: the size stays."""
    protect: tuple[str, ...] = ()
    """Pods that must hold the minimum in place of protected ones that leave: they become
    `preemptable: "false"` before the others go."""
    dry_run: bool = False
    """The queue is in mode DryRun: shown, not carried out."""


@record
class Plan:
    """The result of one plan: sizes that change, claims that wait, and facts for the next plan."""

    decisions: tuple[Decision, ...] = ()
    unchanged: Mapping[str, NoChange] = field(default_factory=dict)
    """For every elastic job without a decision."""
    admitted: frozenset[str] = frozenset()
    """Jobs whose claims this plan has seen and served as far as it can: once its decisions are
    carried out their missing minimum pods may be created."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Claims that cannot start even if all surplus left: job or gang key to a sentence."""
    blocked_pods: Mapping[str, str] = field(default_factory=dict)
    """The same of pods that ask for themselves: key to a sentence."""
    resting: Mapping[str, datetime] = field(default_factory=dict)
    """Jobs whose growth stays away since their surplus found no place: key to until when."""
    queues: Mapping[str, QueueFigures] = field(default_factory=dict)
    """Figures that the snapshot shows, before the decisions."""
    memory: Memory = field(default_factory=Memory)
    """For the next snapshot."""
