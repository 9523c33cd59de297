"""Warm workers: a process forked from torchrun's, with torch imported, that forks the workers.

It is forked before this process has threads, sockets or CUDA, and gets none of them: it imports,
then waits. A worker is its fork: a new session, the caller's environment, working directory,
arguments and output, the script as `__main__`. The kernel kills zygote and workers with their
parent, so none outlives its torchrun.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from elastic_trainer.launch.cuda import cuda_is_initialised
from elastic_trainer.parent_death import die_with

PRELOAD_VARIABLE = "VOLCANO_ELASTIC_PRELOAD"
"""Modules (comma-separated) that a pod's workers will import, beside the ones below; a name with a
minus before it is left out."""

PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.optim",
    "torch.distributed.tensor",
    "torch._dynamo",  # the first optimizer imports it, which takes as long as torch itself
    "elastic_trainer.link.worker_link",
    "elastic_trainer.checkpoint",
    "elastic_trainer.data",
    "elastic_trainer.loop.loop",
)

_HEAD = struct.Struct("!I")
_PR_SET_NAME = 15


class ZygoteError(RuntimeError):
    """The zygote is gone; workers have to be started cold."""


class ZygoteProcess:
    """A worker, with as much of `subprocess.Popen` as torch's handlers use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended: float | None = None
        """When it ended, in Unix seconds."""
        self._connection = connection

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                answer = self._connection.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("worker", timeout or 0.0) from None
            except OSError:
                answer = b""
            # No answer: the zygote died, and the kernel killed its children with it.
            code, _, ended = answer.decode().partition(" ")
            self.returncode = int(code) if code else -signal.SIGKILL
            self.ended = float(ended) if ended else None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Zygote:
    """The parent's end."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.pid = pid
        self._control = control
        self._ready = False
        self._dead = False
        self._launching = threading.Lock()

    @classmethod
    def start(cls, preload: Sequence[str]) -> Zygote:
        """Forks it. To be called before this process starts any thread."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                ours.close()
                _serve(theirs, parent, preload)
            os._exit(1)
        theirs.close()
        return cls(ours, pid)

    def wait_ready(self, timeout: float) -> bool:
        """Return whether it has imported everything within `timeout` seconds."""
        if not self._ready and not self._dead:
            self._control.settimeout(timeout)
            try:
                self._ready = self._control.recv(1) == b"r"
                self._dead = not self._ready
            except TimeoutError:
                return False
            except OSError:
                self._dead = True
        return self._ready

    def launch(
        self, arguments: Sequence[str], environment: dict[str, str], outputs: Sequence[int]
    ) -> ZygoteProcess:
        """Starts `python ARGUMENTS`; `outputs` are the file descriptors of stdout and stderr.
        Any thread may.

        Raises ZygoteError if the zygote is gone or isn't ready.
        """
        with self._launching:
            return self._launch(arguments, environment, outputs)

    def _launch(
        self, arguments: Sequence[str], environment: dict[str, str], outputs: Sequence[int]
    ) -> ZygoteProcess:
        if not self.wait_ready(0.0):
            raise ZygoteError("the zygote is not ready")
        ours, theirs = socket.socketpair()
        request = json.dumps(
            {"arguments": list(arguments), "environment": environment, "cwd": os.getcwd()}
        ).encode()
        try:
            self._control.settimeout(10.0)
            socket.send_fds(self._control, [_HEAD.pack(len(request))], [theirs.fileno(), *outputs])
            self._control.sendall(request)
            ours.settimeout(10.0)
            answer = _receive(ours, _HEAD.size)
        except (OSError, EOFError) as error:
            self._dead, self._ready = True, False
            ours.close()
            raise ZygoteError(f"the zygote doesn't answer: {error}") from error
        finally:
            theirs.close()
        return ZygoteProcess(ours, _HEAD.unpack(answer)[0])

    def close(self) -> None:
        """Ends it, and with it every worker it started."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def preload_names(environment: dict[str, str]) -> list[str]:
    """The modules to import before the first fork, in order."""
    wished = [name.strip() for name in environment.get(PRELOAD_VARIABLE, "").split(",")]
    unwanted = {name[1:] for name in wished if name.startswith("-")}
    added = [name for name in wished if name and not name.startswith("-")]
    return [name for name in (*PRELOADED, *added) if name not in unwanted]


# ---- in the zygote


def _serve(control: socket.socket, parent: int, preload: Sequence[str]) -> NoReturn:
    die_with(parent)
    _name("ve-zygote")
    os.setpgid(0, 0)  # a terminal's Ctrl-C is for torchrun, which then tells the workers
    _forget_handlers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a tenth of the time of imports, which leave hardly any garbage
    for name in preload:
        try:
            importlib.import_module(name)
        except Exception as error:
            if not isinstance(error, ImportError):
                print(f"volcano-elastic: cannot preload {name}: {error!r}", file=sys.stderr)
        if cuda_is_initialised():
            print(
                f"volcano-elastic: importing {name} initialises CUDA, so no worker can be forked "
                f"after it: workers start cold; leave it out with {PRELOAD_VARIABLE}=-{name}",
                file=sys.stderr,
            )
            os._exit(1)
    _leave_libraries_to_the_end()
    gc.freeze()  # a collection in a worker must not touch, hence copy, every inherited page
    control.sendall(b"r")

    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    children: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fd == wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _reap(children)
            else:
                _start(control, children, (wake_read, wake_write))


def _leave_libraries_to_the_end() -> None:
    """Have no worker take back, as it exits, what torch's operators registered at their import.

    That takes 30 ms of CPU, for which its agent waits, and the process ends anyway.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = finalizer.peek()
        # Not all that can be called has a module, such as a dict's __delitem__.
        if found is not None and getattr(found[1], "__module__", "") == "torch.library":
            finalizer.atexit = False


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection = children.pop(pid, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                code = os.waitstatus_to_exitcode(status)
                connection.sendall(f"{code} {time.time()}".encode())
            connection.close()


def _start(
    control: socket.socket, children: dict[int, socket.socket], own: tuple[int, int]
) -> None:
    capacity = socket.CMSG_LEN(3 * array.array("i").itemsize)
    head, ancillary, _, _ = control.recvmsg(_HEAD.size, capacity)
    if not head:
        os._exit(0)  # torchrun closed its end
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    while len(head) < _HEAD.size:
        head += _receive(control, _HEAD.size - len(head))
    request = json.loads(_receive(control, _HEAD.unpack(head)[0]))
    connection = socket.socket(fileno=descriptors[0])
    zygote = os.getpid()
    session_read, session_write = os.pipe()
    # Python drops what a fork's child is sent before it runs; a blocked signal waits for it.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        for descriptor in (session_write, *descriptors[1:]):
            os.close(descriptor)
        # Who is told of the worker may signal its group, which is there once it has its session.
        os.read(session_read, 1)
        os.close(session_read)
        connection.sendall(_HEAD.pack(pid))
        children[pid] = connection
        return
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        _forget_handlers()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with(zygote)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        for descriptor in (session_read, session_write, *own):
            os.close(descriptor)
        control.close()
        connection.close()
        for other in children.values():
            other.close()
        code = _become(request, descriptors[1:])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


# ---- in the worker


def _become(request: dict[str, Any], outputs: Sequence[int]) -> int:
    """Runs the script as its interpreter would have; the exit code."""
    from elastic_trainer.launch.script import run_as_main
    from elastic_trainer.link.stack import offer_stack

    for target, descriptor in zip((1, 2), outputs, strict=False):
        os.dup2(descriptor, target)
        if descriptor > 2:
            os.close(descriptor)
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    _name(f"ve-worker-{os.environ.get('RANK', '0')}")
    if (wished := os.environ.get("OMP_NUM_THREADS")) and wished != threads:
        # OpenMP read the variable when torch was imported.
        sys.modules["torch"].set_num_threads(int(wished))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # not the zygote's, which every worker would share
    gc.enable()
    offer_stack()
    return run_as_main(request["arguments"])


def _forget_handlers() -> None:
    """Reset signal handlers, as exec does: the parent's are for its own code."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    deadline = time.monotonic() + 10.0
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part or time.monotonic() > deadline:
            raise EOFError(f"expected {size} bytes, found the end after {len(data)}")
        data += part
    return data
