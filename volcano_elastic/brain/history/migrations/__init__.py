"""Alembic's scripts: each version of the database's schema, from the one before."""
