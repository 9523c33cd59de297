"""torch's stores ask no name service who their clients are."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

CANNOT = 77

SCRIPT = f"""
import ctypes, fcntl, os, socket, struct, sys, tempfile, threading
from elastic_trainer.ranks.reverse_lookup import stop_reverse_lookups
from torch.distributed import TCPStore

libc = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACES = 0x20000 | 0x10000000 | 0x40000000  # mounts, users, network
uid = os.getuid()
if libc.unshare(NEW_NAMESPACES):
    sys.exit({CANNOT})
for name, text in (("setgroups", "deny"), ("uid_map", f"{{uid}} {{uid}} 1")):
    with open(f"/proc/self/{{name}}", "w") as file:
        file.write(text)
resolvers = tempfile.NamedTemporaryFile("w")
resolvers.write("nameserver 127.0.0.1\\noptions timeout:1 attempts:1\\n")
resolvers.flush()
if libc.mount(resolvers.name.encode(), b"/etc/resolv.conf", None, 0x1000, None):  # bind
    sys.exit({CANNOT})
UP, SET_FLAGS = 1, 0x8914
device = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(device, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))

asked = []
service = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
service.bind(("127.0.0.1", 53))
def listen():
    while True:
        asked.append(service.recv(512))  # and answers nothing
if sys.argv[1] == "stopped":
    stop_reverse_lookups()
threading.Thread(target=listen, daemon=True).start()
assert "RES_OPTIONS" not in os.environ
stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
child = os.fork()
if child == 0:
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os._exit(0)
os.waitpid(child, 0)
print(len(asked), flush=True)
os._exit(0)
"""


def questions(which: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, which], capture_output=True, text=True, timeout=120
    )
    if done.returncode == CANNOT:
        pytest.skip("expected a user namespace to be allowed here, with a name service of its own")
    assert done.returncode == 0, done.stderr
    if which == "stopped":
        assert "cannot be retrieved" not in done.stderr
    return int(done.stdout)


def test_stores_ask_no_name_service_once_lookups_are_stopped() -> None:
    assert questions("as torch has it"), "who asks is heard here"
    assert questions("stopped") == 0
