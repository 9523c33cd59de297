"""check-config: one configuration for each of Volcano's pitfalls, and none for the shipped ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from embedded_cluster.scheduler.actions import ACTIONS as EMBEDDED_ACTIONS
from embedded_cluster.scheduler.configuration import load
from embedded_cluster.scheduler.functions import SWITCHES as EMBEDDED_SWITCHES
from embedded_cluster.scheduler.plugins import ARGUMENTS as EMBEDDED_PLUGINS
from volcano_elastic.cli.main import main
from volcano_elastic.scheduler_conf.check_config import check
from volcano_elastic.scheduler_conf.configuration import UnreadableConfiguration
from volcano_elastic.scheduler_conf.finding import Finding, Severity
from volcano_elastic.scheduler_conf.vocabulary import ACTIONS, PLUGINS, SWITCHES

MANIFESTS = Path(__file__).parents[2] / "manifests"
SHIPPED = sorted(MANIFESTS.glob("volcano-scheduler*.conf"))

GOOD = """\
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: gang
    enableReclaimable: false
  - name: priority
    enablePreemptable: false
  - name: conformance
  - name: capacity
  - name: cdp
- plugins:
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: nodeorder
"""


def with_(old: str, new: str) -> str:
    """The good configuration with one thing changed."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def actions(names: str) -> str:
    return with_('"enqueue, allocate, backfill, preempt, reclaim"', f'"{names}"')


WITHOUT_CDP = "  - name: capacity\n  - name: cdp\n"
GANG = "  - name: gang\n    enableReclaimable: false\n"
PRIORITY = "  - name: priority\n    enablePreemptable: false\n"
DRF = "  - name: drf\n    enablePreemptable: false\n"

PITFALLS = {
    # The file as such.
    "a capital in an action": (
        actions("enqueue, allocate, backfill, gangPreempt, reclaim"),
        {"UnknownAction", "NoPreempt"},
    ),
    "a comma without an action": (
        actions("enqueue, allocate, backfill, preempt, reclaim,"),
        {"UnknownAction"},
    ),
    "a misspelt action": (
        actions("enqueue, alocate, backfill, preempt, reclaim"),
        {"UnknownAction", "NoAllocate"},
    ),
    "actions as a list": (
        with_('"enqueue, allocate, backfill, preempt, reclaim"', "[allocate]"),
        {
            *{"InvalidConfiguration", "NoAllocate", "NoEnqueue", "NoBackfill"},
            *{"NoPreempt", "NoReclaim"},
        },
    ),
    "a quoted boolean": (
        with_("enableReclaimable: false", 'enableReclaimable: "false"'),
        {"InvalidConfiguration", "ThreeFilters"},
    ),
    "no plugin at all": (
        GOOD.partition("tiers")[0],
        {
            *{"InvalidConfiguration", "NoGang", "NoConformance", "NoCooldownProtection"},
            *{"SurplusEvicts", "OldestTakesAll", "NoPredicates", "NoQueueLimits"},
        },
    ),
    "plugins that are no list": (GOOD + "- plugins: cdp\n", {"InvalidConfiguration"}),
    "a plugin that is no mapping": (
        GOOD + "  - binpack\n",
        {"InvalidConfiguration", "UnknownPlugin"},
    ),
    "a misspelt plugin": (with_("nodeorder", "node-order"), {"UnknownPlugin"}),
    "a misspelt switch": (
        with_("    enableReclaimable", "    enabledReclaimable"),
        {"UnknownKey", "ThreeFilters"},
    ),
    "enable* where Volcano says enabled*": (
        with_("  - name: capacity\n", "  - name: capacity\n    enableOverused: true\n"),
        {"UnknownKey"},
    ),
    "a misspelt argument": (
        GOOD + "    arguments: {nodeaffinity.wait: 2}\n",
        {"UnknownArgument"},
    ),
    "an argument of a plugin that has none": (
        with_("  - name: cdp\n", "  - name: cdp\n    arguments: {cooldown: 10m}\n"),
        {"UnknownArgument"},
    ),
    "an argument for an action that has none": (
        GOOD + "configurations:\n- name: enqueue\n  arguments: {overcommit-factor: 1.2}\n",
        {"UnknownArgument"},
    ),
    "arguments for an action that is not there": (
        GOOD + "configurations:\n- name: preemption\n  arguments: {}\n",
        {"UnknownAction"},
    ),
    "an unknown key": (GOOD + "plugins: []\n", {"UnknownKey"}),
    "one plugin twice": (GOOD + "  - name: nodeorder\n", {"PluginTwice"}),
    # Actions.
    "no allocate": (actions("enqueue, backfill, preempt, reclaim"), {"NoAllocate"}),
    "no enqueue": (actions("allocate, backfill, preempt, reclaim"), {"NoEnqueue"}),
    "no backfill": (actions("enqueue, allocate, preempt, reclaim"), {"NoBackfill"}),
    "no preempt": (actions("enqueue, allocate, backfill, reclaim"), {"NoPreempt"}),
    "no reclaim": (actions("enqueue, allocate, backfill, preempt"), {"NoReclaim"}),
    "reclaim before preempt": (
        actions("enqueue, allocate, backfill, reclaim, preempt"),
        {"ReclaimBeforePreempt"},
    ),
    "shuffle": (
        actions("enqueue, allocate, backfill, preempt, reclaim, shuffle"),
        {"ShuffleEvicts"},
    ),
    "gangpreempt": (
        actions("enqueue, allocate, backfill, preempt, gangpreempt, reclaim"),
        {"GangActionSkipsCooldown", "WholeBundles"},
    ),
    "gangreclaim that breaks no gang": (
        actions("enqueue, allocate, backfill, preempt, reclaim, gangreclaim")
        + "configurations:\n- name: gangreclaim\n  arguments: {allowWholeBundle: false}\n",
        {"GangActionSkipsCooldown"},
    ),
    # Who may be evicted.
    "capacity below another filter of reclaim": (
        with_(WITHOUT_CDP, "") + "  - name: capacity\n  - name: cdp\n",
        {"DeservedAskedTooLate", "TierFallsThrough"},
    ),
    "proportion in the second tier, as Volcano ships it": (
        with_("  - name: capacity\n", "") + "  - name: proportion\n",
        {"DeservedAskedTooLate"},
    ),
    "drf filters below cdp, as Volcano documents cdp": (
        with_(DRF, "  - name: drf\n"),
        {"CooldownLost"},
    ),
    "a filter below the first tier": (
        with_("  - name: cdp\n", "") + "  - name: cdp\n",
        {"TierFallsThrough"},
    ),
    "three filters in one tier": (with_(GANG, "  - name: gang\n"), {"ThreeFilters"}),
    "pdb as a third filter": (
        with_("  - name: cdp\n", "  - name: pdb\n  - name: cdp\n"),
        {"ThreeFilters"},
    ),
    "an extender that is asked about victims": (
        with_(
            "  - name: conformance\n",
            "  - name: conformance\n  - name: extender\n    arguments: "
            "{extender.preemptableVerb: preempt}\n",
        ),
        {"ThreeFilters"},
    ),
    "cdp not last": (with_(WITHOUT_CDP, "  - name: cdp\n  - name: capacity\n"), {"CdpNotLast"}),
    "no cdp": (with_("  - name: cdp\n", ""), {"NoCooldownProtection"}),
    "cdp switched off for reclaim": (
        with_("  - name: cdp\n", "  - name: cdp\n    enableReclaimable: false\n"),
        {"NoCooldownProtection"},
    ),
    "priority filters preempt": (
        with_(PRIORITY, "  - name: priority\n"),
        {"EqualPrioritiesKeepSurplus", "ThreeFilters"},
    ),
    "gang doesn't filter preempt, as Volcano ships it": (
        with_(
            "    enableReclaimable: false",
            "    enableReclaimable: false\n    enablePreemptable: false",
        ),
        {"MinimumsPreemptable"},
    ),
    "no conformance": (with_("  - name: conformance\n", ""), {"NoConformance"}),
    "priority says who starves": (
        with_(
            "    enableReclaimable: false",
            "    enableReclaimable: false\n    enableJobStarving: false",
        ),
        {"SurplusEvicts"},
    ),
    "gang below priority": (
        with_(GANG, "") + GANG,
        {"SurplusEvicts", "MinimumsNotFirst", "CooldownLost"},
    ),
    # Order and room.
    "no gang": (with_(GANG, ""), {"NoGang", "SurplusEvicts"}),
    "gang binds too early": (
        with_(
            "    enableReclaimable: false",
            "    enableReclaimable: false\n    enableJobReady: false",
        ),
        {"GangSwitchedOff"},
    ),
    "priority before gang, as Volcano ships it": (
        with_(GANG + PRIORITY, PRIORITY + GANG),
        {"MinimumsNotFirst"},
    ),
    "no drf": (with_(DRF, ""), {"OldestTakesAll"}),
    "drf doesn't order jobs": (
        with_(DRF, DRF + "    enableJobOrder: false\n"),
        {"OldestTakesAll"},
    ),
    "no predicates": (with_("  - name: predicates\n", ""), {"NoPredicates"}),
    "overcommit": (GOOD + "  - name: overcommit\n", {"OvercommitBlocksNewcomers"}),
    "capacity and proportion": (
        with_("  - name: capacity\n", "  - name: capacity\n  - name: proportion\n"),
        {"CapacityAndProportion", "ThreeFilters"},
    ),
    "neither capacity nor proportion": (with_("  - name: capacity\n", ""), {"NoQueueLimits"}),
    "capacity asks only half its questions": (
        with_("  - name: capacity\n", "  - name: capacity\n    enablePreemptive: false\n"),
        {"QueueLimitsSwitchedOff"},
    ),
    "hierarchical drf beside proportion": (
        with_(
            "  - name: capacity\n",
            "  - name: proportion\n  - name: drf\n    enableHierarchy: true\n"
            "    enablePreemptable: false\n    enableReclaimable: false\n",
        ).replace(DRF + "  - name: pred", "  - name: pred"),
        {"HierarchyWithProportion"},
    ),
}


def codes(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


@pytest.mark.parametrize("name", PITFALLS)
def test_each_pitfall_is_found_and_nothing_else(name: str) -> None:
    text, wanted = PITFALLS[name]
    assert codes(check(text, "f")) == wanted


def test_every_finding_says_what_follows_and_what_to_do() -> None:
    for text, _ in PITFALLS.values():
        for finding in check(text, "f"):
            assert finding.finding and finding.consequence and finding.repair
            assert finding.line is not None and finding.line <= text.count("\n") + 1


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_the_shipped_configurations_have_no_pitfall_and_the_embedded_scheduler_runs_them(
    file: Path,
) -> None:
    assert check(file.read_text(), file.name) == []
    read = load(file)
    assert ("proportion" in {o.name for tier in read.tiers for o in tier}) == (
        "proportion" in file.name
    )


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_every_line_of_the_shipped_configurations_has_its_reason(file: Path) -> None:
    before = ""
    for line in file.read_text().splitlines():
        if line.strip().startswith(("- name:", "actions:", "- plugins:")):
            assert before.strip().startswith("#") or line.strip() == "- plugins:", line
        before = line


def test_both_plugins_are_shipped() -> None:
    assert [file.name for file in SHIPPED] == [
        "volcano-scheduler-proportion.conf",
        "volcano-scheduler.conf",
    ]


def test_what_the_embedded_scheduler_knows_volcano_knows_too() -> None:
    assert EMBEDDED_PLUGINS.keys() <= PLUGINS.keys()
    assert set(EMBEDDED_ACTIONS) <= ACTIONS.keys()
    assert set(EMBEDDED_SWITCHES.values()) <= SWITCHES


def test_a_finding_tells_its_line_also_inside_a_configmap() -> None:
    broken = with_("  - name: cdp\n", "")
    (bare,) = check(broken, "f")
    assert (bare.line, bare.where) == (3, "tiers[0].plugins")
    indented = "".join(f"    {line}\n" for line in broken.splitlines())
    text = f"kind: ConfigMap\nmetadata: {{name: c}}\ndata:\n  volcano-scheduler.conf: |\n{indented}"
    (inside,) = check(text, "f")
    assert inside.line == 3 + 4
    assert inside.source == "f: ConfigMap c, volcano-scheduler.conf"
    folded = yaml.safe_dump({"kind": "ConfigMap", "data": {"a.conf": broken}})
    assert [finding.line for finding in check(folded, "f")] == [None]


def test_a_finding_tells_its_line_also_behind_a_name_that_comes_twice() -> None:
    named = "configurations:\n- name: enqueue\n- name: enqueue\n- name: alocate\n"
    (found,) = check(GOOD + named, "f")
    assert found.line == (GOOD + named).count("\n")


QUEUE = {"kind": "Queue", "metadata": {"name": "q"}}
HIERARCHY = with_("  - name: capacity\n", "  - name: capacity\n    enableHierarchy: true\n")
BY_WEIGHT = with_("  - name: capacity\n", "  - name: proportion\n")
GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("configuration", "spec", "wanted"),
    [
        (GOOD, {"deserved": {GPU: 4}, "capability": {GPU: 8, "cpu": 64}}, set()),
        (GOOD, {}, set()),
        (GOOD, {"deserved": {GPU: 4, "cpu": 16}}, {"DeservedListsMore"}),
        (GOOD, {"deserved": {"cpu": 16, "memory": "64Gi"}}, {"DeservedWithoutDevices"}),
        (BY_WEIGHT, {"deserved": {GPU: 4}}, {"DeservedUnderProportion"}),
        (GOOD, {"parent": "root"}, set()),
        (HIERARCHY, {"parent": "nobody"}, {"ParentMissing"}),
        (HIERARCHY, {"parent": "q"}, {"ParentRing"}),
        (GOOD, {"parent": "q"}, {"HierarchyOff", "ParentRing"}),
        (GOOD, {"reclaimable": False}, {"NotReclaimable"}),
        (GOOD, {"deserved": {GPU: 9}, "capability": {GPU: 8}}, {"LimitsContradict"}),
        (GOOD, {"guarantee": {"resource": {GPU: 2}}, "deserved": {GPU: 1}}, {"LimitsContradict"}),
        (GOOD, {"deserved": [4], "weight": 0}, {"InvalidQueue"}),
        (GOOD, "nothing", {"InvalidQueue"}),
    ],
)
def test_queues_beside_the_configuration_are_checked(
    configuration: str, spec: object, wanted: set[str]
) -> None:
    text = configuration + "---\n" + yaml.safe_dump(QUEUE | {"spec": spec})
    assert codes(check(text, "f")) == wanted


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "List", "items": 3}, "f: List: items: Invalid value: 3: must be a list"),
        ({"kind": "ConfigMap", "data": ["x"]}, 'f: ConfigMap: data: Invalid value: ["x"]'),
        ({"kind": "Queue", "metadata": "q"}, 'f: Queue: metadata: Invalid value: "q"'),
        (
            {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [1]}}}},
            "f: Deployment: spec.template.spec.containers[0]: Invalid value: 1",
        ),
    ],
)
def test_what_is_no_such_object_is_refused_with_the_field(document: object, message: str) -> None:
    with pytest.raises(UnreadableConfiguration, match=re.escape(message)):
        check(yaml.safe_dump(document), "f")


def queues(**parents: str) -> str:
    listed = [
        QUEUE | {"metadata": {"name": name}, "spec": {"parent": parent}}
        for name, parent in parents.items()
    ]
    return HIERARCHY + "---\n" + yaml.safe_dump_all(listed)


def test_a_ring_of_parents_is_found_in_each_of_its_queues() -> None:
    assert check(queues(top="root", child="top"), "f") == []
    found = check(queues(a="b", b="c", c="a", below="a"), "f")
    assert [(one.code, one.finding) for one in found] == [
        ("ParentRing", f"the parents run in a ring: {ring}")
        for ring in ("a → b → c → a", "b → c → a → b", "c → a → b → c")
    ]


def test_what_volcano_makes_of_its_root_is_no_pitfall() -> None:
    root = QUEUE | {"metadata": {"name": "root"}, "spec": {"reclaimable": False}}
    assert check(GOOD + "---\n" + yaml.safe_dump(root), "f") == []


def test_a_broken_queue_is_said_with_its_field_and_line() -> None:
    text = GOOD + "---\n" + yaml.safe_dump(QUEUE | {"spec": {"capability": {GPU: "x"}}})
    (found,) = check(text, "f")
    assert found.finding.startswith(f'spec.capability[{GPU}]: Invalid value: "x"')
    assert text.splitlines()[(found.line or 0) - 1].strip() == "capability:"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--scheduler-conf=/c"], {"SilentDefault"}),
        (["--scheduler-conf=/c", "--disable-default-scheduler-config"], set()),
    ],
)
def test_a_scheduler_that_falls_back_silently_is_found(
    arguments: list[str], wanted: set[str]
) -> None:
    container = {"name": "scheduler", "args": arguments}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "volcano-scheduler"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    text = yaml.safe_dump({"kind": "List", "items": [deployment, {"kind": "Service"}]})
    assert codes(check(text, "f")) == wanted


@pytest.mark.parametrize(
    ("version", "wanted"), [((1, 15), 0), ((1, 13), 1), ((1, 11), 2), ((1, 16), 0)]
)
def test_an_old_release_is_told_what_it_lacks(version: tuple[int, int], wanted: int) -> None:
    found = check(GOOD, "f", version)
    assert [finding.code for finding in found] == ["OldRelease"] * wanted


def test_gang_actions_need_a_release_that_has_them() -> None:
    text = actions("enqueue, allocate, backfill, preempt, gangreclaim, reclaim")
    found = check(text, "f", (1, 14))
    assert [f.finding for f in found if f.code == "OldRelease"] == [
        "Volcano 1.14 has no action gangreclaim"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("actions: [\n", "f, line 2: not YAML"),
        ("actions: 2026-99-99\n", "f: not YAML: month must be in 1..12"),
        ("", "found nothing"),
        ("- 1\n", "found list"),
        ("kind: Pod\n", "found Pod"),
        ("kind: Deployment\nmetadata: {name: operator}\n", "found Deployment"),
        ("colour: red\n", "found keys colour"),
        ("kind: ConfigMap\nmetadata: {name: c}\ndata: {a.conf: 'x: ['}\n", "c, a.conf, line 1"),
        ("kind: ConfigMap\ndata: {a.conf: 'actions: 2026-99-99'}\n", "a.conf: not YAML: month"),
    ],
)
def test_what_cannot_be_checked_is_said(text: str, message: str) -> None:
    with pytest.raises(UnreadableConfiguration, match=message):
        check(text, "f")


# The command


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["check-config", *arguments], input=text)


def test_the_exit_code_is_for_ci(tmp_path: Path) -> None:
    file = tmp_path / "c.conf"
    file.write_text(GOOD)
    assert run(str(file)).exit_code == 0
    file.write_text(with_("  - name: cdp\n", ""))
    said = run(str(file))
    assert said.exit_code == 1
    assert said.output.startswith("Warning NoCooldownProtection: cdp is missing")
    assert "repair: name cdp last in the first tier" in said.output
    assert run("--fail-on", "error", str(file)).exit_code == 0
    assert run("-", text=with_(DRF, "")).exit_code == 1
    missing = run(str(tmp_path / "none"))
    assert missing.exit_code == 2 and "No such file" in missing.output
    assert run("--volcano-version", "new", str(file)).exit_code == 2
    assert run("--volcano-version", "v1.13.2", "-", text=GOOD).exit_code == 1


def test_json_has_the_documented_fields() -> None:
    said = run("--json", "-", text=with_("  - name: cdp\n", ""))
    (found,) = json.loads(said.output)["findings"]
    assert found.pop("consequence") and found.pop("repair")
    assert found == {
        "code": "NoCooldownProtection",
        "severity": str(Severity.WARNING),
        "file": "standard input",
        "line": 3,
        "where": "tiers[0].plugins",
        "finding": "cdp is missing",
    }
