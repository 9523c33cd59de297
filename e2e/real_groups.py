"""Control groups (version 1) for pods of tests, as a container runtime makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elastic_trainer.agent.control_group import ROOT

_GROUP = f"volcano-elastic-test-{os.getpid()}"
_CONTROLLERS = ("cpuacct", "memory")
_ENTER = """\
for controller in cpuacct memory; do
    folder="$0/$controller/$1/$HOSTNAME"
    mkdir -p "$folder"
    if [ "$controller" = memory ] && [ "$2" != 0 ]; then
        echo "$2" > "$folder/memory.limit_in_bytes"
    fi
    echo 0 > "$folder/cgroup.procs"
done
shift 2
exec "$@"
"""


class NoGroupsError(Exception):
    """This machine lets nobody make such groups; says why."""


def entered(memory: int = 0) -> list[str]:
    """Return the words that go before a container's command, so that it is in groups of its own.

    Args:
        memory: bytes that it may have; 0: any.
    """
    return ["sh", "-c", _ENTER, str(ROOT), _GROUP, str(memory)]


def command_in(words: Sequence[str]) -> Sequence[str]:
    """Return the command alone where `entered` put words before it, but bounded no memory: a fork
    is not asked for the memory that it shares."""
    begins = [*words[:3], *words[5:6]]
    return words[6:] if begins == ["sh", "-c", _ENTER, "0"] else words


def enter(words: Sequence[str]) -> None:
    """Do in this process what the words do that `entered` put before a command."""
    root, group = words[3:5]
    for controller in _CONTROLLERS:
        folder = Path(root, controller, group, os.environ["HOSTNAME"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("0")


@contextmanager
def made() -> Iterator[None]:
    """Lets pods make groups, and removes them.

    Raises:
        NoGroupsError: they can't.
    """
    parents = [ROOT / name / _GROUP for name in _CONTROLLERS]
    try:
        for parent in parents:
            parent.mkdir()
    except OSError as error:
        raise NoGroupsError(f"no control group of version 1 can be made: {error}") from error
    try:
        yield
    finally:
        for parent in parents:
            for folder in (*(one for one in parent.iterdir() if one.is_dir()), parent):
                folder.rmdir()
