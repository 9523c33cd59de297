"""Simulations and comparisons in benchmarks/ whose figures documents quote."""
