"""Guards embedded_cluster: API server, scheduler, kubelet."""
