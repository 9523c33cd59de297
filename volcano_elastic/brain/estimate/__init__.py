"""Estimates of what a job needs: one formula a module, pure, with its units and its source."""
