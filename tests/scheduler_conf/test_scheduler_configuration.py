"""The scheduler's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedded_cluster.scheduler.__main__ import main
from embedded_cluster.scheduler.configuration import DEFAULT, ConfigurationError
from tests.embedded_cluster.scheduler.world import cluster, configuration


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("actions: 'enqueue, alocate'", "did you mean allocate?"),
        ("actions: [enqueue]", "actions: actions is ['enqueue'], not a text; write one text"),
        ("actions: enqueue", "tiers: no plugin is named"),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gangs}]}]}",
            "tiers[0].plugins[0].name: there is no plugin 'gangs'; did you mean gang?",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gang, enablePremptable: false}]}]}",
            "write enablePreemptable",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gang, enablePreemptable: 'no'}]}]}",
            "write true or false",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: binpack, arguments: {weight: 1}}]}]}",
            "there are: binpack.cpu, binpack.memory, binpack.resources, binpack.resources.*, "
            "binpack.weight",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: binpack, arguments: [weight]}]}]}",
            "tiers[0].plugins[0].arguments: expected a mapping, found ['weight']",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: overcommit, arguments: "
            "{overcommit-factor: much}}]}]}",
            "argument overcommit-factor of overcommit: expected a number, without quotes, found "
            "'much'",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: nodeorder, arguments: "
            "{leastrequested.weight: '5'}}]}]}",
            "expected a number, without quotes, found '5'",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: binpack, arguments: "
            "{binpack.weight: true}}]}]}",
            "expected a number, without quotes, found True",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: binpack, arguments: "
            "{binpack.resources.a.resources: x}}]}]}",
            "expected a number, without quotes, found 'x'",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: binpack, arguments: "
            "{binpack.resources: [nvidia.com/gpu]}}]}]}",
            "expected a text, found ['nvidia.com/gpu']",
        ),
        ("", "actions: actions is None, not a text"),
        ("enqueue", "the file: expected a mapping, found 'enqueue'"),
        ("actions: 'enqueue, gangpreempt'", "there is no action 'gangpreempt'"),
        ("{actions: enqueue, tiers: [{plugins: [gang]}]}", "expected a mapping, found 'gang'"),
        ("{actions: enqueue, tiers: [{plugins: [{name: sla}]}]}", "there is no plugin 'sla'"),
        ("{actions: enqueue, tiers: [{plugins: [{arguments: {}}]}]}", "there is no plugin 'None'"),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: gang}, {name: gang}]}]}",
            "gang is named more than once",
        ),
        (
            "{actions: enqueue, tiers: [{plugins: [{name: drf, enableHierarchy: true}]}]}",
            "drf: the embedded scheduler has no enableHierarchy",
        ),
        (
            "{actions: preempt, configurations: [{name: preempt}], "
            "tiers: [{plugins: [{name: gang}]}]}",
            "configurations: the embedded scheduler doesn't read it",
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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"actions: gangPreempt\n", "gangPreempt"),
        (b"actions: [\n", "is not YAML"),
        (b"actions: 2026-99-99\n", "is not YAML: month must be in 1..12"),
        (b"actions: \xff\n", "is not YAML"),
        (None, "No such file or directory; give --scheduler-conf a readable file"),
    ],
)
def test_a_wrong_configuration_ends_the_program_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, complaint: str
) -> None:
    conf = tmp_path / "volcano-scheduler.conf"
    if text is not None:
        conf.write_bytes(text)
    assert main(["--scheduler-conf", str(conf)]) == 1
    said = capsys.readouterr().err
    assert str(conf) in said
    assert complaint in said


def with_(plugin: str, arguments: str) -> str:
    return DEFAULT.read_text().replace(
        f"- name: {plugin}\n", f"- name: {plugin}\n    arguments: {arguments}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "phase"),
    [
        ("{}", "Pending"),
        ("{overcommit-factor: 1.5}", "Inqueue"),
        ("{overcommit-factor: 0}", "Pending"),
    ],
)
def test_overcommit_lets_in_by_its_factor(arguments: str, phase: str) -> None:
    conf = with_("capacity", arguments).replace("name: capacity", "name: overcommit")
    c = cluster(2, conf=conf)
    c.gang("a", 2)
    c.settle()
    c.gang("b", 1)
    c.settle()
    assert c.phase("b") == phase


@pytest.mark.parametrize(
    ("arguments", "node"),
    [("{}", "n2"), ("{leastrequested.weight: 0, mostrequested.weight: 2}", "n1")],
)
def test_nodeorder_spreads_or_packs_by_its_weights(arguments: str, node: str) -> None:
    c = cluster(0, 0, conf=with_("nodeorder", arguments))
    c.pod("first")
    c.settle()
    c.pod("second")
    c.settle()
    assert c.placed() == {"first": "n1", "second": node}
