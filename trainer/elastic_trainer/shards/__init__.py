"""Ranges of the sample stream and who holds a lease on which; pure."""
