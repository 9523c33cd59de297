"""volcano-scheduler.conf, read strictly: what this scheduler doesn't know is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from embedded_cluster.scheduler.actions import ACTIONS
from embedded_cluster.scheduler.plugins import ARGUMENTS
from volcano_elastic import assets
from volcano_elastic.scheduler_conf import configuration as scheduler_configuration
from volcano_elastic.scheduler_conf.configuration import Configuration

DEFAULT = assets.SCHEDULER_CONFIGURATIONS["capacity"]
"""The file that clusters are given, so that there is one copy of it."""


class ConfigurationError(Exception):
    """The scheduler's configuration can't be used; says where and what would be right."""


def load(path: Path) -> Configuration:
    """
    Raises:
        ConfigurationError: `path` is unreadable, or something unknown in it.
    """
    try:
        return parse(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}; give --scheduler-conf a readable file"
        ) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a 13th month
        raise ConfigurationError(f"{path} is not YAML: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse(document: Any) -> Configuration:
    """Return the configuration in a file's text, as `load` does."""
    read, findings = scheduler_configuration.parse(
        document, actions=dict.fromkeys(ACTIONS, ()), plugins=ARGUMENTS
    )
    for found in findings:
        raise ConfigurationError(f"{found.where or 'the file'}: {found.finding}; {found.repair}")
    for key in sorted({"configurations", "metrics"} & document.keys()):
        raise ConfigurationError(f"{key}: the embedded scheduler doesn't read it; remove it")
    used = [option.name for option in read.plugins]
    for option in read.plugins:
        if used.count(option.name) > 1:
            raise ConfigurationError(
                f"tiers: plugin {option.name} is named more than once; name it once"
            )
        if option.name == "drf" and option.on("enableHierarchy"):
            raise ConfigurationError(
                "plugin drf: the embedded scheduler has no enableHierarchy of it; remove it"
            )
        for argument, value in option.arguments.items():
            text = argument == "binpack.resources"
            # As Volcano, which ignores a number in quotes; to it, a boolean is no number.
            if isinstance(value, bool) or not isinstance(value, str if text else int | float):
                raise ConfigurationError(
                    f"argument {argument} of {option.name}: expected a "
                    f"{'text' if text else 'number, without quotes'}, found {value!r}"
                )
    if {"capacity", "proportion"} <= set(used):
        raise ConfigurationError("tiers: capacity and proportion contradict each other; keep one")
    return read
