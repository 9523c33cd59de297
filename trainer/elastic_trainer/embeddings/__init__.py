"""Embedding tables for any 64-bit id, split over a round's ranks; nothing outside imports this."""
