"""Simulations in benchmarks/ whose figures documents quote."""
