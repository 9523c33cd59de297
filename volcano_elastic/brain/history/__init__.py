"""The history of jobs: values of a run, and the database that keeps them. It decides nothing."""
