"""Lets a node's storage fail and its wall clock jump for processes that have this on PYTHONPATH.

FAULTY_STORAGE_FOLDER names the folder that fails, FAULTY_STORAGE_FILE the file that says how: one
of `EIO`, `ESTALE`, `503`, `full`, `read-only` and `slow`. The system calls' wrappers of `os` and
`open` are replaced, beneath all that the trainer does with them.

FAULTY_CLOCK_FILE holds the seconds by which `time.time` and `time.time_ns` are wrong. Monotonic
clocks are right, as they are where a real clock is set.

FAULTY_NETWORK says by which ways this node's agent reaches others, see fault_network.py.
"""

import asyncio.base_events
import builtins
import errno
import io
import json
import os
import socket
import time

_SLOW_SECONDS = 0.1
_open = builtins.open
_time_ns = time.time_ns


def _meet(path, writes):
    try:
        name = os.fspath(path)
    except TypeError:
        return  # a descriptor
    folder = os.environ.get("FAULTY_STORAGE_FOLDER", "")
    if not folder or not isinstance(name, str) or not name.startswith(folder):
        return
    try:
        with _open(os.environ["FAULTY_STORAGE_FILE"]) as file:
            kind = file.read()
    except OSError:
        return
    if kind == "slow":
        time.sleep(_SLOW_SECONDS)
    elif kind == "503":
        raise TimeoutError("503 Slow Down")
    elif kind in ("EIO", "ESTALE"):
        number = getattr(errno, kind)
        raise OSError(number, os.strerror(number), name)
    elif writes and kind in ("full", "read-only"):
        number = errno.ENOSPC if kind == "full" else errno.EROFS
        raise OSError(number, os.strerror(number), name)


def _wrapped(function, writes):
    def call(path=".", *arguments, **given):
        _meet(path, writes)
        return function(path, *arguments, **given)

    return call


def _opened(path, mode="r", *arguments, **given):
    _meet(path, writes=any(letter in mode for letter in "wxa+"))
    return _open(path, mode, *arguments, **given)


for _name, _writes in {
    "listdir": False,
    "scandir": False,
    "mkdir": True,
    "rename": True,
    "link": True,
    "unlink": True,
    "rmdir": True,
}.items():
    setattr(os, _name, _wrapped(getattr(os, _name), _writes))
builtins.open = io.open = _opened


def _wrong_time_ns():
    try:
        with _open(os.environ["FAULTY_CLOCK_FILE"]) as file:
            seconds = float(file.read())
    except (KeyError, OSError):
        seconds = 0.0
    return _time_ns() + int(seconds * 1e9)


time.time_ns = _wrong_time_ns
time.time = lambda: _wrong_time_ns() / 1e9


_getaddrinfo = socket.getaddrinfo
_ipaddr_info = asyncio.base_events._ipaddr_info


def _way(host, port):
    told = os.environ.get("FAULTY_NETWORK", "")
    network = json.loads(told) if told else {}
    if not isinstance(port, int) or host not in network.get("nodes", {}):
        return host
    if port == network["port"]:
        return network["ways"][host]
    if port == network["port"] + 2:
        try:
            with _open(network["parted"]) as file:
                parted = json.load(file)
        except OSError:
            parted = []
        if sorted((network["node"], network["nodes"][host])) in parted:
            return network["nowhere"]
    return host


socket.getaddrinfo = lambda host, port, *more, **given: _getaddrinfo(
    _way(host, port), port, *more, **given
)
asyncio.base_events._ipaddr_info = lambda host, port, *more, **given: _ipaddr_info(
    _way(host, port), port, *more, **given
)
