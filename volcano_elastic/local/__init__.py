"""The embedded cluster: an API server, a scheduler and a kubelet on loopback, each its own process."""
