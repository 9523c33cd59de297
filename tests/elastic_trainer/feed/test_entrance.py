"""An entrance outlasts a lack of descriptors, and holds few who say nothing."""

from __future__ import annotations

import errno
import queue
import socket
import threading

import pytest
from elastic_trainer.feed import entrance, frame
from elastic_trainer.feed.entrance import Entrance

SECONDS = 30.0


class Listener:
    """Hands out what is put to it; raises it if that is an error."""

    def __init__(self) -> None:
        self.coming: queue.Queue[socket.socket | OSError] = queue.Queue()

    def accept(self) -> tuple[socket.socket, str]:
        came = self.coming.get()
        if isinstance(came, OSError):
            raise came
        return came, ""

    def shutdown(self, _: int) -> None:
        self.coming.put(OSError(errno.EINVAL, "shut down"))

    def close(self) -> None:
        return


def test_who_comes_after_descriptors_ran_out_is_let_in() -> None:
    listener, came = Listener(), queue.Queue[socket.socket]()
    door = Entrance(listener, "t", came.put)  # type: ignore[arg-type]
    for _ in range(2):
        listener.coming.put(OSError(errno.EMFILE, "Too many open files"))
    ours, theirs = socket.socketpair()
    theirs.sendall(frame.hello("t"))
    listener.coming.put(ours)
    assert came.get(timeout=SECONDS) is ours
    door.close()
    for one in (ours, theirs):
        one.close()


def test_who_says_nothing_takes_few_threads_and_others_wait_until_it_has_gone() -> None:
    listener, came = Listener(), queue.Queue[socket.socket]()
    door = Entrance(listener, "t", came.put)  # type: ignore[arg-type]
    silent = [socket.socketpair() for _ in range(entrance.MOST)]
    before = threading.active_count()
    for ours, _ in silent:
        listener.coming.put(ours)
    newcomer, theirs = socket.socketpair()
    theirs.sendall(frame.hello("t"))
    listener.coming.put(newcomer)
    with pytest.raises(queue.Empty):
        came.get(timeout=0.1)
    assert threading.active_count() <= before + entrance.MOST
    silent[0][1].close()
    assert came.get(timeout=SECONDS) is newcomer
    door.close()
    for one in (theirs, newcomer, *(there for _, there in silent)):
        one.close()
