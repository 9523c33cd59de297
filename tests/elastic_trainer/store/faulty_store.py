"""A store of objects in memory, behind a URL, whose operations fail on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

PROTOCOL = "faulty"


class ServiceUnavailable(Exception):
    """An error as a bucket's client raises it: no OSError."""

    status = 503


class TooManyRequests(Exception):
    status = 429


ERRORS: dict[str, Callable[[], Exception]] = {
    "EIO": lambda: OSError(5, "Input/output error"),
    "403": lambda: PermissionError(13, "Forbidden"),
    "429": lambda: TooManyRequests("Slow Down"),
    "503": lambda: ServiceUnavailable("Slow Down"),
}


class FaultyStore(MemoryFileSystem):  # type: ignore[misc]
    """`fault(operation, path)` returns the error to raise, or None; `calls` counts operations."""

    protocol = PROTOCOL
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    fault: Callable[[str, str], Exception | None] = staticmethod(lambda *_: None)
    calls: ClassVar[Counter[str]] = Counter()
    raised = 0

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).removeprefix(f"{PROTOCOL}://")))

    @classmethod
    def forget(cls) -> None:
        """Begin anew: empty, faultless, nothing counted."""
        cls.store, cls.pseudo_dirs = {}, [""]
        cls.fault = staticmethod(lambda *_: None)
        cls.calls, cls.raised = Counter(), 0

    @classmethod
    def fail(cls, operation: str, error: str, *, name: str = "", times: int = 10**9) -> None:
        """Let so many calls of `operation`, on paths that hold `name`, fail."""
        left = [times]

        def fault(called: str, path: str) -> Exception | None:
            if called != operation or name not in path or not left[0]:
                return None
            left[0] -= 1
            return ERRORS[error]()

        cls.fault = staticmethod(fault)

    @classmethod
    def _maybe(cls, operation: str, path: str) -> None:
        cls.calls[operation] += 1
        error = cls.fault(operation, str(path))
        if error is not None:
            cls.raised += 1
            raise error

    def ls(self, path: str, detail: bool = True, **given: Any) -> Any:
        self._maybe("list", path)
        return super().ls(path, detail, **given)

    def cat_file(self, path: str, *rest: Any, **given: Any) -> Any:
        self._maybe("read", path)
        return super().cat_file(path, *rest, **given)

    def pipe_file(self, path: str, value: Any, *rest: Any, **given: Any) -> Any:
        self._maybe("create", path)
        return super().pipe_file(path, value, *rest, **given)

    def _open(self, path: str, mode: str = "rb", **given: Any) -> Any:
        self._maybe("read" if "r" in mode else "write", path)
        return super()._open(path, mode, **given)

    def rm_file(self, path: str) -> None:
        self._maybe("delete", path)
        super().rm_file(path)


fsspec.register_implementation(PROTOCOL, FaultyStore, clobber=True)
