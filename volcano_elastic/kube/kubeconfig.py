"""Finds the API server and our credentials, as the official client does.

Files, contexts, exec plug-ins, certificates and service accounts are read by the package
`kubernetes`; what it found becomes an Access, which our own client asks by aiohttp. That package is
imported at the first use, since this takes a quarter of a second.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import yaml

from volcano_elastic.kube.kubeconfig_check import complaints

_COMPLAINTS = 5
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeconfigError(Exception):
    """The kubeconfig is missing, unreadable, or names no usable cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    """One API server, and what every request to it bears."""

    server: str
    headers: dict[str, str]
    """Those of the moment when it was loaded."""
    tls: ssl.SSLContext | None
    namespace: str = "default"
    renew: Callable[[bool], dict[str, str]] | None = None
    """Returns the headers that hold now: tokens run out, and files with tokens are replaced. True
    says that the server refused the last ones, though they might hold. May take seconds, where a
    plug-in is run; None where they never change."""
    proxy: str | None = None
    """URL of the HTTP proxy through which the server is reached."""
    server_hostname: str | None = None
    """The name in the server's certificate, where the URL has another."""

    def secrets(self) -> tuple[str, ...]:
        """Return what must not appear in a log."""
        headers = self.headers if self.renew is None else self.headers | self.renew(False)
        found = [value.partition(" ")[2] or value for value in headers.values()]
        # The embedded cluster's kubeconfig has the token in the URL: kubectl sends none by HTTP.
        _, _, token = self.server.partition("/token/")
        return tuple(secret for secret in (*found, token) if secret)


def load(path: str | None = None) -> Access:
    """Return the access of `path`, else $KUBECONFIG (one or more files), else the pod's service
    account, else ~/.kube/config.

    Raises:
        KubeconfigError: nothing usable was found; says where it looked.
    """
    explicit = path or os.environ.get("KUBECONFIG")
    if not explicit and (_SERVICE_ACCOUNT / "token").exists():
        return in_cluster(_SERVICE_ACCOUNT, os.environ)
    return _of_files(explicit or str(Path.home() / ".kube" / "config"))


def in_cluster(account: Path, environment: Mapping[str, str]) -> Access:
    """Return the access of a pod's service account.

    Args:
        account: the folder in which its token, namespace and authority are mounted.
        environment: names the API server (KUBERNETES_SERVICE_HOST and _PORT).

    Raises:
        KubeconfigError: one of them is missing.
    """
    from kubernetes.client import Configuration
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.incluster_config import InClusterConfigLoader

    configuration = Configuration()
    try:
        InClusterConfigLoader(
            token_filename=str(account / "token"),
            cert_filename=str(account / "ca.crt"),
            environ=environment,
        ).load_and_set(configuration)
        namespace = (account / "namespace").read_text().strip()
    except (ConfigException, OSError) as error:
        raise KubeconfigError(f"service account in {account}: {error}") from error
    return _access(configuration, namespace, "", lambda refused: _headers(configuration))


def _of_files(paths: str) -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

    try:
        _check(paths)
        merged = KubeConfigMerger(paths).config
        if merged is None:
            raise KubeconfigError(
                f"kubeconfig {paths}: No such file or directory; give --kubeconfig"
            )
        loader = KubeConfigLoader(config_dict=merged, config_base_path=None)
        context = loader.current_context["context"]
        cluster = merged["clusters"].get_with_name(context["cluster"])["cluster"]
        user = merged["users"].get_with_name(context["user"])
        configuration = Configuration()
        loader.load_and_set(configuration)
        fields = dict(user["user"].value) if "user" in user and user.value["user"] else {}
        proxy = _proxy(configuration, "proxy-url" in cluster)
        headers = _headers(configuration)
        if "exec" in fields and not headers and not configuration.cert_file:
            raise KubeconfigError(
                f"kubeconfig {paths}: expected credentials from the plug-in "
                f"{fields['exec'].get('command')!r}, found none; run it by hand, and see the log"
            )
        folder = Path(user.path or paths).absolute().parent

        def again(refused: bool) -> dict[str, str]:
            if refused:
                loader.load_and_set(configuration)
            return _headers(configuration)

        renew = _renewing(fields, folder, again)
        return _access(configuration, context.get("namespace") or "default", proxy, renew)
    except (ConfigException, KeyError, TypeError, AttributeError, ValueError) as error:
        raise KubeconfigError(
            f"kubeconfig {paths}: expected current-context, contexts, clusters and users that "
            f"name one another: {error}"
        ) from error
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise KubeconfigError(
            f"kubeconfig {paths}: {error.strerror or error}{where}; give --kubeconfig"
        ) from error
    except yaml.YAMLError as error:
        raise KubeconfigError(f"kubeconfig {paths} is not YAML: {error}") from error


def _check(paths: str) -> None:
    """Raise KubeconfigError for fields of a wrong type in the files; those that exist."""
    for file in map(Path, filter(None, paths.split(os.pathsep))):
        if not file.exists():
            continue
        try:
            found = list(complaints(file.expanduser()))
        except yaml.YAMLError as error:
            raise KubeconfigError(f"kubeconfig {file} is not YAML: {error}") from error
        except UnicodeDecodeError as error:
            raise KubeconfigError(f"kubeconfig {file} is not text: {error}") from error
        if found:
            more = f"; and {len(found) - _COMPLAINTS} more" if len(found) > _COMPLAINTS else ""
            raise KubeconfigError(f"kubeconfig: {'; '.join(found[:_COMPLAINTS])}{more}")


def _renewing(
    user: Mapping[str, Any], folder: Path, again: Callable[[bool], dict[str, str]]
) -> Callable[[bool], dict[str, str]] | None:
    """Return what gives the user's present headers; None where they are the same for ever."""
    if "exec" in user or "auth-provider" in user:
        return again
    if user.get("tokenFile") and not user.get("token"):
        # The official client reads it once; kubelets replace such files.
        file = folder / str(user["tokenFile"])
        return lambda refused: {"Authorization": f"Bearer {file.read_text().strip()}"}
    return None


def _headers(configuration: Any) -> dict[str, str]:
    """Runs the official client's hook, which gets a new token if this one runs out soon."""
    key = configuration.get_api_key_with_prefix("BearerToken")
    # Its in-cluster loader writes "bearer", and passes the file's last newline on.
    return (
        {"Authorization": f"Bearer {key[7:].strip()}"}
        if _is_bearer(key)
        else ({"Authorization": key} if key else {})
    )


def _is_bearer(key: str | None) -> bool:
    return key is not None and key[:7].lower() == "bearer "


def _access(
    configuration: Any,
    namespace: str,
    proxy: str,
    renew: Callable[[bool], dict[str, str]] | None,
) -> Access:
    server = str(configuration.host).rstrip("/")
    return Access(
        server,
        _headers(configuration),
        _tls(configuration) if server.startswith("https") else None,
        namespace,
        renew,
        proxy or None,
        cast("str | None", configuration.tls_server_name),
    )


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _proxy(configuration: Any, named: bool) -> str:
    """Return the proxy's URL, or nothing: one that the environment names isn't for this machine.

    Raises:
        KubeconfigError: it is none that aiohttp speaks to.
    """
    proxy, host = str(configuration.proxy or ""), urlsplit(configuration.host).hostname or ""
    if not proxy or (not named and (_is_here(host) or urllib.request.proxy_bypass(host))):
        return ""
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise KubeconfigError(f"proxy-url: expected http:// or https://, found {proxy!r}")
    return proxy


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
