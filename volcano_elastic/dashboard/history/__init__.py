"""The page's memory, in a database: GPU use over time, and each job's changes."""
