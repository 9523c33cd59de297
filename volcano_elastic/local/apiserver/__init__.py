"""Kubernetes' REST interface over loopback, as much of it as this project's clients and kubectl use."""
