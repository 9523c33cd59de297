"""Where the API server is and how to prove who we are."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeconfigError(Exception):
    """The kubeconfig is missing, unreadable, or names no usable cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    server: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None
    namespace: str = "default"
    token_file: Path | None = None
    """Holds the bearer token; read again and again, since it is replaced before it runs out."""

    def secrets(self) -> tuple[str, ...]:
        """What must not appear in a log."""
        found = [value.removeprefix("Bearer ") for value in self.headers.values()]
        # The embedded cluster's kubeconfig has the token in the URL: kubectl sends none by HTTP.
        _, _, token = self.server.partition("/token/")
        if self.token_file is not None:
            found.append(self.token_file.read_text().strip())
        return tuple(secret for secret in (*found, token) if secret)


def load(path: str | None = None) -> Access:
    """Access from `path`, else $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Static credentials are read here, since importing the official client costs over a second;
    exec plug-ins and auth providers are left to it.

    Raises:
        KubeconfigError: nothing usable was found; says where it looked.
    """
    explicit = path or os.environ.get("KUBECONFIG")
    if not explicit and (_SERVICE_ACCOUNT / "token").exists():
        return _in_cluster()
    file = Path(explicit) if explicit else Path.home() / ".kube" / "config"
    try:
        config = yaml.safe_load(file.read_text())
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {file}: {error.strerror}; give --kubeconfig") from error
    except yaml.YAMLError as error:
        raise KubeconfigError(f"kubeconfig {file} is not YAML: {error}") from error
    try:
        wanted = config["current-context"]
        context = _named(config["contexts"], wanted)["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        server = str(cluster["server"])
    except (KeyError, TypeError, StopIteration) as error:
        raise KubeconfigError(
            f"kubeconfig {file}: expected current-context, contexts, clusters and users "
            f"that name one another, found none for {error}"
        ) from error
    if "exec" in user or "auth-provider" in user:
        return _by_official_client(str(file))
    token, token_file = user.get("token"), user.get("tokenFile")
    tls = _tls(cluster, user) if server.startswith("https") else None
    return Access(
        server.rstrip("/"),
        {"Authorization": f"Bearer {token}"} if token else {},
        tls,
        context.get("namespace", "default"),
        None if token or not token_file else Path(token_file),
    )


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _in_cluster() -> Access:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    tls = ssl.create_default_context(cafile=str(_SERVICE_ACCOUNT / "ca.crt"))
    namespace = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    if ":" in host:
        host = f"[{host}]"
    return Access(f"https://{host}:{port}", {}, tls, namespace, _SERVICE_ACCOUNT / "token")


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    ca_data = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(ca_data).decode() if ca_data else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    cert, key = user.get("client-certificate"), user.get("client-key")
    if cert:
        context.load_cert_chain(cert, key)
    elif user.get("client-certificate-data"):
        # ssl reads certificates from files only.
        with tempfile.NamedTemporaryFile() as both:
            for part in ("client-certificate-data", "client-key-data"):
                both.write(base64.b64decode(user[part]) + b"\n")
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _by_official_client(path: str) -> Access:
    from kubernetes import client, config

    configuration = client.Configuration()
    config.load_kube_config(config_file=path, client_configuration=configuration)
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    token = configuration.get_api_key_with_prefix("authorization")
    return Access(configuration.host, {"Authorization": token} if token else {}, tls)
