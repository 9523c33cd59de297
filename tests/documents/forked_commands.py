"""Commands that need torch, begun as forks of a process that has imported it.

They are `python` and `torchrun`, first on PATH: each would else import torch for seconds of CPU,
dozens of times. Where no torch is needed, `python` begins an interpreter of its own. The pods of
`volcano-elastic local run` are forks, too, unless COLD_PODS_VARIABLE is set.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic_trainer.launch.zygote import ZygoteProcess

from tests.elastic_trainer import nursery
from tests.elastic_trainer.nursery import Nursery

# Asks for a fork, passes signals on to it, and ends as it ends.
_COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "torchrun":
    words = ["-m", "torch.distributed.run", *words]
elif not words[:1] or not (words[0].endswith(".py") or "elastic_trainer" in " ".join(words[:2])):
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = json.dumps([os.getcwd(), words, dict(os.environ)]).encode()
socket.send_fds(server, [b"-"], [1, 2])
server.sendall(asked + b"\\n")
answers = server.makefile()
fork = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(fork, number))
code = int(answers.readline())
sys.exit(code if code >= 0 else 128 - code)
"""

COLD_PODS_VARIABLE = "PODS_BEGIN_COLD"

_VOLCANO_ELASTIC = """#!{python}
import functools, os, sys
from volcano_elastic.cli.main import main
if sys.argv[1:3] == ["local", "run"] and not os.environ.get({variable!r}):
    from embedded_cluster import cluster
    forked = ("--prepared", "e2e.prepared")
    cluster.LocalCluster = functools.partial(cluster.LocalCluster, kubelet_arguments=forked)
main()
"""

_FORK = """import os, sys
from elastic_trainer.launch.script import run_as_main
os.chdir(sys.argv[1])
sys.exit(run_as_main(sys.argv[2:]))
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """Yield the folder that belongs first on PATH; with it ends all that was begun by it."""
    # Here, as the kernel ends it with the thread that began it.
    forking = nursery.shared()
    address, script = folder / "socket", folder / "fork.py"
    script.write_text(_FORK)
    programs = folder / "programs"
    programs.mkdir()
    command = _COMMAND.format(python=sys.executable, address=str(address))
    own = _VOLCANO_ELASTIC.format(python=sys.executable, variable=COLD_PODS_VARIABLE)
    for name, text in {"python": command, "torchrun": command, "volcano-elastic": own}.items():
        assert (Path(sys.executable).parent / name).exists(), name
        program = programs / name
        program.write_text(text)
        program.chmod(0o755)
    begun: list[ZygoteProcess] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        serve = threading.Thread(target=_serve, args=(server, forking, script, begun), daemon=True)
        serve.start()
        try:
            yield programs
        finally:
            for process in begun:
                process.send_signal(signal.SIGKILL)
            server.shutdown(socket.SHUT_RDWR)


def _serve(
    server: socket.socket, forking: Nursery, script: Path, begun: list[ZygoteProcess]
) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        arguments = (connection, forking, script, begun)
        threading.Thread(target=_begin, args=arguments, daemon=True).start()


def _begin(
    connection: socket.socket, forking: Nursery, script: Path, begun: list[ZygoteProcess]
) -> None:
    with connection, connection.makefile("rw") as stream:
        _, (stdout, stderr), _, _ = socket.recv_fds(connection, 1, 2)
        with open(stdout, "wb") as log, open(stderr, "wb") as errors:
            folder, words, variables = json.loads(stream.readline())
            process = forking.start([str(script), folder, *words], variables, log, errors)
        begun.append(process)
        print(process.pid, file=stream, flush=True)
        print(process.wait(), file=stream, flush=True)
