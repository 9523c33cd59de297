"""Running a script in a forked process as `python` would run it in a fresh one."""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import os
import runpy
import sys
import threading
import types
from collections.abc import Sequence
from types import TracebackType

from elastic_trainer.link import error_file


def run_as_main(arguments: Sequence[str]) -> int:
    """`python ARGUMENTS`: options -u and -m, then the script or module and its arguments.

    Returns the exit code after exit handlers ran; the caller calls os._exit with it.
    """
    rest = list(arguments)
    module = False
    while rest and rest[0] in ("-u", "-m"):
        option = rest.pop(0)
        if option == "-m":
            module = True
            break
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    code = 0
    try:
        if module:
            _run_module(rest)
        else:
            _run_script(rest)
    except SystemExit as error:
        code = exit_code(error)
    except BaseException as error:
        error_file.write(type(error), error, _own_frames_removed(error.__traceback__))
        sys.excepthook(type(error), error, _own_frames_removed(error.__traceback__))
        code = 1
    return _finish(code)


def exit_code(error: SystemExit) -> int:
    """Return the code that `python` would exit with; print a message given as code."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _run_module(rest: list[str]) -> None:
    sys.argv = rest
    sys.path[0] = os.getcwd()
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


def _run_script(rest: list[str]) -> None:
    path = rest[0]
    sys.argv = rest
    if not os.path.isfile(path) or not path.endswith(".py"):
        runpy.run_path(path, run_name="__main__")
        return
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=os.path.abspath(path),
        __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __spec__=None,
    )
    # Kept for good, unlike runpy's: what the script defines must be found by pickle and by exit
    # handlers.
    sys.modules["__main__"] = main
    with open(path, "rb") as source:
        code = compile(source.read(), path, "exec")
    exec(code, main.__dict__)


def _own_frames_removed(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        trace = trace.tb_next
    return trace


def _finish(code: int) -> int:
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            code = code or 120  # as python does for output that can't be written
    return code
