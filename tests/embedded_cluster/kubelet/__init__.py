"""Guards embedded_cluster.kubelet: pods as processes."""
