"""The edge of the control plane: watches in, reconcile and plan, writes out."""
