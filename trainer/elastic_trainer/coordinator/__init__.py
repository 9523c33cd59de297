"""One soft-state service a job: who is in the round, which step is committed."""
