"""Settings of the pods that the operator makes, for the one who installs it."""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.pytorchjob.failure_rule import FailureRule


@dataclass(frozen=True, slots=True)
class Settings:
    """Named as training-operator's flags `--pytorch-init-container-image` and `…-max-tries`."""

    init_container_image: str | None = None
    """Needs only a POSIX shell, and getent or nslookup. None: the job's own image, which the node
    pulls anyway."""
    init_container_max_tries: int = 100
    """Two seconds apart."""
    trainer_image: str = "volcano-elastic-trainer"
    """From which jobs get the trainer whose annotation asks for it and names no image."""
    trainer_folder: str = "/opt/volcano-elastic-trainer"
    """The folder that is copied of that image, and of those that jobs name."""
    failure_rules: tuple[FailureRule, ...] = ()
    """Rows beside the operator's own table of failures."""


DEFAULTS = Settings()
