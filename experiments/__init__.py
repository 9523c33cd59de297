"""Experiments on what elasticity is worth and what it costs; they write `docs/experiments.md`."""
