"""Model state and cursor saved together, with a commit marker."""
