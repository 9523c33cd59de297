"""The scheduler's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduler_world import configuration
from volcano_elastic.local.scheduler.__main__ import main
from volcano_elastic.local.scheduler.configuration import ConfigurationError


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("actions: 'enqueue, alocate'", "did you mean allocate?"),
        ("actions: [enqueue]", "actions: expected a text"),
        ("actions: enqueue", "tiers: expected a list"),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gangs}]}]}",
            "tiers[0].plugins[0].name: unknown plugin 'gangs'; did you mean gang?",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gang, enablePremptable: false}]}]}",
            "did you mean enablePreemptable?",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gang, enablePreemptable: 'no'}]}]}",
            "expected true or false",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: binpack, arguments: {weight: 1}}]}]}",
            "did you mean binpack.weight?",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: capacity}, {name: proportion}]}]}",
            "contradict",
        ),
    ],
)
def test_a_wrong_configuration_says_what_would_be_right(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        configuration(text)
    assert complaint in str(error.value)


def test_a_wrong_configuration_ends_the_program_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "volcano-scheduler.conf"
    conf.write_text("actions: gangPreempt\n")
    assert main(["--scheduler-conf", str(conf)]) == 1
    said = capsys.readouterr().err
    assert str(conf) in said
    assert "gangPreempt" in said
