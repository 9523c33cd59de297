"""The node check: groups of nodes compute and communicate, which tells broken from sound ones."""
