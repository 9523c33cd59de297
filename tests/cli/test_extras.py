"""Commands whose libraries are not installed say what to install; the others work all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

from volcano_elastic.cli.main import _COMMANDS, _install

# Imports nothing but the standard library, ours, and what the plain wheel depends on.
PLAIN = """
import sys
known = {*sys.stdlib_module_names, "volcano_elastic", "embedded_cluster", "elastic_trainer"}
known |= {"yaml", "_yaml", "click", "rich", "markdown_it", "mdurl", "pygments"}

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in known:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
from volcano_elastic.cli.main import main
main(sys.argv[1:], prog_name="volcano-elastic")
"""


def plain(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PLAIN, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


@pytest.mark.process
def test_a_plain_installation_lists_every_command() -> None:
    said = plain("--help")
    assert said.returncode == 0, said.stderr
    assert [name for name in _COMMANDS if f"\n  {name} " not in said.stdout] == []


@pytest.mark.process
def test_a_plain_installation_prints_crds_and_checks_configurations() -> None:
    assert plain("crds").stdout.count("kind: CustomResourceDefinition") == 3
    configuration = plain("scheduler-config").stdout
    checked = plain("check-config", "-", stdin=configuration)
    assert (checked.returncode, "no pitfall found" in checked.stdout) == (0, True), checked.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["top"], "'volcano-elastic[operator]'"),
        (["doctor", "--json"], "'volcano-elastic[operator]'"),
        (["local", "up"], "'volcano-elastic[local]'"),
        (["history", "--help"], "'volcano-elastic[brain]'"),
        (["dashboard"], "'volcano-elastic[dashboard]'"),
    ],
)
def test_a_command_without_its_libraries_says_what_to_install(
    command: list[str], wanted: str
) -> None:
    said = plain(*command)
    assert said.returncode == 2, said.stdout + said.stderr
    assert f"which is not installed; run: pip install {wanted}" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("name", ["volcano_elastic.cli.mistyped", "embedded_cluster", None])
def test_a_module_of_ours_that_is_missing_is_a_defect(name: str | None) -> None:
    with pytest.raises(ModuleNotFoundError):
        _install("top", ModuleNotFoundError("No module", name=name))
