"""Kubernetes' REST interface over loopback, as far as this project and kubectl need it."""
