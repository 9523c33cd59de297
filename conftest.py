"""The same hypothesis examples each time in CI, so that a landing is judged by its own change."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
# For a night: `pytest tests/test_apiserver_fuzz.py --hypothesis-profile long`.
settings.register_profile("long", max_examples=20_000)
if os.environ.get("CI"):
    settings.load_profile("ci")
