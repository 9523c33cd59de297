"""Forks of processes that use gRPC, such as a data loader's workers."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# In an interpreter of its own: pytest's process has frozen its forks' garbage itself.
_SCRIPT = """
import gc, os
{imports}

gc.disable()  # or the parent might collect it first

class Left:
    def __del__(self):
        os._exit(1)  # where one of gRPC's would wait for ever, or abort

{client}
left = Left()
left.itself = left
del left
child = os.fork()
if not child:
    gc.collect()
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(code)
"""


@pytest.mark.parametrize(
    ("imports", "client"),
    [
        (
            "from elastic_trainer.data.shard_client import ShardClient",
            'ShardClient("127.0.0.1:1", samples=1)',
        ),
        (
            "from elastic_trainer.parameter_server.known_servers import KnownServers",
            'KnownServers("127.0.0.1:1", "", 1.0, lambda _: None, lambda _: None)',
        ),
    ],
    ids=["leases", "parameter servers"],
)
def test_a_fork_collects_nothing_that_its_parent_left(imports: str, client: str) -> None:
    script = _SCRIPT.format(imports=imports, client=client)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
