"""A newcomer's way to the state of those that train on: a copy of it, then each step's change."""
