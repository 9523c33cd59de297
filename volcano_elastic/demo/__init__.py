"""The demonstration: two elastic jobs share a queue; every figure is measured by the run."""
