"""The torchrun plug-in: ranks by pod index, a fresh store each round."""
