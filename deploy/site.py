"""Lays out the documents as MkDocs' source, for `make site`: `python -m deploy.site FOLDER`.

Documents keep their places, so that links stay right; what they link to lies beside them. The
reference is written here: commands and fields as they describe themselves, the trainer's names as
mkdocstrings' directives.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import elastic_trainer
import yaml

from volcano_elastic.assets import CRDS, OURS
from volcano_elastic.cli.main import main as command_line
from volcano_elastic.operator.__main__ import parser as operator_parser

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "CHANGELOG.md",
    "deploy/chart/README.md",
    "embedded_cluster/README.md",
    "e2e/README.md",
    *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")),
)
REFERENCE = "reference"
_FENCE = re.compile(r"( *)(`{3,})(\w*)(.*)")
_ITEM = re.compile(r"( *)((?:[-*]|\d+\.) +)\S")
_LINK = re.compile(r"\]\(([^)\s#]+)")
_INDENT = 4
"""Spaces before what belongs to a list's item, for Python-Markdown; in the documents it is the
marker's width."""


def links(text: str) -> list[str]:
    """Return the files that a document links to, as it names them."""
    return [one for one in _LINK.findall(text) if not one.startswith(("http://", "https://"))]


def for_site(text: str) -> str:
    """Return a document as Python-Markdown reads it: without the tests' words behind a block's
    language, all of a list's item indented by four, and a blank line before a list, and before an
    item where the one before it has paragraphs."""
    lines = [""]
    columns: list[int] = []  # where the text begins of each item that we are in
    fence, blank = "", True  # the open block's; whether a blank line came since the last item
    for line in text.splitlines():
        found = _FENCE.fullmatch(line)
        item = None if fence else _ITEM.match(line)
        if fence:
            fence = "" if found and found[2] == fence and not found[3] else fence
        else:
            column = len(line) - len(line.lstrip())
            while line.strip() and columns and column < columns[-1]:
                columns.pop()
            if found:
                fence = found[2]
                line = found[1] + found[2] + found[3]
        if item and blank and lines[-1]:
            lines.append("")
        blank = not item and (blank or not line.strip())
        inside = columns[-1] if columns else 0
        plain = line[inside:] if not line[:inside].strip() else line.lstrip()
        lines.append(f"{' ' * (_INDENT * len(columns))}{plain}".rstrip())
        if item:
            columns.append(len(item[1]) + len(item[2]))
    return "\n".join(lines[1:]) + "\n"


def commands() -> str:
    """Return the page of all commands, each as its `--help` is."""
    parts = ["# Commands", "`volcano-elastic COMMAND --help` says the same."]
    for path, command in _walk("volcano-elastic", command_line):
        if path == "volcano-elastic operator":
            said = operator_parser().format_help()  # click hands its words on
        else:
            info = path.rpartition(" ")
            context = click.Context(command, info_name=info[2], max_content_width=100)
            said = command.get_help(context).replace(f"Usage: {info[2]}", f"Usage: {path}", 1)
        parts.append(f"## {path}\n\n```text\n{said.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _walk(f"{path} {name}", found)


def fields(file: str) -> str:
    """Return the page of a custom resource: each field but those of pod templates."""
    crd = yaml.safe_load((CRDS / file).read_text())
    kind = crd["spec"]["names"]["kind"]
    parts = [f"# {kind}"]
    for version in crd["spec"]["versions"]:
        parts.append(f"`{crd['spec']['group']}/{version['name']}`, {kind}.")
        schema = version["schema"]["openAPIV3Schema"]
        for name in ("spec", "status"):
            parts.append(f"## {name}")
            rows = [f"| `{p}` | {_type(f)} | {_said(f)} |" for p, f in _fields(schema, name)]
            parts.append("\n".join(["| field | type | |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _fields(schema: dict[str, Any], name: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    field = schema["properties"][name]
    path = f"{prefix}{name}"
    if prefix:
        yield path, field
    inner = field.get("items") or field.get("additionalProperties") or field
    if name != "template" and isinstance(inner, dict):
        key = "[]" if "items" in field else ".*" if "additionalProperties" in field else ""
        for child in inner.get("properties") or ():
            yield from _fields(inner, child, f"{path}{key}.")


def _type(field: dict[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    words = [str(field.get("type", "any"))]
    if "enum" in field:
        words = [", ".join(f"`{word}`" for word in field["enum"])]
    if "default" in field:
        words.append(f"default `{field['default']}`")
    return "; ".join(words)


def _said(field: dict[str, Any]) -> str:
    text = " ".join(str(field.get("description", "")).split())
    return re.sub(r"([|<*_])", r"\\\1", text)


def trainer() -> str:
    """Return the page of what training scripts import."""
    about, _, _ = (elastic_trainer.__doc__ or "").partition("\n\nNames are looked up")
    parts = ["# The trainer", about]
    for name in elastic_trainer.__all__:
        parts.append(f"::: elastic_trainer.{elastic_trainer._MODULES[name]}.{name}")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return each page by its path in the site's source."""
    found = {name: for_site((ROOT / name).read_text()) for name in DOCUMENTS}
    found[f"{REFERENCE}/commands.md"] = commands()
    found[f"{REFERENCE}/trainer.md"] = trainer()
    for file in OURS:
        kind = yaml.safe_load((CRDS / file).read_text())["spec"]["names"]["singular"]
        found[f"{REFERENCE}/{kind}.md"] = fields(file)
    return found


def lay_out(folder: Path) -> None:
    """Write the pages, and the files that they link to, into a folder that is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copyfile(ROOT / "deploy" / "site.css", folder / "site.css")
    for name in DOCUMENTS:
        for target in links((ROOT / name).read_text()):
            linked = (ROOT / name).parent / target
            if linked.is_file() and linked.suffix != ".md":
                there = folder / linked.resolve().relative_to(ROOT)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, there)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
