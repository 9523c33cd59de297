"""What the page remembers, in a database: GPU use over time, and each job's changes."""
