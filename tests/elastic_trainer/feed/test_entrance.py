"""An entrance outlasts a lack of descriptors, and holds few who say nothing."""

from __future__ import annotations

import errno
import queue
import socket
import threading

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


def test_who_says_nothing_takes_few_threads_and_goes_once_the_entrance_lets_go() -> None:
    listener, came = Listener(), queue.Queue[socket.socket]()
    door = Entrance(listener, "t", came.put)  # type: ignore[arg-type]
    pairs = [socket.socketpair() for _ in range(entrance.MOST + 1)]
    before = threading.active_count()
    for ours, _ in pairs:
        listener.coming.put(ours)
    turned_away = pairs[-1][1]
    turned_away.settimeout(SECONDS)
    assert turned_away.recv(1) == b""
    assert threading.active_count() <= before + entrance.MOST
    for _, theirs in pairs:
        theirs.close()
    ours, theirs = socket.socketpair()
    theirs.sendall(frame.hello("t"))
    while came.empty():  # those that have gone make room
        listener.coming.put(ours)
        try:
            assert came.get(timeout=1.0) is ours
            break
        except queue.Empty:
            ours, theirs = socket.socketpair()
            theirs.sendall(frame.hello("t"))
    door.close()
