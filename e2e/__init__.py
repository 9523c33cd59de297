"""The promises, on running processes: a control plane, an operator, real training."""
