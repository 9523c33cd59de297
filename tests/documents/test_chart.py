"""The Helm chart makes of manifests/ what kustomize makes of it, and its values are described."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.oci_layout import MANIFEST, layout, write
from deploy.release import pack_chart
from tests.documents.test_manifests import build, one, with_components

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
NAMESPACE = "volcano-elastic-system"
HELM = shutil.which("helm") or str(ROOT / "build" / "helm" / "helm")
REFERENCE = "org.opencontainers.image.ref.name"
Object = dict[str, Any]
needs_helm = pytest.mark.skipif(not Path(HELM).exists(), reason="no helm: make build/helm/helm")


def helm(*arguments: str) -> str:
    """Return what helm printed; the test fails if it did."""
    code, out, said = _helm(*arguments)
    assert code == 0, said
    return out


def _helm(*arguments: str) -> tuple[int, str, str]:
    command = [HELM, *arguments, "--kube-version", "1.34.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def template(*values: str, chart: Path = CHART, namespace: str = NAMESPACE) -> list[Object]:
    sets = [word for value in values for word in ("--set", value)]
    text = helm("template", "volcano-elastic", str(chart), "-n", namespace, *sets)
    return [found for found in yaml.safe_load_all(text) if found]


def by_name(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    made = {}
    for obj in objects:
        meta = obj["metadata"]
        if not meta.get("annotations", True):
            del meta["annotations"]
        made[obj["kind"], meta.get("namespace", ""), meta["name"]] = obj
    return made


# Without helm


def test_the_schema_describes_every_value_and_no_other() -> None:
    def names(value: Any, schema: Object, path: str) -> None:
        assert (schema.get("type") == "object") == isinstance(value, dict), path
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            # Helm itself gives each chart `global`.
            assert value.keys() == schema["properties"].keys() - {"global"}, path
            for name, child in value.items():
                names(child, schema["properties"][name], f"{path}.{name}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names(values, json.loads((CHART / "values.schema.json").read_text()), "values")


def test_the_templates_read_every_file_that_kustomize_does() -> None:
    texts = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    read = set(
        re.findall(
            r'"((?:base|webhook|monitoring|other-jobs|kueue|cordon|dashboard|brain)/[\w-]+\.yaml)"',
            texts,
        )
    )
    for folder in (
        "base",
        "webhook",
        "monitoring",
        "other-jobs",
        "kueue",
        "cordon",
        "dashboard",
        "brain",
    ):
        kustomization = ROOT / "manifests" / folder / "kustomization.yaml"
        resources = yaml.safe_load(kustomization.read_text())["resources"]
        assert {f"{folder}/{name}" for name in resources} <= read, folder
    assert all((CHART / "files" / "manifests" / name).is_file() for name in read)


def test_the_packed_chart_is_the_same_each_time(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(pack_chart(ROOT, tmp_path / name, "0.0.1", 1_700_000_000).read_bytes())
    assert made[0] == made[1]


def test_the_layout_names_its_blobs_by_their_digests(tmp_path: Path) -> None:
    chart = pack_chart(ROOT, tmp_path, "0.0.1", 1_700_000_000)
    files = layout(chart.read_bytes())
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    (manifest,) = json.loads(files["index.json"])["manifests"]
    (layer,) = json.loads(files[f"blobs/{manifest['digest'].replace(':', '/')}"])["layers"]
    assert files[f"blobs/{layer['digest'].replace(':', '/')}"] == chart.read_bytes()
    first = write(chart, 1_700_000_000).read_bytes()
    assert write(chart, 1_700_000_000).read_bytes() == first


# With helm (`make chart-check`)


@pytest.mark.process
@needs_helm
def test_helm_pulls_the_chart_of_the_layout_from_a_registry(tmp_path: Path) -> None:
    chart = pack_chart(ROOT, tmp_path, "0.0.1", 0)
    files = layout(chart.read_bytes())
    (tag,) = json.loads(files["index.json"])["manifests"]

    class Registry(BaseHTTPRequestHandler):
        """Serves the layout as registries serve what was pushed to them."""

        def do_GET(self) -> None:
            what = self.path.rpartition("/")[2]
            digest = tag["digest"] if what == tag["annotations"][REFERENCE] else what
            content = files.get(f"blobs/{digest.replace(':', '/')}", b"{}")
            self.send_response(200)
            self.send_header("Content-Type", MANIFEST if "/manifests/" in self.path else "x/y")
            self.send_header("Docker-Content-Digest", digest)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pulled = tmp_path / "pulled"
        pulled.mkdir()
        address = f"oci://127.0.0.1:{server.server_port}/charts/volcano-elastic"
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
        command = ["pull", address, "--version", version, "--plain-http", "-d", str(pulled)]
        done = subprocess.run([HELM, *command], capture_output=True, text=True, timeout=60)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    (got,) = pulled.iterdir()
    assert got.read_bytes() == chart.read_bytes()


@pytest.mark.process
@needs_helm
def test_helm_finds_nothing_to_complain_of() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.process
@needs_helm
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_the_chart_is_what_kustomize_builds(packed: bool, tmp_path: Path) -> None:
    chart = pack_chart(ROOT, tmp_path, "0.0.1", 0) if packed else CHART
    # Helm makes namespaces by --create-namespace, and would delete CRDs, hence jobs.
    ours = by_name(template("namespace.create=true", "crds.keep=false", chart=chart))
    assert ours == by_name(build("manifests/default"))


@pytest.mark.process
@needs_helm
def test_monitoring_is_what_kustomize_builds() -> None:
    ours = template("podMonitor.enabled=true", "alerts.enabled=true", "dashboards.enabled=true")
    for kind in ("PodMonitor", "PrometheusRule"):
        assert one(ours, kind) == one(build("manifests/monitoring"), kind)
    assert one(ours, "ConfigMap") == one(build("manifests/dashboards"), "ConfigMap")


@pytest.mark.process
@needs_helm
def test_other_jobs_are_what_kustomize_builds(tmp_path: Path) -> None:
    sets = ("namespace.create=true", "crds.keep=false", "otherJobs={Job}")
    for more, components in (((), ("other-jobs",)), (("kueue=true",), ("other-jobs", "kueue"))):
        ours = by_name(template(*sets, *more, "page.enabled=true"))
        assert ours == by_name(with_components(tmp_path, *components, page=True))
        # Kustomize can't tell whether there is a page to give rights to.
        built = by_name(with_components(tmp_path, *components))
        of_page = {key for key in built if key[2].startswith("volcano-elastic-dashboard-")}
        assert len(of_page) == 2 * len(components)
        wanted = {key: obj for key, obj in built.items() if key not in of_page}
        assert by_name(template(*sets, *more)) == wanted


@pytest.mark.process
@needs_helm
def test_the_page_is_what_kustomize_builds() -> None:
    ours = by_name(template("page.enabled=true", "namespace.create=true", "crds.keep=false"))
    assert ours == by_name([*build("manifests/default"), *build("manifests/dashboard")])


@pytest.mark.process
@needs_helm
def test_brain_is_what_kustomize_builds() -> None:
    ours = by_name(template("brain.enabled=true", "namespace.create=true", "crds.keep=false"))
    assert ours == by_name([*build("manifests/default"), *build("manifests/brain")])


@pytest.mark.process
@needs_helm
def test_brain_on_a_database_of_ones_own_has_no_volume() -> None:
    objects = template(
        "brain.enabled=true", "brain.databaseSecret=history", "brain.extraArgs={--mode=Off}"
    )
    name = "volcano-elastic-brain"
    made = {o["kind"]: o for o in objects if o["metadata"]["name"] == name}
    assert "PersistentVolumeClaim" not in made
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-1] == "--mode=Off"
    assert not {"volumes", "volumeMounts"} & (pod.keys() | container.keys())
    (variable,) = container["env"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "history", "key": "url"}}


@pytest.mark.process
@needs_helm
def test_values_reach_the_page() -> None:
    objects = template(
        "page.enabled=true",
        "page.hostNames={gpus.example.com}",
        "page.tokenSecret=elsewhere",
        "page.storage.size=5Gi",
        "page.storage.className=fast",
        "networkPolicy.enabled=false",
        "image.tag=9.9.9",
    )
    page = next(o for o in objects if o["metadata"]["name"] == "volcano-elastic-dashboard")
    made = {o["kind"]: o for o in objects if o["metadata"]["name"] == page["metadata"]["name"]}
    assert "NetworkPolicy" not in made
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-1] == "--host-name=gpus.example.com"
    assert container["image"] == "volcano-elastic-operator:9.9.9"
    assert pod["volumes"][0]["secret"]["secretName"] == "elsewhere"
    claim = made["PersistentVolumeClaim"]["spec"]
    assert claim["resources"]["requests"] == {"storage": "5Gi"}
    assert claim["storageClassName"] == "fast"


@pytest.mark.process
@needs_helm
def test_a_release_lives_in_its_own_namespace() -> None:
    objects = template(namespace="elsewhere")
    assert NAMESPACE not in json.dumps(objects)
    assert {o["metadata"].get("namespace") for o in objects} == {
        None,
        "elsewhere",
        "volcano-system",
    }


@pytest.mark.process
@needs_helm
def test_crds_are_upgraded_with_the_release_and_outlive_it() -> None:
    crds = [o for o in template() if o["kind"] == "CustomResourceDefinition"]
    assert len(crds) == 3
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    kinds = {o["kind"] for o in template("crds.enabled=false")}
    assert "CustomResourceDefinition" not in kinds


@pytest.mark.process
@needs_helm
def test_values_reach_the_pods() -> None:
    digest = f"sha256:{'0' * 64}"
    objects = template(
        "replicas=3",
        "image.repository=registry.example.com/operator",
        f"image.digest={digest}",
        "extraArgs={--lost-after=120}",
        "resources.limits.memory=4Gi",
        "nodeSelector.pool=system",
        "priorityClassName=system-cluster-critical",
        "podLabels.team=ml",
    )
    deployment = one(objects, "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["replicas"] == 3
    assert container["image"] == f"registry.example.com/operator@{digest}"
    assert container["args"][-1] == "--lost-after=120" and len(container["args"]) > 3
    assert container["resources"] == {"limits": {"memory": "4Gi"}}
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["priorityClassName"] == "system-cluster-critical"
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "ml"


@pytest.mark.process
@needs_helm
def test_parts_can_be_left_out() -> None:
    kinds = {o["kind"] for o in template("podDisruptionBudget.enabled=false")}
    assert "PodDisruptionBudget" not in kinds
    kinds = {o["kind"] for o in template("webhooks.enabled=false", "networkPolicy.enabled=false")}
    assert not kinds & {"NetworkPolicy", "ValidatingWebhookConfiguration"}


@pytest.mark.process
@needs_helm
def test_a_service_monitor_finds_the_metrics() -> None:
    objects = template("serviceMonitor.enabled=true", "serviceMonitor.interval=15s")
    monitor = one(objects, "ServiceMonitor")["spec"]
    service = next(o for o in objects if o["metadata"]["name"] == "volcano-elastic-metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,), (port,) = monitor["endpoints"], service["spec"]["ports"]
    assert endpoint == {"port": port["name"], "path": "/metrics", "interval": "15s"}
    pod = one(objects, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert port["targetPort"] in {p["name"] for p in pod["spec"]["containers"][0]["ports"]}


@pytest.mark.process
@needs_helm
@pytest.mark.parametrize(
    "value",
    [
        "replica=3",
        "replicas=0",
        "image.pullPolicy=Sometimes",
        "extraArgs={lost}",
        "crds.keep=yes",
        "otherJobs={Pod}",
    ],
)
def test_a_value_that_is_none_is_refused(value: str) -> None:
    code, _, said = _helm("template", "volcano-elastic", str(CHART), "--set", value)
    assert code and "don't meet the specifications of the schema" in said
