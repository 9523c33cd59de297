"""The control plane: PyTorchJobs, their PodGroups and the queue policy. It never imports torch."""
