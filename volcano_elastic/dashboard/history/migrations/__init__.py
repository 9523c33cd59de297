"""Alembic's migrations of the page's tables."""
