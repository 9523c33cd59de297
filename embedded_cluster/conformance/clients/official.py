"""Uses the official client as its users do: typed objects, custom objects, watches, pages,
discovery.

`python official.py KUBECONFIG NAMESPACE`, with `kubernetes` of any version from 35 on.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from kubernetes.dynamic import DynamicClient
from record import Record

_GROUP = {"group": "kubeflow.org", "version": "v1", "plural": "pytorchjobs"}
_MERGE = "application/merge-patch+json"
_JSON = "application/json-patch+json"


def core_objects(saw: Record, namespace: str) -> None:
    core = client.CoreV1Api()
    meta = client.V1ObjectMeta(name="a", labels={"app": "x"}, annotations={"note": "1"})
    mine = client.V1ConfigMap(metadata=meta, data={"k": "v"})
    saw("a ConfigMap is created", core.create_namespaced_config_map, namespace, mine)
    saw("and created again", core.create_namespaced_config_map, namespace, mine)
    saw("read", core.read_namespaced_config_map, "a", namespace)
    saw("nothing read", core.read_namespaced_config_map, "nothing", namespace)
    saw("in no namespace", core.create_namespaced_config_map, f"{namespace}-not", mine)
    change = core.patch_namespaced_config_map
    saw("patched by an object", change, "a", namespace, {"data": {"k": None, "l": "m"}})
    operations = [
        {"op": "test", "path": "/data/l", "value": "m"},
        {"op": "add", "path": "/metadata/labels/y", "value": "z"},
        {"op": "remove", "path": "/metadata/annotations/note"},
    ]
    saw("patched by operations", change, "a", namespace, operations)
    saw("a test that fails", change, "a", namespace, operations)
    saw("nothing patched", change, "nothing", namespace, {"data": {}})
    saw("dry run", change, "a", namespace, {"data": {"dry": "run"}}, dry_run="All")
    found = core.read_namespaced_config_map("a", namespace)
    found.data["n"] = "o"
    saw("replaced", core.replace_namespaced_config_map, "a", namespace, found)
    saw("replaced from an old copy", core.replace_namespaced_config_map, "a", namespace, found)
    unknown = {"metadata": {"name": "u"}, "dat": {"k": "v"}}
    create = core.create_namespaced_config_map
    saw("an unknown field", create, namespace, unknown, field_validation="Strict")
    named = {"metadata": {"generateName": "generated-", "labels": {"app": "x"}}}
    saw("a name by the server", create, namespace, named)
    saw("selected", core.list_namespaced_config_map, namespace, label_selector="app in (x),!no")
    saw("selected by a field", core.list_namespaced_config_map, namespace, **_named("a"))
    wrong = {"label_selector": "a b c"}
    saw("a selector that can't be read", core.list_namespaced_config_map, namespace, **wrong)
    precondition = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))
    remove = core.delete_namespaced_config_map
    saw("deleted as another", remove, "a", namespace, body=precondition)
    saw("deleted", remove, "a", namespace, body=client.V1DeleteOptions(grace_period_seconds=0))
    saw("deleted again", remove, "a", namespace)
    every = core.delete_collection_namespaced_config_map
    saw("all of a label deleted", every, namespace, label_selector="app=x")
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="s"), string_data={"k": "v"})
    saw("a Secret", core.create_namespaced_secret, namespace, secret)
    port = client.V1ServicePort(name="p", port=80)
    service = client.V1Service(
        metadata=client.V1ObjectMeta(name="s"),
        spec=client.V1ServiceSpec(ports=[port], selector={"app": "x"}, cluster_ip="None"),
    )
    saw("a Service", core.create_namespaced_service, namespace, service)
    saw("a Service deleted", core.delete_namespaced_service, "s", namespace)
    about = client.V1ObjectReference(kind="Pod", name="p", namespace=namespace)
    event = client.CoreV1Event(
        metadata=client.V1ObjectMeta(generate_name="e-"),
        involved_object=about,
        reason="Because",
        message="said",
        type="Normal",
        source=client.V1EventSource(component="me"),
    )
    saw("an Event", core.create_namespaced_event, namespace, event)
    coordination = client.CoordinationV1Api()
    lease = client.V1Lease(
        metadata=client.V1ObjectMeta(name="l"),
        spec=client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=10),
    )
    saw("a Lease", coordination.create_namespaced_lease, namespace, lease)
    renewed = {"spec": {"renewTime": "2026-01-01T00:00:00.000001Z"}}
    saw("a Lease renewed", coordination.patch_namespaced_lease, "l", namespace, renewed)
    saw("a namespace", core.read_namespace, namespace)
    saw("a cluster's version", lambda: client.VersionApi().get_code().major)
    groups = client.ApisApi().get_api_versions().groups
    saw("groups", lambda: "kubeflow.org" in [group.name for group in groups])
    kinds = {kind.name for kind in core.get_api_resources().resources}
    saw("core kinds", lambda: sorted(kinds & {"pods", "pods/log", "pods/binding"}))


def pods(saw: Record, namespace: str) -> None:
    core = client.CoreV1Api()
    container = client.V1Container(
        name="main",
        image="image:1",
        command=["true"],
        env=[
            client.V1EnvVar(name="A", value="b"),
            client.V1EnvVar(
                name="IP",
                value_from=client.V1EnvVarSource(
                    field_ref=client.V1ObjectFieldSelector(field_path="status.podIP")
                ),
            ),
        ],
        ports=[client.V1ContainerPort(container_port=23456, name="rendezvous")],
        resources=client.V1ResourceRequirements(limits={"cpu": "0.5", "memory": "1024Mi"}),
    )
    spec = client.V1PodSpec(
        containers=[container],
        restart_policy="Never",
        scheduler_name="nobody",
        automount_service_account_token=False,
    )
    meta = client.V1ObjectMeta(name="p", labels={"app": "x"})
    saw("a Pod", core.create_namespaced_pod, namespace, client.V1Pod(metadata=meta, spec=spec))
    saw("its status", core.read_namespaced_pod_status, "p", namespace)
    pending = {"field_selector": "status.phase=Pending,spec.nodeName="}
    saw("pending pods", core.list_namespaced_pod, namespace, **pending)
    saw("its log", core.read_namespaced_pod_log, "p", namespace)
    saw("a log of nothing", core.read_namespaced_pod_log, "nothing", namespace)
    saw("of no container", core.read_namespaced_pod_log, "p", namespace, container="other")
    change = core.patch_namespaced_pod
    saw("relabelled", change, "p", namespace, {"metadata": {"labels": {"app": "y"}}})
    image = {"spec": {"containers": [{"name": "main", "image": "image:2"}]}}
    saw("another image", change, "p", namespace, image)
    variable = [{"name": "A", "value": "c"}]
    env = {"spec": {"containers": [{"name": "main", "env": variable}]}}
    saw("another environment", change, "p", namespace, env)
    target = client.V1ObjectReference(api_version="v1", kind="Node", name="nowhere")
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name="p"), target=target)
    bind = core.create_namespaced_pod_binding
    # Typed, the client can't read the answer, which is a Status.
    saw("bound", lambda: bind("p", namespace, binding, _preload_content=False).status)
    saw("bound again", bind, "p", namespace, binding)
    condition = {"type": "Ready", "status": "True"}
    running = {"status": {"phase": "Running", "conditions": [condition], "podIP": "127.0.0.9"}}
    saw("running", core.patch_namespaced_pod_status, "p", namespace, running)
    options = client.V1DeleteOptions(grace_period_seconds=5)
    saw("leaving", core.delete_namespaced_pod, "p", namespace, body=options)
    now = client.V1DeleteOptions(grace_period_seconds=0)
    saw("gone", core.delete_namespaced_pod, "p", namespace, body=now)
    saw("evicted", _evicted, core, namespace, spec)
    bad = client.V1Pod(metadata=client.V1ObjectMeta(name="Bad_Name"), spec=spec)
    saw("a wrong name", core.create_namespaced_pod, namespace, bad)


def _evicted(core: Any, namespace: str, spec: Any) -> Any:
    meta = client.V1ObjectMeta(name="e")
    core.create_namespaced_pod(namespace, client.V1Pod(metadata=meta, spec=spec))
    eviction = client.V1Eviction(metadata=meta)
    done = core.create_namespaced_pod_eviction("e", namespace, eviction, _preload_content=False)
    return done.status


def custom_objects(saw: Record, namespace: str) -> None:
    api = client.CustomObjectsApi()
    where = {**_GROUP, "namespace": namespace}
    one = {**where, "name": "job"}
    saw("a job", api.create_namespaced_custom_object, **where, body=_job("job"))
    saw("the job again", api.create_namespaced_custom_object, **where, body=_job("job"))
    saw("a job read", api.get_namespaced_custom_object, **one)
    saw("no job", api.get_namespaced_custom_object, **{**one, "name": "nothing"})
    saw("no kind", api.get_namespaced_custom_object, **{**one, "plural": "nothings"})
    saw("jobs", api.list_namespaced_custom_object, **where, label_selector="app=x")
    more = {"spec": {"elasticPolicy": {"maxReplicas": 5}}}
    saw("a job patched", api.patch_namespaced_custom_object, **one, body=more)
    wrong = {"spec": {"elasticPolicy": {"maxReplicas": "five"}}}
    saw("a job patched wrongly", api.patch_namespaced_custom_object, **one, body=wrong)
    condition = {"type": "Created", "status": "True", "reason": "Made", "message": "made"}
    status = {"status": {"conditions": [condition], "replicaStatuses": {}}}
    saw("the job's status", api.patch_namespaced_custom_object_status, **one, body=status)
    found = api.get_namespaced_custom_object(**one)
    saw("a job replaced", api.replace_namespaced_custom_object, **one, body=found)
    found["metadata"]["resourceVersion"] = "1"
    saw("from an old copy", api.replace_namespaced_custom_object, **one, body=found)
    saw("its scale", api.get_namespaced_custom_object_scale, **one)
    replicas = {"spec": {"replicas": 3}}
    saw("scaled", api.patch_namespaced_custom_object_scale, **one, body=replicas)
    options = client.V1DeleteOptions(propagation_policy="Foreground")
    saw("a job deleted", api.delete_namespaced_custom_object, **one, body=options)
    crds = client.ApiextensionsV1Api()
    name = f"{_GROUP['plural']}.{_GROUP['group']}"
    read = crds.read_custom_resource_definition
    saw("its CRD", lambda: [v.name for v in read(name).spec.versions])
    saw("no CRD", read, "nothing.example.org")


def watches(saw: Record, namespace: str) -> None:
    core, jobs = client.CoreV1Api(), client.CustomObjectsApi()
    one = core.create_namespaced_config_map(namespace, _labelled("first"))
    since = one.metadata.resource_version
    core.create_namespaced_config_map(namespace, _labelled("second"))
    core.patch_namespaced_config_map("first", namespace, {"data": {"k": "w"}})
    core.delete_namespaced_config_map("second", namespace)
    listed, shown = core.list_namespaced_config_map, {"label_selector": "page=y"}
    brief = {**shown, "timeout_seconds": 1}
    saw("what is there", _stream, listed, namespace, **brief)
    saw("resumed", _stream, listed, namespace, resource_version=since, **brief)
    saw("no version", _stream, listed, namespace, resource_version="word", **brief)
    events = watch.Watch()

    def until_gone() -> list[Any]:
        """Begun once, and resumed by the client for as long as the object is there."""
        seen = []
        for event in events.stream(listed, namespace, **shown):
            seen.append([event["type"], event["object"].metadata.name, event["object"].data])
            if event["type"] == "ADDED":
                core.patch_namespaced_config_map("first", namespace, {"data": {"k": "x"}})
            elif event["type"] == "MODIFIED":
                core.delete_namespaced_config_map("first", namespace)
            else:
                events.stop()
        return seen

    saw("until it is gone", until_gone)
    where = {**_GROUP, "namespace": namespace}
    jobs.create_namespaced_custom_object(**where, body=_job("watched"))
    found = jobs.list_namespaced_custom_object
    saw("jobs as they come", _stream, found, **where, timeout_seconds=1)


def _stream(listed: Any, *arguments: Any, **options: Any) -> list[Any]:
    return [
        [event["type"], event["raw_object"]]
        for event in watch.Watch().stream(listed, *arguments, **options)
    ]


def pages(saw: Record, namespace: str) -> None:
    core, plain = client.CoreV1Api(), client.ApiClient().sanitize_for_serialization
    for number in range(5):
        core.create_namespaced_config_map(namespace, _labelled(f"page-{number}"))
    token, seen = None, []
    while token != "":
        chosen = {"label_selector": "page=y", "limit": 2, "_continue": token}
        page = plain(core.list_namespaced_config_map(namespace, **chosen))
        token = page["metadata"].get("continue", "")
        seen.append([one["metadata"]["name"] for one in page["items"]])
    saw("pages", lambda: seen)
    for number in range(2):
        core.create_namespaced_secret(namespace, {"metadata": {"name": f"page-{number}"}})
    first = core.list_namespaced_secret(namespace, limit=1)
    saw("how many remain", lambda: first.metadata.remaining_item_count)
    wrong = {"limit": 2, "_continue": "nonsense"}
    saw("a wrong token", core.list_namespaced_config_map, namespace, **wrong)


def dynamic(saw: Record, namespace: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        api = DynamicClient(client.ApiClient(), cache_file=str(Path(folder) / "discovery"))
        jobs = api.resources.get(api_version="kubeflow.org/v1", kind="PyTorchJob")
        saw("a kind discovered", lambda: [jobs.name, jobs.namespaced, sorted(jobs.verbs)])
        saw("its subresources", lambda: sorted(jobs.subresources))
        # Core alone: a search without a prefix asks for every group that was listed, and breaks
        # off at one of another case's that has been deleted since.
        in_core = {"prefix": "api", "api_version": "v1"}
        short = api.resources.get(short_names=["cm"], **in_core)
        saw("by its short name", lambda: [short.kind, short.group_version])
        saw("an unknown kind", api.resources.get, kind="Nonsense", **in_core)
        where = {"namespace": namespace}
        saw("d: created", jobs.create, body=_job("dynamic"), **where)
        saw("d: read", jobs.get, name="dynamic", **where)
        saw("d: not found", jobs.get, name="nothing", **where)
        body: Any = {"metadata": {"name": "dynamic", "labels": {"app": "z"}}}
        saw("d: merged", jobs.patch, body=body, content_type=_MERGE, **where)
        body = [{"op": "replace", "path": "/metadata/labels/app", "value": "w"}]
        saw("d: JSON", jobs.patch, name="dynamic", body=body, content_type=_JSON, **where)
        body = {"metadata": {"name": "dynamic"}, "spec": {"elasticPolicy": {"maxReplicas": 6}}}
        # The client's default is a strategic merge, which custom resources don't have.
        saw("d: strategic", jobs.patch, body=body, **where)
        saw("d: status", jobs.status.get, name="dynamic", **where)
        saw("d: selected", jobs.get, label_selector="app=w", **where)
        maps = api.resources.get(kind="ConfigMap", **in_core)
        applied(saw, maps, where)
        newest = jobs.get(**where).metadata.resourceVersion
        jobs.delete(name="dynamic", **where)
        stream = api.watch(jobs, namespace=namespace, resource_version=newest, timeout=1)
        saw("d: watched", lambda: [[one["type"], one["raw_object"]] for one in stream])


def applied(saw: Record, maps: Any, where: dict[str, str]) -> None:
    """Server-side apply by two managers."""

    def body(**data: str) -> dict[str, Any]:
        meta = {"name": "applied", **where}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}

    apply = maps.server_side_apply
    saw("applied", apply, body=body(a="1", b="1"), field_manager="one")
    saw("by another", apply, body=body(c="1"), field_manager="two")
    saw("in conflict", apply, body=body(a="2"), field_manager="two")
    forced = {"field_manager": "two", "force_conflicts": True}
    saw("by force", apply, body=body(a="2"), **forced)
    saw("given up", apply, body=body(b="1"), field_manager="one")
    saw("by nobody", apply, body=body(a="3"))


def _named(name: str) -> dict[str, str]:
    return {"field_selector": f"metadata.name={name}"}


def _labelled(name: str) -> Any:
    meta = client.V1ObjectMeta(name=name, labels={"page": "y"})
    return client.V1ConfigMap(metadata=meta, data={"k": "v"})


def _job(name: str) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "image:1"}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }


def main() -> None:
    kubeconfig, namespace = sys.argv[1:]
    config.load_kube_config(kubeconfig)
    saw = Record()
    for part in (core_objects, pods, custom_objects, watches, pages, dynamic):
        part(saw, namespace)
    saw.written()


if __name__ == "__main__":
    main()
