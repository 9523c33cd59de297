"""One database: its connections, its tables' migrations, and one error for all that fails there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

_T = TypeVar("_T")
_EPOCH = datetime.fromtimestamp(0, UTC)


_WAITS = {
    "connect_timeout": "5",
    "options": "-c statement_timeout=10s -c lock_timeout=5s",
    # A server whose machine is gone says nothing.
    "tcp_user_timeout": "10000",
}
"""libpq's, where the URL says no other: nobody waits for a PostgreSQL server for ever."""


class DatabaseError(Exception):
    """The database can't be used now; the message says which, and what it answers."""


class RefusedError(DatabaseError):
    """The database is there, and doesn't take what was to be written; the message says why."""


class Database:
    """The database at `url`, as SQLAlchemy writes it: `sqlite:////var/lib/brain/history.db`,
    `postgresql+psycopg://user:password@host/name`. Not for several threads at once.

    Args:
        migrations: alembic's folder of them, as `package:folder`.

    Raises:
        DatabaseError: the URL makes no sense. All methods raise it where the database fails.
    """

    def __init__(self, url: str, migrations: str) -> None:
        self._migrations = migrations
        try:
            parsed = make_url(url)
            self.name: str = parsed.render_as_string(hide_password=True)
            # A server may have been restarted since the connection was made.
            self.engine = sa.create_engine(_bounded(parsed), pool_pre_ping=True, **_pool(parsed))
        except (SQLAlchemyError, ImportError, ValueError) as error:
            raise DatabaseError(f"expected a database's URL, found {url!r}: {error}") from None
        if parsed.get_backend_name() == "sqlite":
            sa.event.listen(self.engine, "connect", _keep_references)

    def migrate(self) -> None:
        """Makes the tables, or brings them to this version; keeps what is in them."""
        config = Config()
        config.set_main_option("script_location", self._migrations)
        with self.transaction() as connection:
            if connection.dialect.name == "postgresql":
                # One of a large table takes as long as it takes.
                connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def close(self) -> None:
        """Closes all connections; the next call makes new ones."""
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yields a connection; what was done on it is kept if the block ends well."""
        try:
            with self.engine.begin() as connection:
                yield connection
        except (DataError, IntegrityError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "orig", None) or error
            raise RefusedError(f"{self.name}: {reason}".strip()) from error
        except (SQLAlchemyError, CommandError) as error:
            reason = getattr(error, "orig", None) or error
            raise DatabaseError(f"{self.name}: {reason}".strip()) from error


def _pool(url: sa.URL) -> dict[str, Any]:
    """Return how connections are kept: to a file none is, as one that is kept goes on with a file
    that was removed, and nobody hears of it."""
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    return {"poolclass": NullPool} if is_file else {}


def _bounded(url: sa.URL) -> sa.URL:
    if url.get_backend_name() != "postgresql":
        return url
    return url.update_query_dict({k: v for k, v in _WAITS.items() if k not in url.query})


def _keep_references(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")


def in_hundreds(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yields them a hundred at a time: databases bound the values of a statement."""
    for first in range(0, len(values), 100):
        yield values[first : first + 100]


def milliseconds(time: datetime) -> int:
    """Return the time as it is kept: milliseconds since 1970."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def time_of(kept: int) -> datetime:
    """Return the time that was kept as these milliseconds."""
    return _EPOCH + timedelta(milliseconds=kept)
