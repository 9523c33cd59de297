"""Pure: everything Volcano-specific about a job: its PodGroup and the annotations of its pods."""
