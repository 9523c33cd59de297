"""Guards kubelet/prepared.py: a forked container is like any other, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# In a process of its own, since only one without threads may fork containers.
PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path
from embedded_cluster.kubelet import shim
from embedded_cluster.kubelet.prepared import PreparedPython
from embedded_cluster.kubelet.process import Command, ProcessRuntime

folder = Path(sys.argv[1])

async def main(prepared):
    def command(name, *words):
        variables = {"TOLD": name, "PATH": os.defpath}
        return Command([sys.executable, "-m", "echo", *words], variables, folder / name)

    async with ProcessRuntime(plain=True, prepared=prepared) as runtime:
        ends = await (await runtime.start(command("ends", "a", "b"))).end
        sleeps = await runtime.start(command("sleeps", "sleep"))
        while not (folder / "sleeps").read_text():
            await asyncio.sleep(0.02)
        forked = sleeps.pid in shim.ancestors([os.getpid()], shim.parents())
        runtime.kill(sleeps)
        killed = await sleeps.end
        orphaned = await runtime.start(command("orphaned", "sleep"))
        while not (folder / "orphaned").read_text():
            await asyncio.sleep(0.02)
        os.kill(orphaned.shim.pid, 9)
        lost = await orphaned.end
        again = await (await runtime.start(command("again"))).end
        left = shim.ancestors([os.getpid()], shim.parents()).keys() - {prepared.pid}
        cold = await (await runtime.start(
            Command(["sh", "-c", "echo cold; exit 3"], {"PATH": os.defpath}, folder / "cold")
        )).end
    print(json.dumps([ends.code, forked, killed.code, lost.code, again.code, cold.code, len(left)]))

asyncio.run(main(PreparedPython("tests.embedded_cluster.kubelet.prepared_echo")))
"""


@pytest.mark.process
def test_a_forked_container_ends_is_killed_and_lost_like_another(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    ends, forked, killed, lost, again, cold, left = json.loads(done.stdout)
    assert (ends, killed, lost, again, cold) == (7, 137, 137, 7, 3)
    assert forked and left == 0, "nothing is left of what was killed"
    assert (tmp_path / "ends").read_text().split()[1:] == ["ends", "a", "b"]
