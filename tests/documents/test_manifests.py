"""Manifests and images fit together, as far as can be told here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from volcano_elastic.adapters import kueue
from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.cli.brain import brain
from volcano_elastic.cli.dashboard import dashboard
from volcano_elastic.operator import kueue_quotas
from volcano_elastic.operator.__main__ import parser
from volcano_elastic.pytorchjob.label import JOB_NAME

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
Object = dict[str, Any]
BUILDS = (
    "crds",
    *("manifests", "manifests/base", "manifests/default"),
    *("manifests/monitoring", "manifests/dashboards", "manifests/brain"),
    "manifests/dashboard",
)


def build(folder: str | Path) -> list[Object]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl isn't installed")
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def with_components(folder: Path, *names: str, page: bool = False) -> list[Object]:
    """Build a kustomization that adds the components, and the page if so said."""
    roots = {"resources": ["default", *["dashboard"] * page], "components": names}
    lists = {
        kind: [os.path.relpath(ROOT / "manifests" / name, folder) for name in found]
        for kind, found in roots.items()
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(lists))
    return build(folder)


def one(objects: list[Object], kind: str) -> Object:
    found = [obj for obj in objects if obj["kind"] == kind]
    assert len(found) == 1, f"expected one {kind}, found {len(found)}"
    return found[0]


@pytest.mark.parametrize("folder", BUILDS)
def test_kustomize_builds_it(folder: str) -> None:
    objects = build(folder)
    assert objects
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))


def test_all_of_it_is_the_operator_its_monitoring_and_volcanos_configuration() -> None:
    objects = build("manifests")
    kinds = {obj["kind"] for obj in objects}
    assert {"CustomResourceDefinition", "Deployment", "PodMonitor", "Service"} <= kinds
    assert {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} <= kinds
    configuration = one(objects, "ConfigMap")
    # Where Volcano's own installation has it, and its scheduler mounts it.
    assert configuration["metadata"] == {
        "name": "volcano-scheduler-configmap",
        "namespace": "volcano-system",
    }
    text = (ROOT / "manifests" / "volcano-scheduler.conf").read_text()
    assert configuration["data"] == {"volcano-scheduler.conf": text}


def test_the_pods_are_locked_down_and_two() -> None:
    deployment = one(build("manifests/default"), "Deployment")["spec"]
    assert deployment["replicas"] == 2
    pod = deployment["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert pod["affinity"]["podAntiAffinity"]
    namespace = one(build("manifests/default"), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_operator_takes_the_arguments_that_the_deployment_gives() -> None:
    deployment = one(build("manifests/default"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    # As the kubelet fills them in; an IPv6 address too.
    arguments = [a.replace("$(POD_IP)", "fd00::7") for a in container["args"]]
    given = parser().parse_args(arguments)
    assert given.leader_elect
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given.metrics_address == ("fd00::7", ports["metrics"])
    assert given.webhook_address == ("fd00::7", ports["webhook"])
    names = {variable["name"] for variable in container["env"]}
    assert names >= set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) | {"POD_NAME"}


def test_what_names_another_object_names_one_that_is_there() -> None:
    objects = build("manifests")
    deployment, service = one(objects, "Deployment"), one(objects, "Service")
    template = deployment["spec"]["template"]
    labels, account = template["metadata"]["labels"], template["spec"]["serviceAccountName"]
    ports = {p["name"] for c in template["spec"]["containers"] for p in c["ports"]}
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        selector = one(objects, kind)["spec"]["selector"]["matchLabels"]
        assert selector.items() <= labels.items(), kind
    assert service["spec"]["selector"].items() <= labels.items()
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    endpoints = one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert {endpoint["port"] for endpoint in endpoints} <= ports
    roles = {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"].endswith("Role")}
    for binding in objects:
        if binding["kind"].endswith("RoleBinding"):
            assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
            (subject,) = binding["subjects"]
            assert subject["name"] == account == one(objects, "ServiceAccount")["metadata"]["name"]
            assert subject["namespace"] == deployment["metadata"]["namespace"]
    for configuration in objects:
        if configuration["kind"].endswith("WebhookConfiguration"):
            # Its name and the Service's are one argument of the operator's.
            given = parser().parse_args([])
            assert configuration["metadata"]["name"] == given.webhook_name
            for webhook in configuration["webhooks"]:
                reference = webhook["clientConfig"]["service"]
                assert reference["name"] == service["metadata"]["name"] == given.webhook_name
                assert reference["namespace"] == service["metadata"]["namespace"]
                port = reference.get("port", 443)
                assert port in {p["port"] for p in service["spec"]["ports"]}


def test_other_jobs_take_an_argument_and_rights_to_their_size_alone(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "other-jobs")
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    arguments = [a.replace("$(POD_IP)", "127.0.0.1") for a in container["args"]]
    assert parser().parse_args(arguments).other_jobs == ["Job"]
    role = next(o for o in objects if o["metadata"]["name"] == "volcano-elastic-other-jobs")
    granted = {(r["apiGroups"][0], r["resources"][0], tuple(r["verbs"])) for r in role["rules"]}
    verbs = ("list", "watch", "patch")
    assert granted == {(adapter.group, adapter.plural, verbs) for adapter in ADAPTERS}
    # Whoever doesn't ask for it gives no rights to Jobs.
    assert "batch" not in str(build("manifests/default"))


def test_the_page_lists_the_jobs_that_the_operator_sizes(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "other-jobs", "kueue", page=True)
    made = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    name = "volcano-elastic-dashboard"
    (container,) = made["Deployment", name]["spec"]["template"]["spec"]["containers"]
    given = dashboard.make_context("dashboard", container["args"][1:]).params
    assert given["other_jobs"] == ("Job",) and given["kueue"]
    for component in ("other-jobs", "kueue"):
        read = made["ClusterRole", f"{name}-{component}"]["rules"]
        written = made["ClusterRole", f"volcano-elastic-{component}"]["rules"]
        assert read == [rule | {"verbs": ["list", "watch"]} for rule in written]
        (subject,) = made["ClusterRoleBinding", f"{name}-{component}"]["subjects"]
        assert subject["name"] == made["ServiceAccount", name]["metadata"]["name"]


def test_only_whoever_adds_the_component_lets_the_operator_cordon_nodes(tmp_path: Path) -> None:
    def granted(objects: list[Object]) -> set[str]:
        rules = [rule for one in objects for rule in one.get("rules") or ()]
        return {verb for rule in rules if "nodes" in rule["resources"] for verb in rule["verbs"]}

    assert granted(with_components(tmp_path, "cordon")) == {"list", "watch", "patch"}
    assert granted(build("manifests/default")) == {"list", "watch"}


def test_kueue_takes_an_argument_and_rights_to_read_its_kinds(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "other-jobs", "kueue")
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    arguments = [a.replace("$(POD_IP)", "127.0.0.1") for a in container["args"]]
    given = parser().parse_args(arguments)
    assert given.kueue and given.other_jobs == ["Job"]
    role = next(o for o in objects if o["metadata"]["name"] == "volcano-elastic-kueue")
    (rule,) = role["rules"]
    assert rule["apiGroups"] == [kueue.GROUP] and rule["verbs"] == ["list", "watch"]
    assert set(rule["resources"]) == {kind.plural for kind in kueue_quotas.KINDS}


def test_the_page_takes_what_its_deployment_gives() -> None:
    objects = build("manifests/dashboard")
    spec = one(objects, "Deployment")["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    operators = one(build("manifests/base"), "Deployment")["spec"]["template"]["spec"]
    (container,), (other,) = pod["containers"], operators["containers"]
    assert container["image"] == other["image"]
    for name, context in (("container", other), ("pod", operators)):
        given = container if name == "container" else pod
        assert context["securityContext"].items() <= given["securityContext"].items()
    program, *arguments = container["args"]
    assert (container["command"], program) == (["python", "-m", "volcano_elastic.cli"], "dashboard")
    given = dashboard.make_context("dashboard", list(arguments)).params
    (port,) = container["ports"]
    assert given["address"] == f"0.0.0.0:{port['containerPort']}"
    # All that it reads or writes is on a volume.
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert "secret" in mounts[str(given["token_file"].parent)]
    claim = mounts[str(Path(given["database"].removeprefix("sqlite:///")).parent)]
    name = claim["persistentVolumeClaim"]["claimName"]
    assert name == one(objects, "PersistentVolumeClaim")["metadata"]["name"]
    service, policy = one(objects, "Service")["spec"], one(objects, "NetworkPolicy")["spec"]
    for selector in (service["selector"], policy["podSelector"]["matchLabels"]):
        assert selector == spec["selector"]["matchLabels"]
        assert selector.items() <= labels.items()
    assert [p["targetPort"] for p in service["ports"]] == [port["name"]]
    assert policy["ingress"] == [{"ports": [{"port": port["name"]}]}]
    assert pod["serviceAccountName"] == one(objects, "ServiceAccount")["metadata"]["name"]
    # Nothing may be written, and secrets are read where somebody binds the role for it.
    bound = {o["roleRef"]["name"] for o in objects if o["kind"].endswith("RoleBinding")}
    for role in (o for o in objects if o["kind"].endswith("Role")):
        for rule in role["rules"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
            assert "secrets" not in rule["resources"] or role["metadata"]["name"] not in bound


def test_brain_takes_what_its_deployment_gives() -> None:
    objects = build("manifests/brain")
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    operators = one(build("manifests/base"), "Deployment")["spec"]["template"]["spec"]
    (container,), (other,) = pod["containers"], operators["containers"]
    assert container["image"] == other["image"]
    assert container["securityContext"] == other["securityContext"]
    assert operators["securityContext"].items() <= pod["securityContext"].items()
    program, *arguments = container["args"]
    assert (container["command"], program) == (["python", "-m", "volcano_elastic.cli"], "brain")
    (variable,) = container["env"]
    database = brain.make_context("brain", [*arguments, "--database", variable["value"]]).params[
        "database"
    ]
    assert any(option.envvar == variable["name"] for option in brain.params)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    given = brain.make_context("brain", [*arguments, "--database", database]).params
    assert given["liveness"] == f"http://0.0.0.0:{ports['health']}/healthz"
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    # The database is on the volume, and the Lease where its rights are.
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["mountPath"] == str(Path(database.removeprefix("sqlite:///")).parent)
    claim = one(objects, "PersistentVolumeClaim")["metadata"]["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim
    role = one(objects, "Role")
    assert given["lease_namespace"] == role["metadata"]["namespace"]
    assert pod["serviceAccountName"] == one(objects, "ServiceAccount")["metadata"]["name"]


def test_rights_are_bound_to_names_where_they_can_be() -> None:
    for role in build("manifests/base"):
        for rule in role.get("rules", ()):
            assert "*" not in rule["verbs"] + rule["apiGroups"] + rule["resources"]
            if rule["resources"] == ["secrets"]:
                assert rule["verbs"] == ["create"] or rule["resourceNames"]
                assert rule["verbs"] == ["create"] or role["kind"] == "Role"


def test_no_right_is_granted_twice() -> None:
    def rights(kind: str) -> list[tuple[str, str, str]]:
        return [
            (verb, group, resource)
            for role in build("manifests/base")
            if role["kind"] == kind
            for rule in role["rules"]
            if kind == "Role" or not rule.get("resourceNames")
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        ]

    everywhere = rights("ClusterRole")
    assert len(everywhere) == len(set(everywhere))
    assert not set(everywhere) & set(rights("Role")), "a Role adds nothing to what all may"


def test_an_isolated_job_is_reached_by_its_own_pods_and_the_operator_only(tmp_path: Path) -> None:
    """Built beside a job's manifest, as docs/operations.md says."""
    (tmp_path / "job.yaml").write_text((ROOT / "examples" / "digits.yaml").read_text())
    component = os.path.relpath(ROOT / "manifests" / "job-isolation", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(
        f"namespace: ml\nresources: [job.yaml]\ncomponents: [{component}]\n"
    )
    objects = build(tmp_path)
    name = one(objects, "PyTorchJob")["metadata"]["name"]
    policy = one(objects, "NetworkPolicy")
    assert policy["metadata"] == {"name": name, "namespace": "ml"}
    pods = {"matchLabels": {JOB_NAME: name}}
    assert policy["spec"]["podSelector"] == pods
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    own, operators = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": pods}]}, "no namespaceSelector: of this one only"
    (source,) = operators["from"]
    deployment = one(build("manifests/default"), "Deployment")
    assert source["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": deployment["metadata"]["namespace"]
    }
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert source["podSelector"]["matchLabels"].items() <= labels.items()


# Images


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", file.read_text()))
    lines = (line.strip() for line in text.splitlines())
    return [(w, rest) for w, _, rest in (line.partition(" ") for line in lines) if w]


CONTAINERFILES = sorted((ROOT / "deploy").glob("*.Containerfile"))


@pytest.mark.parametrize("file", CONTAINERFILES, ids=lambda file: file.stem)
def test_an_image_is_made_of_what_is_here_and_runs_as_nobody(file: Path) -> None:
    steps = instructions(file)
    froms = [rest for word, rest in steps if word == "FROM"]
    assert len(froms) == 2 and froms[0].endswith(" AS build"), "one stage to build, one to run"
    last = max(i for i, (word, _) in enumerate(steps) if word == "FROM")
    final = steps[last:]
    copied: set[str] = set()
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _ = shlex.split(rest)
            copied |= set(sources)
    assert all((ROOT / source).exists() for source in copied)
    # The ignore file keeps all else out of the build, and none of these.
    kept = (ROOT / ".containerignore").read_text().split()
    for source in copied:
        pattern = re.sub(r"deploy/.*-req", "deploy/*-req", source)
        assert f"!{pattern}" in kept
    # What pip is told to install from has been copied.
    named = set(re.findall(r"-r (\S+)", " ".join(rest for _, rest in steps)))
    assert named and named <= copied
    assert all("--require-hashes" in r for w, r in steps if w == "RUN" and "-r " in r)
    user = next(rest for word, rest in final if word == "USER")
    assert user.split(":")[0].isdigit() and user.split(":")[0] != "0"
    command = next(rest for word, rest in final if word in ("ENTRYPOINT", "CMD"))
    python, flag, module, *_ = yaml.safe_load(command)
    assert (python, flag) == ("python", "-m")
    assert find_spec(module) is not None
    if file.stem == "operator":
        pod = one(build("manifests/base"), "Deployment")["spec"]["template"]["spec"]
        context = pod["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


@pytest.mark.parametrize("name", ["operator", "trainer", "build"])
def test_an_image_holds_the_very_versions_that_are_tested(name: str) -> None:
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;\\]+)", path.read_text()))

    ours = pins(ROOT / "deploy" / f"{name}-requirements.txt")
    assert ours.items() <= pins(ROOT / "requirements.txt").items()
    folder = ROOT / "trainer" if name == "trainer" else ROOT
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"].get(name, [])
    if name != "build":
        names = {re.split(r"[<>=\[]", one)[0].strip().lower() for one in wanted}
        assert names <= ours.keys()
    text = (ROOT / "deploy" / f"{name}-requirements.txt").read_text()
    assert text.count("--hash=sha256:") >= len(ours)
    assert "://" not in text


@pytest.mark.process
def test_the_trainers_distribution_holds_nothing_of_the_control_plane(tmp_path: Path) -> None:
    source = tmp_path / "trainer"  # setuptools leaves a folder build/ in what it builds
    leftovers = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "trainer", source, ignore=leftovers)
    build = [sys.executable, "-m", "uv", "build", "-q", "--wheel", "--no-build-isolation"]
    build += ["--python", sys.executable, "--out-dir", str(tmp_path), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    packages = {name.split("/")[0] for name in names if not name.split("/")[0].endswith("info")}
    assert packages == {"elastic_trainer"}
    assert "elastic_trainer/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
