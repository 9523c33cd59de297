"""The same hypothesis examples each time in CI, so that a landing is judged by its own change."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
