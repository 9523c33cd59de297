"""Commands that README.md files and docs/*.md show work, and manifests that they show are accepted.

Fenced blocks of `sh`, `yaml` and `python` are run or validated in the order they stand in, in a
folder of their own that looks like the checkout; a `yaml` block whose first line is `# NAME.yaml`
lies there under that name. A block is left out only with a reason: ```` ```sh skip: REASON ````.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.brain.world import run as run_of_history
from tests.documents.forked_commands import COLD_PODS_VARIABLE, forked_commands
from tests.embedded_cluster.process import ROOT, local_cluster
from volcano_elastic.brain.history.database import History
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.scheduler_conf.check_config import check

pytestmark = pytest.mark.process

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "CHANGELOG.md",
    ROOT / "llms.txt",
    ROOT / "deploy" / "chart" / "README.md",
    ROOT / "embedded_cluster" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_RUN = ("sh", "yaml", "python")
_SHOWN = ("", "text", "json", "mermaid")
_FENCE = re.compile(r" *```+(\w*) *(.*)")
_SECONDS = 300
_GUIDE = ROOT / "docs" / "queue-policy.md"


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    info: str
    text: str

    @property
    def skipped(self) -> bool:
        return bool(re.fullmatch(r"skip: \w.{5,}", self.info))


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    begun: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.fullmatch(line)
        if begun is None and fence:
            begun, inside = (number, fence[1], fence[2].strip()), []
        elif begun is not None and fence and not fence[1] and not fence[2]:
            found.append(Block(*begun, textwrap.dedent("\n".join(inside)) + "\n"))
            begun = None
        else:
            inside.append(line)
    assert begun is None, f"the block of line {begun} is not closed"
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One cluster for all documents, whose pods only pretend to run, and one run in a history."""
    programs = Path(sys.executable).parent
    url = f"sqlite:///{tmp_path_factory.mktemp('history') / 'history.db'}"
    history = History(url)
    history.migrate()
    history.write(run_of_history(namespace="default"))
    history.close()
    with (
        local_cluster(tmp_path_factory.mktemp("cluster")) as kubeconfig,
        forked_commands(tmp_path_factory.mktemp("commands")) as forked,
    ):
        yield os.environ | {
            "VOLCANO_ELASTIC_HISTORY": url,
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{forked}:{programs}:{os.environ['PATH']}",
        }


def run(command: list[str], folder: Path, environment: dict[str, str], text: str = "") -> str:
    """Empty if it went well, else what it said."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    return "" if done.returncode == 0 else f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def try_yaml(block: Block, folder: Path, environment: dict[str, str]) -> str:
    first = block.text.partition("\n")[0]
    if named := re.fullmatch(r"# ([\w.-]+\.ya?ml)", first):
        (folder / named[1]).write_text(block.text)
    documents: list[Any] = [found for found in yaml.safe_load_all(block.text) if found]
    if all("kind" in found for found in documents):
        apply = ["kubectl", "apply", "--dry-run=server", "-f", "-"]
        return run(apply, folder, environment, block.text)
    return "\n".join(f"{finding.code}: {finding.finding}" for finding in check(block.text, "it"))


@pytest.fixture
def ports() -> Iterator[None]:
    """Documents name ports: another checkout's tests of them wait meanwhile."""
    with (Path(tempfile.gettempdir()) / f"ports-of-documents-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


@pytest.mark.usefixtures("ports")
@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_document_tells_to_type_works(
    document: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".git"):
            (tmp_path / entry.name).symlink_to(entry)
    if document == ROOT / "README.md":
        environment = environment | {COLD_PODS_VARIABLE: "1"}  # once, as a user's do
    for block in blocks(document.read_text()):
        if block.language not in _RUN or block.skipped:
            continue
        if block.language == "sh":
            wrong = run(["bash", "-euo", "pipefail", "-c", block.text], tmp_path, environment)
        elif block.language == "python":
            (tmp_path / "block.py").write_text(block.text)
            wrong = run(["python", "block.py"], tmp_path, environment)
        else:
            wrong = try_yaml(block, tmp_path, environment)
        assert not wrong, f"{document.name}, line {block.line}:\n{block.text}\n{wrong}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_block_escapes(document: Path) -> None:
    for block in blocks(document.read_text()):
        where = f"{document.name}, line {block.line}"
        assert block.language in (*_RUN, *_SHOWN), (
            f"{where}: expected one of {', '.join(_RUN)} to be run, or text, found {block.language}"
        )
        assert not block.info or block.skipped, (
            f"{where}: expected nothing or `skip: REASON` after {block.language}, "
            f"found {block.info!r}"
        )


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = target.partition("#")
            if target.startswith(("http://", "https://")):
                continue
            other = document if not file else document.parent / file
            assert other.exists(), f"{document.name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", t).lower().replace(" ", "-") for t in titles}
                assert anchor in slugs, f"{document.name}: {target}"


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from fields(field, f"{path}{name}.")
        else:
            yield f"{path}{name}", field


def test_the_guide_has_every_field_of_the_policy_with_its_default() -> None:
    crd = yaml.safe_load((ROOT / "crds/policy.volcano-elastic.io_queuepolicies.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    text = _GUIDE.read_text()
    lines = re.findall(r"^\| `([\w.]+)` \|([^|]*)\|(.*)", text, re.MULTILINE)
    rows = {name: default for name, default, _ in lines}
    said = {name: f"{default}{words}" for name, default, words in lines}
    for name, field in fields(spec):
        default = field.get("default")
        wanted = "" if name == "queue" else "unset" if default is None else f"`{default}`"
        assert rows.get(name, "not there").strip() == wanted, name
        if name != "mode":
            words = [word for word in field.get("enum", ()) if f"`{word}`" not in said[name]]
            assert words == [], f"{name} lacks words"
    modes = spec["properties"]["mode"]["enum"]
    assert [m for m in modes if f"| `{m}` |" not in text and f'| `"{m}"` |' not in text] == []


def test_the_guide_has_every_reason() -> None:
    text = _GUIDE.read_text()
    assert [str(reason) for reason in Reason if f"`{reason}`" not in text] == []


# The extraction itself


def test_blocks_are_found_with_their_reasons() -> None:
    text = "a\n```sh skip: too long here\nrm -rf x\n```\n  ```yaml\n  a:\n    b: 1\n  ```\n"
    skipped, shown = blocks(text)
    assert (skipped.line, skipped.language, skipped.skipped) == (2, "sh", True)
    assert (shown.language, shown.text, shown.skipped) == ("yaml", "a:\n  b: 1\n", False)
    assert not Block(1, "sh", "skip:", "").skipped and not Block(1, "sh", "skip: x", "").skipped
