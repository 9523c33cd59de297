"""Finds the plugin by which Volcano divides the cluster among queues, in its scheduler's
ConfigMap."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import yaml

from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import CONFIGMAPS, Object

_log = logging.getLogger(__name__)
NAMESPACE, CONFIGMAP = "volcano-system", "volcano-scheduler-configmap"


def by_proportion(configmap: Mapping[str, Any]) -> bool | None:
    """Return whether the ConfigMap turns the proportion plugin on; None if it can't be read."""
    for name, text in sorted((configmap.get("data") or {}).items()):
        if not str(name).endswith(".conf"):
            continue
        try:
            document = yaml.safe_load(text)
            plugins = [plugin for tier in document["tiers"] for plugin in tier["plugins"]]
            return any(plugin["name"] == "proportion" for plugin in plugins)
        except (yaml.YAMLError, KeyError, TypeError):
            continue
    return None


async def watch_queue_plugin(client: Client, tell: Callable[[bool], None]) -> None:
    """Tells what the scheduler's ConfigMap says; until cancelled, or at once if it may not be
    read."""
    try:
        await client.get(CONFIGMAPS, CONFIGMAP, NAMESPACE)
    except (aiohttp.ClientError, TimeoutError):
        pass
    except ApiError as error:
        if error.code in (401, 403):
            # A watch would ask again and again for what somebody has decided to withhold.
            _log.warning(
                "ConfigMap %s/%s may not be read, so that queues are planned as under the capacity "
                "plugin unless --queue-plugin says otherwise: %s",
                NAMESPACE,
                CONFIGMAP,
                error,
            )
            return
    watched = Informer(
        client, CONFIGMAPS, namespace=NAMESPACE, field_selector=f"metadata.name={CONFIGMAP}"
    )

    def note(old: Object | None, new: Object | None) -> None:
        if new is not None and (found := by_proportion(new)) is not None:
            tell(found)

    watched.on_change(note)
    await watched.run()
