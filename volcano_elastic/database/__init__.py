"""Connections to databases, SQLite and PostgreSQL, of what is kept outside Kubernetes."""
