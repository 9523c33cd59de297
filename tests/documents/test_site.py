"""The site: every document is in its contents, the reference names all, and it builds strictly."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import elastic_trainer
import pytest
import yaml

from deploy.site import DOCUMENTS, commands, fields, for_site, lay_out, links, pages, trainer
from volcano_elastic.assets import OURS
from volcano_elastic.cli.main import _COMMANDS

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / "build" / "site-tools" / "bin" / "mkdocs"


def listed(nav: Any) -> list[str]:
    """Return the pages of a part of the site's contents."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for one in inner for page in listed(one)]


def test_the_contents_have_each_page_once() -> None:
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(listed(configuration["nav"])) == sorted(pages())
    assert {f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")} <= set(DOCUMENTS)


def test_the_index_has_one_line_for_each_document() -> None:
    lines = (ROOT / "docs" / "README.md").read_text().splitlines()
    named = [
        found for line in lines for found in re.findall(r"^\| \[([\w-]+\.md)\]\(\1\) \|", line)
    ]
    there = {file.name for file in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(named) == sorted(there)


def test_the_reference_has_every_command_field_and_name() -> None:
    text = commands()
    assert [name for name in _COMMANDS if f"\n## volcano-elastic {name}\n" not in text] == []
    assert "\n## volcano-elastic local fault" in text and "--trace-endpoint URL" in text
    assert [name for name in elastic_trainer.__all__ if f".{name}\n" not in trainer()] == []
    job, policy, *_ = (fields(name) for name in OURS)
    assert "| `spec.elasticPolicy.minReplicas` | integer |" in job
    assert "`spec.pytorchReplicaSpecs.*.restartPolicy`" in job
    assert "template.spec" not in job, "pod templates are described elsewhere"
    assert "| `spec.surplus.minEfficiency` | number; default `0.5` |" in policy


def test_what_pages_link_to_lies_beside_them(tmp_path: Path) -> None:
    lay_out(tmp_path)
    for name in DOCUMENTS:
        page = tmp_path / name
        assert [one for one in links(page.read_text()) if not (page.parent / one).exists()] == []


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("```sh skip: takes long\nmake\n```\n", "```sh\nmake\n```\n"),
        ("```text\n* a\n  b\n```\n", "```text\n* a\n  b\n```\n"),
        ("* a\n  goes on\n* b\n", "* a\n    goes on\n* b\n"),
        ("text\n* a\n* b\n", "text\n\n* a\n* b\n"),
        ("1. a\n\n   more\n2. b\n", "1. a\n\n    more\n\n2. b\n"),
        ("- a\n  1. b\n     c\n  2. d\n\nafter\n", "- a\n    1. b\n        c\n    2. d\n\nafter\n"),
        ("- a\n\n  ```sh skip: why\n    x\n  ```\n", "- a\n\n    ```sh\n      x\n    ```\n"),
    ],
)
def test_markdown_is_said_in_the_builders_dialect(given: str, wanted: str) -> None:
    assert for_site(given) == wanted


@pytest.mark.process
@pytest.mark.skipif(not MKDOCS.exists(), reason="no MkDocs: make build/site-tools/ready")
def test_it_builds_without_a_warning_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    lay_out(tmp_path / "source")
    configuration = (ROOT / "mkdocs.yml").read_text()
    places = {"docs_dir: ": "source", "site_dir: ": "site", "paths: ": [str(ROOT / "trainer")]}
    for key, place in places.items():
        configuration = re.sub(f"{key}.*", f"{key}{place}", configuration)
    (tmp_path / "mkdocs.yml").write_text(configuration)
    built = subprocess.run(
        [str(MKDOCS), "build", "-q", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )
    assert built.returncode == 0, textwrap.shorten(built.stderr, 3000)
    trainers = (tmp_path / "site" / "reference" / "trainer.html").read_text()
    assert "Saves model, optimizer and the data" in trainers, "the code's own words"
    for page in tmp_path.glob("site/**/*.html"):
        fetched = re.findall(r'(?:src|<link[^>]+href)="?(https?://[^">\s]+)', page.read_text())
        assert fetched == [], page
