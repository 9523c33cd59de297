"""How Volcano divides the cluster among queues, which only its scheduler's configuration says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import yaml

from volcano_elastic.kube.client import ApiError, Client, NotFound
from volcano_elastic.kube.resource import CONFIGMAPS

_log = logging.getLogger(__name__)
# The scheduler itself reads a change of its configuration within a minute or so.
_ASK_SECONDS = 30.0
NAMESPACE, CONFIGMAP = "volcano-system", "volcano-scheduler-configmap"


def by_proportion(configmap: Mapping[str, Any]) -> bool | None:
    """Whether the proportion plugin is on in the ConfigMap; None if it says nothing readable."""
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


async def watch_division(client: Client, tell: Callable[[bool], None]) -> None:
    """Tells what the scheduler's ConfigMap says, as far as it may be read; until cancelled."""
    refused = False
    while True:
        try:
            found = by_proportion(await client.get(CONFIGMAPS, CONFIGMAP, NAMESPACE))
            if found is not None:
                tell(found)
        except NotFound:
            pass
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            if not refused:
                _log.warning(
                    "ConfigMap %s/%s was not read, so that queues are planned as under the "
                    "capacity plugin unless --queue-plugin says otherwise: %s",
                    NAMESPACE,
                    CONFIGMAP,
                    error or type(error).__name__,
                )
            refused = True
        await asyncio.sleep(_ASK_SECONDS)
