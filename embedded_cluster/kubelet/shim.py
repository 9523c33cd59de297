"""A container's outermost process: makes its surroundings, runs its command, leaves nothing behind.

Run as a file with `-I -S`, so that it starts quickly and loads nothing of ours. Its plan (see
process.py) is JSON on standard input. It adopts whatever its descendants orphan, so that all of
them are found whatever they do with sessions and environments; and it ends them with the command,
or with the kubelet, whichever is first. It reports on standard output, a JSON object a line:
{"pid"} or {"error"} once, and at last {"code"}.

Signals: TERM goes to the command; USR1 kills everything; TSTP and CONT freeze and thaw everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

Run = Callable[[Sequence[str]], int]
"""Runs a command in this process; returns its exit code."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x20000, 0x4000000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
# nosuid, nodev, noexec: a user namespace may not take them off a mount it was given.
_LOCKED = 2 | 4 | 8
_KEPT_SIGNALS = {
    *(signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1),
    *(signal.SIGTSTP, signal.SIGCONT),
}
_RESCAN_SECONDS = 0.02
# Devices that no container is given either.
_HIDDEN = re.compile(r"tty.+|vcs.*|loop.*|ram.*|console|kmsg|initctl|log")
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    result = _libc.mount(
        source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data.encode()
    )
    _checked(result, f"mount of {source} at {target}")


# What runs in the container before its command


def _enter_new_namespaces(user: bool, hostname: str) -> None:
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWNS | _CLONE_NEWUTS | (_CLONE_NEWUSER if user else 0)
    _checked(_libc.unshare(flags), "unshare")
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    encoded = hostname.encode()[:64]
    _checked(_libc.sethostname(encoded, len(encoded)), "sethostname")


def _copy(folder: int, onto: str) -> None:
    """Mounts a tmpfs that has all that the open `folder` has, so that more can be added to it."""
    source = f"/proc/self/fd/{folder}"
    # First what the tmpfs itself is in, while there is little in it to be copied with it.
    first = onto.split("/")[1]
    names = sorted(os.listdir(source), key=lambda name: name != first)
    mode = stat.S_IMODE(os.stat(source).st_mode)
    is_dev = os.path.exists(f"{source}/null") and os.path.exists(f"{source}/zero")
    _mount("tmpfs", onto, "tmpfs", 0, f"mode={mode:o}")
    for name in names:
        old, new = f"{source}/{name}", f"{onto}/{name}"
        if is_dev and _HIDDEN.fullmatch(name):
            continue
        if os.path.islink(old):
            os.symlink(os.readlink(old), new)
            continue
        _create(new, folder=os.path.isdir(old))
        _mount(old, new, None, _MS_BIND | _MS_REC)


def _create(path: str, *, folder: bool) -> None:
    if folder:
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _mount_point(target: str, *, folder: bool) -> str:
    """`target`, made where it isn't there, without leaving a trace on the machine."""
    path = os.path.realpath(target)
    covered = False
    parent = "/"
    parts = path.strip("/").split("/")
    for index, part in enumerate(parts):
        here = os.path.join(parent, part)
        if not os.path.lexists(here):
            # The root is a tmpfs of ours already.
            if not covered and parent != "/":
                descriptor = os.open(parent, os.O_PATH | os.O_CLOEXEC)
                _copy(descriptor, parent)
                os.close(descriptor)
            covered = True
            _create(here, folder=folder or index < len(parts) - 1)
        parent = here
    return path


def _mount_volumes(root: str, mounts: list[dict[str, Any]]) -> None:
    # Opened first: one mount may hide the source of another.
    sources = [os.open(mount["source"], os.O_PATH | os.O_CLOEXEC) for mount in mounts]
    machine = os.open("/", os.O_PATH | os.O_CLOEXEC)
    _copy(machine, root)
    os.close(machine)
    os.chroot(root)
    os.chdir("/")
    for mount, descriptor in zip(mounts, sources, strict=True):
        source = f"/proc/self/fd/{descriptor}"
        target = _mount_point(mount["target"], folder=os.path.isdir(source))
        _mount(source, target, None, _MS_BIND | _MS_REC)
        if mount["read_only"]:
            locked = os.statvfs(target).f_flag & _LOCKED
            _mount(source, target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | locked)
        os.close(descriptor)


def _become_the_command(plan: dict[str, Any], errors: int, run: Run | None) -> NoReturn:
    try:
        os.setsid()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        output = os.open(plan["output"], flags, 0o644)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if plan["isolation"]:
            _enter_new_namespaces(plan["isolation"] == "user", plan["hostname"])
            _mount_volumes(plan["root"], plan["mounts"])
        directory = plan["directory"]
        if directory and not os.path.isdir(directory):
            raise OSError(f"workingDir {directory!r} does not exist on this machine")
        if directory or plan["isolation"]:
            os.chdir(directory or plan["home"])
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        command, environment = plan["command"], plan["environment"]
        if run is not None:
            os.close(errors)
            os.environ.clear()
            os.environ.update(environment)
            # As Python has them when it begins.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os._exit(run(command))
        try:
            os.execvpe(command[0], command, environment)
        except FileNotFoundError:
            path = environment.get("PATH", os.defpath)
            raise OSError(
                f"exec: {command[0]!r}: executable file not found in $PATH ({path})"
            ) from None
        except (OSError, ValueError) as error:
            raise OSError(f"exec: {command[0]!r}: {error}") from error
    except BaseException as error:
        os.write(errors, str(error).encode()[:4000] or b"it failed")
    os._exit(127)


# What goes on beside it


def parents() -> dict[int, int]:
    """The parent of every process of this machine.

    Of zombies too: one may only have lost its first thread, and go on with the others.
    """
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    found[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    return found


def ancestors(among: Iterable[int], parents: Mapping[int, int]) -> dict[int, int]:
    """The nearest of `among` above each process that is below one of them, and isn't one itself."""
    nearest = {pid: pid for pid in among}
    for process in parents:
        above, way = process, []
        while above in parents and above not in nearest:
            # For now: pids that were used again meanwhile may lead in a circle.
            nearest[above] = 0
            way.append(above)
            above = parents[above]
        nearest |= dict.fromkeys(way, nearest.get(above, 0))
    return {pid: found for pid, found in nearest.items() if found not in (0, pid)}


def _signal_all(number: signal.Signals) -> None:
    for pid in ancestors([os.getpid()], parents()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _supervise(main: int) -> int:
    """The command's exit code, 128 + number for a signal, once no descendant is left."""
    code: int | None = None
    ending = False
    while True:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == main:
                    ended = os.waitstatus_to_exitcode(status)
                    code = ended if ended >= 0 else 128 - ended
                    ending = True
        except ChildProcessError:
            return 137 if code is None else code
        if ending:
            _signal_all(signal.SIGKILL)
            signal.sigtimedwait(_KEPT_SIGNALS, _RESCAN_SECONDS)
            continue
        match signal.sigwaitinfo(_KEPT_SIGNALS).si_signo:
            case signal.SIGUSR1:
                ending = True
            case signal.SIGTERM:
                os.kill(main, signal.SIGTERM)
            case signal.SIGTSTP:
                _signal_all(signal.SIGSTOP)
            case signal.SIGCONT:
                _signal_all(signal.SIGCONT)


def main(run: Run | None = None) -> int:
    """Return the command's exit code, once nothing of it is left.

    Args:
        run: does, in a fork, what the command would.
    """
    plan = json.load(sys.stdin)

    def tell(**facts: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(facts).encode() + b"\n")

    signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT_SIGNALS)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != plan["parent"]:
        return 137
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _become_the_command(plan, writing, run)
    os.close(writing)
    # Ends with the exec, or with what went wrong before it.
    wrong = b""
    while chunk := os.read(reading, 4096):
        wrong += chunk
    tell(**({"error": wrong.decode(errors="replace")} if wrong else {"pid": child}))
    code = _supervise(child)
    tell(code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
