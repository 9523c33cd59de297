"""Undoes a plan's changes, so that an attempt that fails leaves no trace."""

from __future__ import annotations

from collections.abc import Callable


class Journal:
    """Keeps the undo of each change of a plan, and a version that names its state."""

    def __init__(self) -> None:
        self._undo: list[tuple[int, Callable[..., None], tuple[object, ...]]] = []
        self._last = 0

    def note(self, undo: Callable[..., None], *args: object) -> None:
        """`undo(*args)` takes the latest change back."""
        self._last += 1
        self._undo.append((self._last, undo, args))

    def close(self) -> None:
        """Forget the changes."""
        self._undo.clear()

    @property
    def version(self) -> int:
        """Equal at two times only if everything is as it was."""
        return self._undo[-1][0] if self._undo else 0

    def mark(self) -> int:
        """Return the number of changes so far, for `rollback`."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Take back all changes since `mark`, the latest first."""
        while len(self._undo) > mark:
            _, undo, args = self._undo.pop()
            undo(*args)
