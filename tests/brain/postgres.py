"""A PostgreSQL server of one's own on loopback, from Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embedded_cluster.readiness import free_port

_PATIENCE_SECONDS = 60


class NotInstalled(Exception):
    """PostgreSQL's programs are not on this machine."""


@dataclass
class Server:
    folder: Path
    programs: Path
    user: str | None
    """Whom it runs as; PostgreSQL refuses root. None: whoever runs this."""
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://brain@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Returns once it takes connections."""
        arguments = ["-D", str(self.folder / "data"), "-p", str(self.port), "-F"]
        arguments += ["-c", "listen_addresses=127.0.0.1", "-k", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.programs / "postgres"), *arguments],
                user=self.user,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        asking = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(_PATIENCE_SECONDS * 10):
            if subprocess.run(asking, check=False).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise RuntimeError(f"PostgreSQL does not start:\n{(self.folder / 'log').read_text()}")

    def stop(self) -> None:
        """Ends it, and all connections with it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(_PATIENCE_SECONDS)
            self.process = None


@contextmanager
def server() -> Iterator[Server]:
    """A server with an empty database.

    Raises:
        NotInstalled: says which program is missing.
    """
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    found = [*packaged, *(Path(one).resolve() for one in [shutil.which("initdb")] if one)]
    programs = next((one.parent for one in found if (one.parent / "pg_isready").exists()), None)
    if programs is None:
        raise NotInstalled("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    user = "postgres" if os.geteuid() == 0 else None
    # Not below a folder of pytest's, which only its user may enter.
    folder = Path(tempfile.mkdtemp(prefix="brain-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        subprocess.run(
            [
                *(str(programs / "initdb"), "-D", str(folder / "data"), "-U", "brain"),
                *("--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            user=user,
            check=True,
            capture_output=True,
            cwd=folder,
        )
        one = Server(folder, programs, user, free_port())
        try:
            one.start()
            yield one
        finally:
            one.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
