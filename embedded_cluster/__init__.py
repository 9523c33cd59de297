"""The embedded cluster: API server, scheduler and kubelet on loopback, each its own process."""
