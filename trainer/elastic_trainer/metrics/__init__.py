"""Serves numbers and status over HTTP, in Prometheus' text format."""
