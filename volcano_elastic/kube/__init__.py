"""Talking to a Kubernetes API server in plain dicts: client, informer, work queue, events."""
