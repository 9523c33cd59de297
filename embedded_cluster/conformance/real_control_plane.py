"""etcd, kube-apiserver and kube-controller-manager on loopback, as `make controlplane` built them.

Each has its own certificates, users and temporary folder, so that any number can run at once.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from embedded_cluster.conformance.certificates import Authority, signing_key
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane, ControlPlaneError
from volcano_elastic.kube.resource import Object

BINARIES = ROOT / "build" / "controlplane"
# What a job, its pods and our nodes need; the rest would only cost time at each start.
_CONTROLLERS = (
    "namespace-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "garbage-collector-controller",
    "node-lifecycle-controller",
    "horizontal-pod-autoscaler-controller",
    "deployment-controller",
    "job-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
)
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager"]},
        {"level": "Metadata"},
    ],
}


class RealControlPlane(ControlPlane):
    name = "real"
    api_server = "kube-apiserver"

    def __init__(self) -> None:
        super().__init__()
        self._authority: Authority
        self._port: socket.socket | None = None
        self.server = ""

    def _start(self) -> None:
        missing = [
            name
            for name in ("etcd", "kube-apiserver", "kube-controller-manager")
            if not os.access(BINARIES / name, os.X_OK)
        ]
        if missing:
            raise ControlPlaneError(
                f"expected {', '.join(missing)} in {BINARIES}, found none; run `make controlplane`"
            )
        # Held for as long as we live, so that nobody else gets the port, not even while the
        # API server is down: --permit-port-sharing lets it bind beside a socket that only binds.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind(("127.0.0.1", 0))
        self.server = f"https://127.0.0.1:{self._port.getsockname()[1]}"
        self._authority = Authority(self.folder)
        self.kubeconfig = self.kubeconfig_of("e2e-administrator", ("system:masters",))
        self._start_etcd()
        self._start_apiserver()
        self.until(lambda: self._answers("/readyz"), "the API server is ready")
        # The garbage collector looks for new kinds twice a minute only, so they come first.
        self.install_crds()
        self._start_controllers()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.until(lambda: self._answers(account), "the default service account exists")

    def _start_etcd(self) -> None:
        # Clients come by a socket in our folder; the advertised addresses are for members only,
        # of which there are no others, but etcd insists on the form.
        nowhere = "http://127.0.0.1:1"
        self.component(
            "etcd",
            [
                *(str(BINARIES / "etcd"), "--data-dir", str(self.folder / "etcd")),
                *("--listen-client-urls", self._etcd, "--advertise-client-urls", nowhere),
                *("--listen-peer-urls", "http://127.0.0.1:0"),
                *("--initial-advertise-peer-urls", nowhere),
                *("--initial-cluster", f"default={nowhere}"),
                *("--log-level", "warn", "--unsafe-no-fsync"),
            ],
        )

    @property
    def _etcd(self) -> str:
        return f"unix://{self.folder / 'etcd.sock'}"

    def _start_apiserver(self) -> None:
        serving = self._authority.server("kube-apiserver")
        kubelet = self._authority.server("kubelet")
        to_kubelet = self._authority.client("to-kubelet", "kube-apiserver-kubelet-client")
        authority = self._authority.certificate
        self.kubelet_arguments = [
            "--serve-logs",
            *(str(file) for file in (kubelet.certificate, kubelet.key, authority)),
        ]
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        key = str(signing_key(self.folder / "service-account.key"))
        port = self.server.rpartition(":")[2]
        self.component(
            "kube-apiserver",
            [
                str(BINARIES / "kube-apiserver"),
                f"--etcd-servers={self._etcd}",
                *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
                *(f"--secure-port={port}", "--permit-port-sharing"),
                # Nobody finds it by the `kubernetes` service, whose endpoint can't be on loopback.
                "--endpoint-reconciler-type=none",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={authority}",
                "--authorization-mode=RBAC",
                "--anonymous-auth=false",
                f"--kubelet-certificate-authority={authority}",
                f"--kubelet-client-certificate={to_kubelet.certificate}",
                f"--kubelet-client-key={to_kubelet.key}",
                "--kubelet-preferred-address-types=InternalIP",
                *("--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true"),
                "--service-account-issuer=https://volcano-elastic-e2e",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                f"--audit-policy-file={policy}",
                f"--audit-log-path={self.folder / 'audit.jsonl'}",
            ],
        )

    def _start_controllers(self) -> None:
        user = self.kubeconfig_of("system:kube-controller-manager", ("system:masters",))
        self.component(
            "kube-controller-manager",
            [
                str(BINARIES / "kube-controller-manager"),
                f"--kubeconfig={user}",
                f"--controllers={','.join(_CONTROLLERS)}",
                f"--service-account-private-key-file={self.folder / 'service-account.key'}",
                f"--root-ca-file={self._authority.certificate}",
                *("--leader-elect=false", "--secure-port=0"),
                # 15 s is the default: half of a test's day.
                "--horizontal-pod-autoscaler-sync-period=1s",
            ],
        )

    def kubeconfig_of(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        file = user.replace(":", "-")
        pair = self._authority.client(file, user, groups)
        cluster = {
            "server": self.server,
            "certificate-authority-data": _data(self._authority.certificate),
        }
        credentials = {
            "client-certificate-data": _data(pair.certificate),
            "client-key-data": _data(pair.key),
        }
        context = {"cluster": "e2e", "user": user, "namespace": "default"}
        path = self.folder / f"{file}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "e2e", "cluster": cluster}],
                    "users": [{"name": user, "user": credentials}],
                    "contexts": [{"name": "e2e", "context": context}],
                    "current-context": "e2e",
                }
            )
        )
        return path

    def restart(self, name: str) -> None:
        """Kills etcd, kube-apiserver or kube-controller-manager, and starts it where it was.

        Raises:
            ControlPlaneError: the API server isn't ready again in time.
        """
        self._again(name)
        self._wait_for_api_server(started=name == self.api_server)

    def start_api_server(self) -> None:
        super().start_api_server()
        self._wait_for_api_server(started=True)

    def _wait_for_api_server(self, *, started: bool) -> None:
        self.until(lambda: self._answers("/readyz"), "the API server is ready again")
        if started:
            # One that has just started does not list custom kinds yet. A garbage collector that
            # looks for kinds in that moment forgets those, and when it knows them again, half a
            # minute later, it is never told of the owners that were deleted meanwhile.
            listed = b'"kubeflow.org"'
            self.until(lambda: self._answers("/apis", listed), "the API server lists our kinds")
            self._again("kube-controller-manager")

    def _again(self, name: str) -> None:
        component = self.components[name]
        component.send(signal.SIGKILL)
        while component.running():
            time.sleep(0.01)
        component.start()

    def requests(self, user: str) -> list[Object]:
        lines = (self.folder / "audit.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [
            event
            for event in events
            if event["user"]["username"] == user and event["stage"] == "ResponseComplete"
        ]

    def _answers(self, path: str, part: bytes = b"") -> bool:
        tls = ssl.create_default_context(cafile=str(self._authority.certificate))
        pair = self.folder / "e2e-administrator"
        tls.load_cert_chain(pair.with_suffix(".crt"), pair.with_suffix(".key"))
        try:
            with urllib.request.urlopen(self.server + path, context=tls, timeout=5) as answer:
                return part in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def _stop(self) -> None:
        super()._stop()
        if self._port is not None:
            self._port.close()


def _data(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
