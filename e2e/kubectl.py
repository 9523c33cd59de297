"""kubectl as its users run it: a command with a kubeconfig, a namespace and an exit code."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

_SECONDS = 240.0


class Kubectl:
    """`await kubectl("get", "pods")` is what it printed; the test fails if the command did.

    `home` takes kubectl's cache, apart from the user's own. Skips the test without kubectl.
    """

    def __init__(self, kubeconfig: Path, home: Path, namespace: str = "default") -> None:
        if shutil.which("kubectl") is None:
            pytest.skip("no kubectl on PATH")
        self.namespace = namespace
        self._command = ("kubectl", "--kubeconfig", str(kubeconfig), "--namespace", namespace)
        self._environment = {**os.environ, "HOME": str(home)}

    async def __call__(self, *arguments: str, stdin: dict[str, Any] | None = None) -> str:
        code, out, err = await self._run(arguments, stdin)
        assert code == 0, f"kubectl {' '.join(arguments)}: exit code {code}\n{out}{err}"
        return out

    async def warned(self, *arguments: str, stdin: dict[str, Any] | None = None) -> list[str]:
        """The warnings it printed; the test fails if the command did."""
        code, out, err = await self._run(arguments, stdin)
        assert code == 0, f"kubectl {' '.join(arguments)}: exit code {code}\n{out}{err}"
        lines = err.splitlines()
        return [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: ")]

    async def refused(self, *arguments: str, stdin: dict[str, Any] | None = None) -> str:
        """Return what it said on standard error; fail the test if the command succeeded."""
        code, out, err = await self._run(arguments, stdin)
        assert code != 0, f"kubectl {' '.join(arguments)} was expected to fail, and said\n{out}"
        return err

    async def _run(
        self, arguments: tuple[str, ...], stdin: dict[str, Any] | None
    ) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        given = None if stdin is None else yaml.safe_dump(stdin).encode()
        try:
            out, err = await asyncio.wait_for(process.communicate(given), _SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            pytest.fail(f"kubectl {' '.join(arguments)}: no end within {_SECONDS:.0f} s")
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()
