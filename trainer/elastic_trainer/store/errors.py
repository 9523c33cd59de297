"""Why a storage can't be used, as types: a caller does something else for each.

`DamagedError` and `UnavailableError` are never taken for one another: what isn't what was written
may be passed over for an older commit, what can't be read just now may not.
"""

from __future__ import annotations

import errno


class StorageError(Exception):
    """The folder can't be used, or a commit can't be read or written."""


class DamagedError(StorageError):
    """A file is there and isn't what was written: another digest, cut off, no JSON."""


class IncompleteError(StorageError):
    """A directory without a marker, whose commit was never completed."""


class UnmarkedError(DamagedError):
    """A directory with files and without a marker, which this trainer has not left so."""


class UnavailableError(StorageError):
    """The storage could not be read or written, for as long as it was tried."""


class SilentError(UnavailableError):
    """The storage has not answered at all. A call to it may still be under way."""


class SupersededError(StorageError):
    """Another process has claimed the folder for a later run: this one must not write any more."""


class OwnershipError(StorageError):
    """The folder belongs to another job, or is not the one that the other pods use."""


_FINAL = {
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EINVAL,
    errno.EFBIG,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOSYS,
    errno.EEXIST,
}
"""Errors that no waiting mends."""


def is_transient(error: BaseException) -> bool:
    """Return whether another try may succeed: true of every OSError that isn't about the name.

    Also of ENOENT: who asks for what a listing has just shown, or for its own file, may meet a
    network file system's old cache, or a mount that is coming back. Also of EACCES and a full disk,
    which others mend while the job waits.
    """
    return isinstance(error, OSError) and error.errno not in _FINAL
