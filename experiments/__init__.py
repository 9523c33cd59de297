"""What elasticity is worth and what it costs: experiments that write `docs/experiments.md`."""
