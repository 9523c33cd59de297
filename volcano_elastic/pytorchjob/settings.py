"""What the one who installs the operator may choose about the pods it makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Named as training-operator's flags `--pytorch-init-container-image` and `…-max-tries`."""

    init_container_image: str | None = None
    """Needs only a POSIX shell, and getent or nslookup. None: the job's own image, which the node
    pulls anyway."""
    init_container_max_tries: int = 100
    """Two seconds apart."""


DEFAULTS = Settings()
