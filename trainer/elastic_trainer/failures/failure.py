"""Gathers the evidence of a failed worker before torchrun removes it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_trainer.failures.failure_rule import FailureRule
from elastic_trainer.failures.node_fault import ended_by_a_peer, node_fault
from elastic_trainer.failures.record import OUT_OF_MEMORY, signal_name
from elastic_trainer.failures.termination_log import TERMINATION_BYTES, TERMINATION_LOG
from elastic_trainer.link import error_file
from elastic_trainer.protocol.message import Failed

KEPT_LOGS = 20
"""Attempts of this node's workers whose output is kept."""
_KEPT = "failed"


@dataclass(frozen=True, kw_only=True)
class Exit:
    """A worker's process that ended with another code than 0, by itself."""

    round: int
    rank: int
    local_rank: int
    pid: int
    code: int
    time: float
    """Unix seconds."""
    error_file: str
    note: str = ""
    """Why it was killed, where its starter did."""


def describe(
    exit_: Exit,
    *,
    oom_killed: bool,
    note: str = "",
    log: str = "",
    rules: Sequence[FailureRule] = (),
) -> Failed:
    """The worker's own words where it left some, else what the kernel says.

    Args:
        oom_killed: the kernel killed a process of this container for memory meanwhile.
        note: why this agent killed it, if it did.
        rules: rows that go before the table of node_fault.py.
    """
    recorded = error_file.read(exit_.error_file)
    message, stack, time, error, step = note, "", exit_.time, "", -1
    if recorded is not None:
        message, stack, time = recorded.message, recorded.stack, recorded.time
        error, step = recorded.error, recorded.step
    elif exit_.code == -9 and oom_killed and not note:
        message = OUT_OF_MEMORY
    elif not note:
        name = signal_name(exit_.code)
        message = f"killed by {name}" if name else f"exited with code {exit_.code}, without a word"
    rule = next((one for one in rules if one.applies(f"{message}\n{stack}", exit_.code)), None)
    if rule is not None:
        fault = rule.what if rule.failure_class == "hardware" else ""
        nobodys = rule.failure_class == "interruption"
    else:
        fault, nobodys = node_fault(message, stack, exit_.code), ended_by_a_peer(message, stack)
    return Failed(
        round=exit_.round,
        rank=exit_.rank,
        local_rank=exit_.local_rank,
        pid=exit_.pid,
        code=exit_.code,
        message=message,
        stack=stack,
        time=time,
        log=log,
        error="" if fault or nobodys else error,
        step=step,
        node_fault=fault,
    )


def keep_logs(exit_: Exit) -> str:
    """Keep the output of this attempt, which torchrun removes when the next one begins; return
    where.

    Hard links, in a folder beside the attempts; empty where the output goes with the agent's own.
    """
    attempt = Path(exit_.error_file).parent
    kept = attempt.parent.parent / _KEPT / f"round-{exit_.round}-rank-{exit_.rank}-{exit_.pid}"
    try:
        logs = [attempt / name for name in ("stdout.log", "stderr.log")]
        logs = [path for path in logs if exit_.error_file and path.is_file()]
        if not logs:
            return ""
        kept.mkdir(parents=True, exist_ok=True)
        for path in [*logs, Path(exit_.error_file)]:
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(path, kept / path.name)
        folders = sorted(kept.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in folders[:-KEPT_LOGS]:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return ""
    return str(kept)


def write_termination_message(
    failures: list[Failed], reason: str | None, path: Path = TERMINATION_LOG
) -> None:
    """Writes what Kubernetes shows as the container's termination message, if there is such a file.

    Args:
        reason: why the agent gives up; its own workers may not have failed at all.
    """
    text = f"{reason}\n" if reason else ""
    if failures:
        first = failures[0]
        text += f"round {first.round}, rank {first.rank}: {first.message}\n{first.stack}"
    if not text or not path.is_file():
        return
    with contextlib.suppress(OSError):
        path.write_bytes(text.encode()[:TERMINATION_BYTES])
