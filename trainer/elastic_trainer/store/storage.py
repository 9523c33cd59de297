"""Commits in a folder: a directory a step, whole or not there, verified before it is believed.

    TRAINING               which training this is, and whose, see ownership.py
    EPOCH-<run>            who may publish
    FIRST-COMMIT           notes that there were commits, should there be none any more
    step-120/state.pt      written and fsynced in a directory of a temporary name
    step-120/COMMITTED     last: step, run, round, cursor, the files' sizes and digests, its own

With its marker the directory gets its name. Where directories can't be renamed it has one from the
beginning, and until it has a marker, a file WRITING. A directory without a marker that verifies is
no commit: recovery passes it over; but one that has lost its marker is a reason not to train from
the beginning, and stays. One that can't be read is another matter: it is tried again, and then the
storage is unavailable.

Two processes that both believe themselves the writer: each looks for a higher claim before it
publishes and once more after, and who takes a claim lists the commits after that. So whichever
comes first, a commit that was acknowledged is one that the later claim's holder has seen.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from elastic_trainer.retry import describe
from elastic_trainer.store.attachment_name import bases_by_commit
from elastic_trainer.store.commit import STEP, Commit, decode, encode
from elastic_trainer.store.content import Content
from elastic_trainer.store.errors import (
    DamagedError,
    IncompleteError,
    SilentError,
    SupersededError,
    UnavailableError,
    UnmarkedError,
)
from elastic_trainer.store.folder import (
    DAMAGED,
    MARKER,
    TEMPORARY,
    WRITING,
    FileRecord,
    Folder,
    Writer,
    put,
)
from elastic_trainer.store.owned_folder import OwnedFolder
from elastic_trainer.store.ownership import Claim, claims
from elastic_trainer.store.retention import Condition, Found, removable

ABANDONED_SECONDS = 3600.0
"""After so long without a change, what somebody unknown began to write is not being written."""

FIRST_COMMIT = "FIRST-COMMIT"
"""Made after the first commit, for good; holds the step."""

_WRITING = re.compile(re.escape(TEMPORARY) + r"(\d+)-[0-9a-f]{32}-.*")

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a look at all markers."""

    commits: tuple[Commit, ...] = ()
    """Newest first."""
    damaged: tuple[str, ...] = ()
    """The faults of markers that aren't as they were written, or are gone."""


class Storage(OwnedFolder):
    """The commits of one job.

    Args:
        folder, retry_seconds, files: as OwnedFolder's.
        keep: commits to keep; older ones are removed after each write.
        clock: monotonic seconds.

    Raises:
        ValueError: `keep` is below 2, or there is no fsspec for a URL.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 3,
        retry_seconds: float | None = None,
        files: Folder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}: expected at least 2, in case the newest is damaged")
        super().__init__(folder, retry_seconds, files)
        self.keep = keep
        self._clock = clock
        self._first_seen: dict[tuple[str, float], float] = {}
        """When what may be abandoned was first seen, by its name and the time it was changed."""
        self._began: str | None = None
        """Name of the commit that is being written."""

    def prepare(self) -> None:
        """Make the folder, and try a write.

        Raises:
            StorageError: it can't be written; said at the start, not at the first commit.
        """

        def probe() -> None:
            if self._training is None:
                self._files.make()
            else:
                self._names_once()  # a folder that is gone isn't made anew
            written = self._files.begin("probe", 0)
            self._files.write(f"{written}/probe", lambda file: put(file, b"probe"))
            self._files.remove(written)

        advice = (
            "; name a folder that every worker can write, with room for the model and optimizer "
            f"{self.keep + 1} times"
        )
        self._attempt(
            f"the checkpoint folder {self.location} can't be written", probe, advice=advice
        )

    # ---- who may write

    def take_over(self, least: int, token: str) -> tuple[Claim, Survey]:
        """Claim the folder for a new run, and then look at its commits, all older than that.

        Args:
            least: the run's number is above this one.
            token: of this process.

        Raises:
            StorageError: it can't be read or written.
        """
        while True:
            taken = claims(self._names())
            run = 1 + max([least, *taken])
            self.hold(run, token)
            try:
                self._check_claim()
            except SupersededError:
                least = run  # another took one just now; whoever has the highest may go on
                continue
            survey = self.survey()
            newest = max((commit.run for commit in survey.commits), default=0)
            if newest < run:
                assert self._claim is not None
                return self._claim, survey
            least = newest

    # ---- reading

    def first_commit(self) -> int | None:
        """Return the step of the first commit that was noted here, whether it is still there or
        not; -1 where that can't be told, None where there was none, or an older version's only.

        Raises:
            UnavailableError: it can't be read.
        """

        def read() -> bytes | None:
            if FIRST_COMMIT not in self._names_once():
                return None
            return self._files.read(FIRST_COMMIT)

        content = self._attempt(f"{self.location}/{FIRST_COMMIT} can't be read", read)
        if content is None:
            return None
        return int(content) if content.isdigit() else -1

    def survey(self) -> Survey:
        """Look at all markers; files aren't looked at.

        Raises:
            UnavailableError: something can't be read.
        """
        commits, damaged = [], []
        for name in self._names():
            if not STEP.fullmatch(name):
                continue
            try:
                commits.append(self._marker(name))
            except IncompleteError as error:
                log.warning("passing over %s/%s: %s", self.location, name, error)
            except DamagedError as error:
                log.warning("passing over %s/%s: %s", self.location, name, error)
                damaged.append(str(error))
        newest_first = sorted(commits, key=lambda commit: commit.identity, reverse=True)
        return Survey(tuple(newest_first), tuple(damaged))

    def commits(self) -> list[Commit]:
        """Return those whose markers verify, newest first. Raises UnavailableError as `survey`."""
        return list(self.survey().commits)

    def newest(self) -> Commit | None:
        """Return the newest commit whose marker and files all verify; warn about damaged ones.

        Raises:
            UnavailableError: something can't be read, so that an older one may not be the newest.
        """
        for commit in self.commits():
            try:
                for name in commit.files:
                    self.verify(commit, name)
            except DamagedError as error:
                log.warning("passing over %s: %s", self.path(commit), error)
            else:
                return commit
        return None

    def load(self, commit: Commit, name: str) -> Content:
        """Return a file of a commit, verified.

        Raises:
            DamagedError: it is missing, or isn't what was committed.
            UnavailableError: it can't be read.
        """
        path = f"{commit.place}/{name}"

        def look() -> tuple[FileRecord, Content]:
            content = self._files.load(path)
            return FileRecord(content.size, content.xxh3), content

        return self._verified(commit, name, look)

    def read_span(self, commit: Commit, name: str, begin: int, target: memoryview) -> None:
        """Fill `target` with a file's bytes from `begin` on, as they are there: unverified.

        Raises:
            UnavailableError: it can't be read, or isn't there.
        """
        path = f"{commit.place}/{name}"
        self._attempt(
            f"{self.location}/{path} can't be read",
            lambda: self._files.read_span(path, begin, target),
        )

    def verify(self, commit: Commit, name: str) -> None:
        """Raises as `load`; the file need not fit into memory."""
        path = f"{commit.place}/{name}"
        self._verified(commit, name, lambda: (self._files.record(path), None))

    def find(self, identity: tuple[int, int]) -> Commit:
        """Return the commit of this run and step, which another pod has just seen.

        Raises:
            UnavailableError: it isn't to be seen here.
        """

        def find() -> Commit:
            for commit in self.commits():
                if commit.identity == identity:
                    return commit
            raise FileNotFoundError(2, f"no commit of step {identity[1]}", self.location)

        return self._attempt(f"step {identity[1]} can't be read", find)

    def path(self, commit: Commit) -> str:
        return self._files.path(commit.place)

    def _read_shown(self, commit: Commit, name: str, operation: Callable[[], T]) -> T:
        """Missing is what a directory doesn't list; what it lists is there."""
        path = f"{self.location}/{commit.place}/{name}"

        def read() -> T | None:
            try:
                return operation()
            except FileNotFoundError:
                if self._is_listed(commit.place, name):
                    raise
                return None

        found = self._attempt(f"{path} can't be read", read)
        if found is None:
            raise DamagedError(f"{path} is missing: expected {commit.files[name].size} bytes")
        return found

    def _is_listed(self, place: str, name: str) -> bool:
        """Raises OSError where the folder itself can't be listed, or isn't there."""
        if place not in self._names_once():
            return False
        return name in self._files.names(place)

    def _marker(self, name: str) -> Commit:
        """Raises IncompleteError, UnmarkedError, DamagedError or UnavailableError."""
        marker = f"{self.location}/{name}/{MARKER}"

        def read() -> bytes | None:
            try:
                return self._files.read(f"{name}/{MARKER}")
            except FileNotFoundError:
                if self._is_listed(name, MARKER):
                    raise
                return None

        content = self._attempt(f"{marker} can't be read", read)
        if content is None:
            beside = self._attempt(f"{marker} can't be read", lambda: self._beside_marker(name))
            if not beside or WRITING in beside:
                raise IncompleteError(f"no {MARKER}: the commit was never completed")
            raise UnmarkedError(
                f"{marker} is missing: found {', '.join(sorted(beside)[:3])} without it, which no "
                "interrupted commit leaves"
            )
        return decode(content, name, marker)

    def _beside_marker(self, name: str) -> list[str]:
        """Return the files of a directory; nothing where it is gone meanwhile."""
        return self._files.names(name) if name in self._names_once() else []

    def _verified(self, commit: Commit, name: str, look: Callable[[], tuple[FileRecord, T]]) -> T:
        """Return what `look` finds in a file besides its record, which is the committed one.

        One look that finds another is no proof: a second has to find the same, as the note that it
        leaves is for good. Where the two differ, reading is tried again.
        """
        path = f"{commit.place}/{name}"
        expected = commit.files[name]

        def look_twice() -> tuple[FileRecord, T]:
            first = look()
            if first[0] == expected:
                return first
            second = look()
            if second[0] == expected:
                log.warning("%s/%s was read wrongly, and is right", self.location, path)
            elif second[0] != first[0]:
                raise OSError(errno.EIO, "it reads differently each time", path)
            return second

        found, content = self._read_shown(commit, name, look_twice)
        if found != expected:
            reason = (
                f"{self.location}/{path} is damaged: expected {expected.size} bytes with digest "
                f"{expected.xxh3}, found {found.size} with {found.xxh3}"
            )
            with contextlib.suppress(OSError):  # it counts as good for retention then
                note = reason.encode()
                self._files.write(f"{commit.place}/{DAMAGED}", lambda file: put(file, note))
            raise DamagedError(reason)
        return content

    # ---- writing

    def write(
        self,
        *,
        step: int,
        run: int,
        cursor: Mapping[str, int],
        files: Mapping[str, Writer],
        round_: int = 0,
    ) -> Commit:
        """Commit a step: durable when this returns, absent or whole if it never does.

        Raises:
            SupersededError: another process has claimed the folder for a later run.
            StorageError: the storage refused; earlier commits are as they were.
        """
        written = self.begin(step)
        try:
            records = {
                name: self._attempt_to_write(
                    self._refused(step),
                    lambda name=name, writer=writer: self._files.write(f"{written}/{name}", writer),  # type: ignore[misc]
                )
                for name, writer in files.items()
            }
        except BaseException as error:
            self._fail(written, error)
            raise
        return self.finish(written, step=step, run=run, cursor=cursor, files=records, round_=round_)

    def begin(self, step: int) -> str:
        """Return a place for the files of a commit that others write. Raises as `write`."""
        return self._begin(f"step-{step}", self._refused(step))

    def begin_beside(self, name: str) -> str:
        """Return a place for files that commits name. Raises as `write`."""
        return self._begin(name, f"{self.location}/{name} can't be written")

    def publish_beside(self, written: str, name: str) -> str:
        """Let what `begin_beside` gave stay; return its name. Raises as `write`."""
        try:
            self._check_claim()
            place = self._attempt_to_write(
                f"{self.location}/{name} can't be written",
                lambda: self._files.publish(written, name),
            )
        except BaseException as error:
            self._fail(written, error)
            raise
        self._began = None
        return place

    def load_beside(self, path: str) -> Content:
        """Return a file at what `publish_beside` gave. Raises UnavailableError."""
        return self._attempt(
            f"{self.location}/{path} can't be read", lambda: self._files.load(path)
        )

    def remove_beside(self, name: str) -> None:
        """Remove what `publish_beside` gave. Raises OSError."""
        self._files.remove(name)

    def _begin(self, name: str, refused: str) -> str:
        if self._training is None and self._adopted:
            self.expect(self._adopted)
        self._check_claim()
        run = self._claim.run if self._claim is not None else 0

        def begin() -> str:
            if self._training is None:
                self._files.make()
            else:
                self._names_once()  # a folder that is gone isn't made anew
            return self._files.begin(name, run)

        self._began = self._attempt(refused, begin)
        return self._began

    def abandon(self, written: str) -> None:
        """Remove what `begin` gave, if it can be; what stays is cleared as abandoned."""
        if not self.calls.stuck:
            with contextlib.suppress(OSError):
                self._files.remove(written)
        self._began = None

    def _fail(self, written: str, error: BaseException) -> None:
        """Raises SupersededError where that is why: a later run removes what is begun here."""
        self.abandon(written)
        if isinstance(error, UnavailableError) and not isinstance(error, SilentError):
            with self.patience(0.0), contextlib.suppress(UnavailableError):
                self._check_claim()

    def place(self, written: str) -> str:
        """Return the path or URL of what `begin` gave, or of a commit's directory."""
        return self._files.path(written)

    def names(self, written: str) -> list[str]:
        """Return the files at what `begin` gave. Raises UnavailableError."""
        return self._attempt(
            f"{self.location}/{written} can't be read", lambda: self._files.names(written)
        )

    def write_file(self, path: str, writer: Writer) -> FileRecord:
        """Write a file at what `begin` gave, durably. Raises UnavailableError."""
        return self._attempt(
            f"{self.location}/{path} can't be written", lambda: self._files.write(path, writer)
        )

    def record(self, written: str, name: str) -> FileRecord:
        """Return size and digest of a file at what `begin` gave. Raises UnavailableError."""
        path = f"{written}/{name}"
        return self._attempt(
            f"{self.location}/{path} can't be read", lambda: self._files.record(path)
        )

    def finish(
        self,
        written: str,
        *,
        step: int,
        run: int,
        cursor: Mapping[str, int],
        files: Mapping[str, FileRecord],
        round_: int = 0,
    ) -> Commit:
        """Let what was written become the commit of `step`. Raises as `write`."""
        try:
            self._check_claim()
            commit = Commit(step, run, dict(cursor), dict(files), round_)
            self._attempt_to_write(self._refused(step), lambda: self._write_marker(written, commit))
            place = self._attempt_to_write(
                self._refused(step), lambda: self._files.publish(written, f"step-{step}")
            )
        except BaseException as error:
            self._fail(written, error)
            raise
        # Nothing is acknowledged that a new claim's holder may not have seen.
        self._check_claim()
        self._began = None
        self._retain(step)
        return replace(commit, place=place)

    def _write_marker(self, written: str, commit: Commit) -> None:
        content = encode(commit)
        self._files.write(f"{written}/{MARKER}", lambda file: put(file, content))

    def _attempt_to_write(self, what: str, operation: Callable[[], T]) -> T:
        """Try as `_attempt` does; but what a later run removed no other try brings back.

        Raises:
            SupersededError: another process has claimed the folder for a later run.
            UnavailableError: the storage refused for all that time.
        """

        def write() -> T:
            try:
                return operation()
            except FileNotFoundError:
                with self.patience(0.0), contextlib.suppress(UnavailableError):
                    self._check_claim()
                raise

        return self._attempt(what, write)

    def _refused(self, step: int) -> str:
        return f"step {step} can't be committed to {self.location}"

    # ---- retention

    def _retain(self, step: int) -> None:
        """A storage that can't be tidied up now, or take a note, is asked after the next commit."""
        try:
            names = self._names_once()
            if FIRST_COMMIT not in names:
                self._files.create(FIRST_COMMIT, str(step).encode())
            self._first_seen = {
                seen: since for seen, since in self._first_seen.items() if seen[0] in names
            }
            found = {name: self._look(name) for name in names if STEP.fullmatch(name)}
            for name in removable(found, self.keep, bases_by_commit(names)):
                complete = found[name].condition is Condition.COMPLETE
                if complete or self._is_abandoned(name):
                    self._files.remove(name)
            for name in names:
                if name.startswith(TEMPORARY) and self._is_abandoned(name):
                    self._files.remove(name)
            for run in claims(names)[:-1]:
                self._files.remove(f"EPOCH-{run}")
        except (OSError, SilentError) as error:
            log.warning("%s keeps older commits for now: %s", self.location, describe(error))

    def _look(self, name: str) -> Found:
        """One try: what can't be read now is looked at after the next commit."""
        try:
            with self.patience(0.0):
                identity = self._marker(name).identity
            if DAMAGED in self._files.names(name):
                return Found(Condition.DAMAGED)
            return Found(Condition.COMPLETE, identity)
        except IncompleteError:
            return Found(Condition.INCOMPLETE)
        except UnmarkedError:
            return Found(Condition.UNMARKED)
        except DamagedError:
            return Found(Condition.DAMAGED)
        except SilentError:
            raise
        except (UnavailableError, OSError):
            return Found(Condition.UNREADABLE)

    def _is_abandoned(self, name: str) -> bool:
        """Return whether nobody goes on writing the directory, which has no marker."""
        if name == self._began:
            return False
        if self._claim is not None:
            # Only who has the claim publishes: the rank that took it, and its node's agent.
            match = _WRITING.fullmatch(name)
            run = int(match[1]) if match is not None else 0
            if match is None and (match := STEP.fullmatch(name)):
                run = int(match[2] or 0)
                if not run:
                    return True
            if run and run != self._claim.run:
                return run < self._claim.run
        # By this process's own observation: wall clocks jump, and differ from the storage's.
        seen = (name, self._files.modified(name))
        return self._clock() - self._first_seen.setdefault(seen, self._clock()) > ABANDONED_SECONDS
