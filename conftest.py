"""The same hypothesis examples each time in CI, so that a landing is judged by its own change."""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
# For a night: `pytest tests/embedded_cluster -k fuzz --hypothesis-profile long`.
settings.register_profile("long", max_examples=20_000)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--control-plane",
        choices=("embedded", "real", "kubeconfig"),
        default="embedded",
        help="what e2e/ runs on: our own API server, the one that `make controlplane` built, or "
        "the cluster of $KUBECONFIG, which the tests add nodes and CRDs to (default: %(default)s)",
    )
    parser.addoption("--long", action="store_true", help="minutes where CI has seconds")
