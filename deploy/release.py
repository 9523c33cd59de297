"""Makes a release on this machine: `make release VERSION=0.2.0`. Nothing is published.

Wheels, chart and kubectl plugin are built from the last commit with the new version in it; only
when that worked are the version and the changelog's date committed here, and the commit tagged.
Left to do: push commit and tag, and upload what lies in dist/VERSION.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from deploy import oci_layout
from deploy.sbom import bill

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = "CHANGELOG.md"
CHART, KREW = "deploy/chart", "deploy/krew"
IMAGES = {"volcano-elastic": "operator", "volcano-elastic-trainer": "trainer"}
"""By the distribution in it, which of deploy/*-requirements.txt pins what else is."""
VERSIONED: Mapping[str, str] = {
    "pyproject.toml": r'(?m)^version = "(.*)"$',
    "trainer/pyproject.toml": r'(?m)^version = "(.*)"$',
    "manifests/base/kustomization.yaml": r"(?m)^ +newTag: (.*)$",
    "manifests/dashboard/kustomization.yaml": r"(?m)^ +newTag: (.*)$",
    "manifests/brain/kustomization.yaml": r"(?m)^ +newTag: (.*)$",
    "examples/digits.yaml": r"image: volcano-elastic-trainer:(.*)",
    "examples/clicks.yaml": r"image: volcano-elastic-trainer:(.*)",
    "deploy/operator.Containerfile": r"volcano-elastic-operator:(\S+) ",
    "deploy/trainer.Containerfile": r"volcano-elastic-trainer:([^\s)]+)",
    "deploy/krew/kubectl-elastic": r"(?m)^version=(.*)$",
    "deploy/chart/Chart.yaml": r'(?m)^(?:version|appVersion): "?([^"\n]*)"?$',
}
"""Every file that names the version, and where."""
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_UNRELEASED = re.compile(r"(?ms)^## Unreleased\n(.*?)(?=^## |\Z)")


class ReleaseError(Exception):
    """There is no release; says what to do first."""


def present(files: Mapping[str, str]) -> str:
    """Return the version that all files name.

    Raises:
        ReleaseError: they differ, or one names none.
    """
    found = {name: set(re.findall(VERSIONED[name], files[name])) for name in VERSIONED}
    versions = set().union(*found.values())
    if len(versions) != 1 or not all(found.values()):
        said = "; ".join(f"{name}: {', '.join(sorted(v)) or 'none'}" for name, v in found.items())
        raise ReleaseError(f"expected one version in all files, found {said}; make them agree")
    return str(versions.pop())


def released(files: Mapping[str, str], version: str, today: date) -> dict[str, str]:
    """Return the files as they are in the release.

    Args:
        files: those of VERSIONED and the changelog, by name.

    Raises:
        ReleaseError: the version is none, or goes back; the changelog says nothing of it.
    """
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"expected a version such as 0.2.0, found {version!r}")
    now = present(files)
    if _number(version) < _number(now):
        raise ReleaseError(f"expected a version from {now} on, found {version}")
    changelog = files[CHANGELOG]
    unreleased = _UNRELEASED.search(changelog)
    if unreleased is None or not unreleased[1].strip():
        raise ReleaseError(
            f'{CHANGELOG}: expected what is new under "## Unreleased", found nothing; write it'
        )
    if f"## {version} " in changelog:
        raise ReleaseError(f"{CHANGELOG}: {version} is there already; choose a later version")
    heading = f"## Unreleased\n\n## {version} ({today.isoformat()})\n"
    made = {CHANGELOG: changelog.replace("## Unreleased\n", heading, 1)}
    for name, pattern in VERSIONED.items():

        def new(match: re.Match[str]) -> str:
            begin, end = match.start(1) - match.start(), match.end(1) - match.start()
            return match[0][:begin] + version + match[0][end:]

        made[name] = re.sub(pattern, new, files[name])
    return made


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def build_wheels(source: Path, out: Path, moment: int) -> list[Path]:
    """Build both distributions of a checkout, which setuptools leaves a folder build/ in.

    Args:
        moment: the files' time in the wheels, in seconds of the epoch.

    Raises:
        ReleaseError: what the build said.
    """
    for folder in (source, source / "trainer"):
        command = [sys.executable, "-m", "uv", "build", "-q", "--wheel", "--no-build-isolation"]
        command += ["--python", sys.executable, "--out-dir", str(out), str(folder)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise ReleaseError(f"{folder.name}: {done.stderr.strip()}")
    return sorted(out.glob("*.whl"))


def pack_chart(source: Path, out: Path, version: str, moment: int) -> Path:
    """Pack the chart as `helm package` does, with the files that its links lead to."""
    folder = source / CHART
    files = {
        f"volcano-elastic/{file.relative_to(folder)}": file
        for directory, _, names in os.walk(folder, followlinks=True)
        for file in (Path(directory) / name for name in names)
    }
    return _pack(out / f"volcano-elastic-{version}.tgz", files, moment)


def pack_plugin(source: Path, out: Path, version: str, moment: int, url: str) -> list[Path]:
    """Pack the kubectl plugin and write its krew manifest; none without the project's URL."""
    names = {"kubectl-elastic": source / KREW / "kubectl-elastic", "LICENSE": source / "LICENSE"}
    made = _pack(out / f"kubectl-elastic-{version}.tar.gz", names, moment)
    if not url:
        return [made]
    values = {"URL": url.rstrip("/"), "VERSION": version, "SHA256": _sha256(made)}
    text = (source / KREW / "elastic.yaml").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    manifest = out / "elastic.yaml"
    # The comment is for who fills it in.
    manifest.write_text(text[text.index("apiVersion:") :])
    return [made, manifest]


def write_bills(source: Path, out: Path, version: str, moment: int) -> list[Path]:
    """Write each image's bill of materials."""
    made = []
    for name, image in IMAGES.items():
        requirements = (source / "deploy" / f"{image}-requirements.txt").read_text()
        made.append(out / f"{name}-{version}.cdx.json")
        made[-1].write_text(bill(name, version, requirements, moment))
    return made


def _pack(made: Path, files: Mapping[str, Path], moment: int) -> Path:
    """Write an archive that is the same each time."""
    with (
        made.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=moment) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in sorted(files.items()):
            content = file.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), moment
            member.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            archive.addfile(member, io.BytesIO(content))
    return made


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def export(root: Path, into: Path) -> None:
    """Write the last commit's files."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(into, filter="tar")


def release(root: Path, version: str, out: Path, today: date, url: str = "") -> list[Path]:
    """Make the release of a checkout's last commit; return what is to be uploaded.

    Args:
        url: the project's, for the kubectl plugin's krew manifest; empty: without that.

    Raises:
        ReleaseError: see `released`; the checkout has changes, the tag is there, a build failed.
    """
    tag = f"v{version}"
    if _git(root, "status", "--porcelain"):
        raise ReleaseError("expected no uncommitted changes; commit them, or put them aside")
    if _git(root, "tag", "--list", tag):
        raise ReleaseError(f"the tag {tag} is there already; choose a later version")
    files = {name: (root / name).read_text() for name in (*VERSIONED, CHANGELOG)}
    new = released(files, version, today)
    moment = int(_git(root, "log", "-1", "--format=%ct"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="volcano-elastic-release-") as folder:
        source = Path(folder) / "source"
        source.mkdir()
        export(root, source)
        for name, text in new.items():
            (source / name).write_text(text)
        built = build_wheels(source, Path(folder) / "wheels", moment)
        made = [out / wheel.name for wheel in built]
        for wheel, place in zip(built, made, strict=True):
            shutil.copyfile(wheel, place)
        made.append(pack_chart(source, out, version, moment))
        made.append(oci_layout.write(made[-1], moment))
        made += pack_plugin(source, out, version, moment, url)
        made += write_bills(source, out, version, moment)
    digests = "".join(f"{_sha256(one)}  {one.name}\n" for one in made)
    (out / "SHA256SUMS").write_text(digests)
    for name, text in new.items():
        (root / name).write_text(text)
    _git(root, "commit", "-qm", f"Release {version}", "--", *new)
    _git(root, "tag", "-a", tag, "-m", f"volcano-elastic {version}")
    return [*made, out / "SHA256SUMS"]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("version", help="such as 0.2.0")
    parser.add_argument("--url", default="", help="the project's, for the krew manifest")
    parser.add_argument("--out", type=Path, help="default: dist/VERSION")
    given = parser.parse_args(arguments)
    out = given.out or ROOT / "dist" / given.version
    try:
        made = release(ROOT, given.version, out, datetime.now(UTC).date(), given.url)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    print(*made, sep="\n")
    print(f"committed and tagged v{given.version}; push both, and upload these")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
