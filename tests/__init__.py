"""Tests by package: tests/NAME guards the package NAME."""
