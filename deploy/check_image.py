"""Runs a Containerfile's commands here, by `python -m deploy.check_image FILE`.

No image is built and no base is asked for: the commands run in a mount namespace of their own,
where /opt is empty, with this machine's Python. Then what the image starts is asked for its help,
as the image's user, with /opt read-only. Needs root, and takes minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SOURCE = "/opt/.source"
"""The build's folder; gone before anything starts."""
_PYTHON = "/opt/.python"
"""Folder of the interpreter that the base image would bring: always here, as a virtual environment
writes down where its own is."""


class CheckFailed(Exception):
    """A Containerfile says what is not known here, or a command of it failed."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction of a Containerfile with its words, comments left out."""
    whole = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not (line.strip() or whole):
            continue
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            name, _, words = whole.strip().partition(" ")
            yield name, words.strip()
            whole = ""


def script(text: str, root: Path, python: str, empty: Path) -> str:
    """Return the shell script that does what a Containerfile of a build and a last stage says.

    Args:
        python: see `run`.
        empty: a folder that becomes /opt. On a disk: what is installed may take gigabytes.

    Raises:
        CheckFailed: one of its instructions isn't known here.
    """
    lines = [
        "set -eu",
        f"mount --bind {shlex.quote(str(empty))} /opt",
        f"mkdir {_SOURCE} {_PYTHON}",
        f"ln -s {shlex.quote(python)} {_PYTHON}/python",
        f"cd {_SOURCE}",
    ]
    environment: list[str] = []
    user, started, stages = "0:0", ["true"], 0
    for name, words in instructions(text):
        if name == "FROM":
            stages += 1
        elif name == "COPY" and stages == 1:
            *sources, target = shlex.split(words)
            # The target is a folder, or takes the name of its one source.
            lines += [f"mkdir -p {shlex.quote(target)}"] if len(sources) > 1 else []
            names = " ".join(shlex.quote(str(root / source)) for source in sources)
            lines.append(f"cp -r {names} {shlex.quote(target)}")
        elif name == "COPY" and words.startswith("--from=build "):
            _, source, target = words.split()
            if source != target or not source.startswith("/opt/"):
                raise CheckFailed(f"COPY {words}: expected one folder below /opt, in its place")
        elif name == "RUN":
            lines.append(words)
        elif name == "ENV":
            environment += shlex.split(words)
        elif name == "USER":
            user = words
        elif name in ("ENTRYPOINT", "CMD"):
            started = [str(word) for word in json.loads(words)]
        elif name not in ("ARG", "WORKDIR"):
            raise CheckFailed(f"{name}: expected an instruction that this check knows")
    uid, _, gid = user.partition(":")
    asked = started if "--help" in started else [*started, "--help"]
    lines += [
        *("cd /", f"rm -r {_SOURCE}"),
        "find /opt -type f -print0 | sort -z | xargs -0 sha256sum >&3",
        "mount -o remount,bind,ro /opt",
        *(f"export {one.partition('=')[0]}={_expanded(one)}" for one in environment),
        f"exec setpriv --reuid {uid} --regid {gid or uid} --clear-groups -- {shlex.join(asked)}",
    ]
    return "\n".join(lines) + "\n"


def _expanded(pair: str) -> str:
    return f'"{pair.partition("=")[2]}"'


def run(file: Path, python: str, moment: int) -> str:
    """Run a Containerfile's commands; return all files that they made, one a line: digest, name.

    Args:
        python: the interpreter that the base image would bring.
        moment: SOURCE_DATE_EPOCH.

    Raises:
        CheckFailed: see `script`; or a command failed, with its last words.
    """
    if (closed := closed_to_others(Path(python))) is not None:
        raise CheckFailed(
            f"expected an interpreter that the image's user may run, found {python} behind "
            f"{closed}, which is closed to others: name another by --python"
        )
    with tempfile.TemporaryDirectory(prefix="volcano-elastic-image-") as folder:
        os.chmod(folder, 0o755)
        empty, listed = Path(folder) / "opt", Path(folder) / "files"
        empty.mkdir(mode=0o755)
        text = script(file.read_text(), ROOT, python, empty)
        environment = os.environ | {
            "PATH": f"{_PYTHON}:/usr/sbin:/usr/bin:/sbin:/bin",
            "SOURCE_DATE_EPOCH": str(moment),
        }
        with listed.open("wb") as files:
            done = subprocess.run(
                ["unshare", "--mount", "bash", "-c", f"exec 3>&{files.fileno()}\n{text}"],
                env=environment,
                pass_fds=[files.fileno()],
                capture_output=True,
                text=True,
            )
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise CheckFailed(f"{file.name}: its commands ended with {done.returncode}:\n{last}")
        return listed.read_text()


def closed_to_others(program: Path) -> Path | None:
    """Return the first of a program's folders, or the program, that other users may not enter or
    run; None: they may."""
    real = program.resolve()
    parts = (*reversed(real.parents), real)
    return next((part for part in parts if not part.stat().st_mode & 0o001), None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="a Containerfile")
    parser.add_argument("--python", default="/usr/bin/python3", help="default %(default)s")
    parser.add_argument("--twice", action="store_true", help="and compare what was made")
    given = parser.parse_args(arguments)
    try:
        made = [run(given.file, given.python, 0) for _ in range(1 + given.twice)]
    except CheckFailed as error:
        print(error, file=sys.stderr)
        return 1
    digest = hashlib.sha256(made[0].encode()).hexdigest()
    print(f"{given.file.name}: its commands work here; sha256 of all files: {digest}")
    differing = different(made[0], made[-1])
    if differing:
        print(f"made otherwise the second time: {', '.join(differing[:20])}", file=sys.stderr)
        print(f"{len(differing)} of {len(made[0].splitlines())} files", file=sys.stderr)
    return int(bool(differing))


def different(first: str, second: str) -> list[str]:
    """Return the names of files that two runs did not both make with one digest."""
    lines = set(first.splitlines()) ^ set(second.splitlines())
    return sorted({line.partition("  ")[2] for line in lines})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
