"""Pure: what one PyTorchJob needs next, from what was observed of it."""
