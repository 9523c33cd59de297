"""The global order of samples and the cursor into it: every sample exactly once."""
