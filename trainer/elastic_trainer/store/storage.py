"""Commits in a folder: a directory a step, whole or not there, verified before it is believed.

    TRAINING               which training this is, and whose, see ownership.py
    EPOCH-<run>            who may publish
    step-120/state.pt      written and fsynced under a temporary name, then renamed
    step-120/COMMITTED     last: step, run, round, cursor, the files' sizes and digests, its own

A directory without a marker that verifies was never committed: recovery passes it over. One that
can't be read is another matter: it is tried again, and then the storage is unavailable.

Two processes that both believe themselves the writer: each looks for a higher claim before it
publishes and once more after, and who takes a claim lists the commits after that. So whichever
comes first, a commit that was acknowledged is one that the later claim's holder has seen.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import xxhash

from elastic_trainer.retry import STORAGE_SECONDS_VARIABLE, describe, storage_policy
from elastic_trainer.store.answer import Calls, SilenceError
from elastic_trainer.store.answering_folder import AnsweringFolder
from elastic_trainer.store.errors import (
    DamagedError,
    IncompleteError,
    OwnershipError,
    SilentError,
    StorageError,
    SupersededError,
    UnavailableError,
    is_transient,
)
from elastic_trainer.store.folder import (
    DAMAGED,
    MARKER,
    TEMPORARY,
    FileRecord,
    Folder,
    HashedFile,
    LocalFolder,
    Writer,
    is_url,
)
from elastic_trainer.store.ownership import TRAINING, Claim, Job, Training, claims
from elastic_trainer.store.remote_folder import RemoteFolder
from elastic_trainer.store.retention import Condition, Found, removable

__all__ = ["Commit", "FileRecord", "HashedFile", "Storage", "StorageError", "Writer"]

SLOW_SECONDS = 30.0
"""After so long, a storage that doesn't answer at all is spoken of."""
ABANDONED_SECONDS = 3600.0
"""After so long without a change, what somebody unknown began to write is not being written."""

_STEP = re.compile(r"step-(\d+)(?:-(\d+)-[0-9a-f]{32})?")
_WRITING = re.compile(re.escape(TEMPORARY) + r"(\d+)-[0-9a-f]{32}-.*")

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Commit:
    step: int
    run: int
    """The run that wrote it. A later run knows better than a higher step of an earlier one."""
    cursor: Mapping[str, int]
    files: Mapping[str, FileRecord]
    round: int = 0
    """Rendezvous round that made it; 0 without an agent. Later rounds have higher numbers."""
    place: str = field(default="", compare=False)
    """The name of its directory."""

    @property
    def identity(self) -> tuple[int, int]:
        return (self.run, self.step)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a look at all markers found."""

    commits: tuple[Commit, ...] = ()
    """Newest first."""
    damaged: tuple[str, ...] = ()
    """What is wrong with the markers that aren't what was written."""


class Storage:
    """The commits of one job.

    What the storage can't do for the moment is tried again, see `retry.storage_policy`; what it
    can't do for all that time raises UnavailableError. A folder that is silent as long (at least
    SLOW_SECONDS), as one on a hard network mount whose server is gone, raises SilentError, whatever
    it was asked for; while bytes move it isn't silent, however slow it is.

    Args:
        folder: shared by all pods of the job; a path, or a URL that fsspec knows.
        keep: commits to keep; older ones are removed after each write.
        retry_seconds: how long to try again; None: as the environment says, else 60.
        files: the folder's files; made from `folder` if None.
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
        self.folder = Path() if is_url(folder) else Path(folder)
        """Of a local storage."""
        self.location = str(folder) if is_url(folder) else str(self.folder.absolute())
        self.keep = keep
        self.policy = storage_policy(retry_seconds)
        self.remote = is_url(folder)
        """Behind a URL. Clients of object stores have time limits of their own; a hard network
        mount has none."""
        self.calls = Calls(
            lambda: math.inf if self.remote else max(self.policy.seconds, SLOW_SECONDS)
        )
        """To the file system, also for those who use it by themselves."""
        if files is None:
            files = RemoteFolder(self.location) if self.remote else LocalFolder(self.folder)
        self._files: Folder = AnsweringFolder(files, self.calls)
        self._training: Training | None = None
        self._adopted = ""
        self._clock = clock
        self._first_seen: dict[tuple[str, float], float] = {}
        """When what may be abandoned was first seen, by its name and the time it was changed."""
        self._claim: Claim | None = None
        self._claimed = False
        """The claim is known to be in the folder."""
        self._began: str | None = None
        """What is being written."""

    # ---- whose it is

    def open(
        self,
        job: Job | None = None,
        resume_from: str = "",
        *,
        known: Callable[[], str] = str,
        fresh: bool = False,
    ) -> str:
        """Find out which training's folder this is; make it one where it is new. On any node.

        Args:
            job: that this process works for.
            resume_from: uid or name of another job whose training may be continued.
            known: returns why this folder can't be new, if it can't; it is waited for then.
            fresh: `known` is no reason not to begin anew.

        Returns: the training's id: what is kept elsewhere of another is not to be mixed in.

        Raises:
            OwnershipError: it is another job's.
            StorageError: it can't be read, or not be written the first time.
        """
        job, where = job or Job(), f"{self.location}/{TRAINING}"

        reason = ""

        def read_or_make() -> bytes:
            with contextlib.suppress(FileNotFoundError):
                if TRAINING in self._files.names():
                    return _whole(self._files.read(TRAINING))
            nonlocal reason
            reason = "" if fresh else known()
            if reason:
                raise FileNotFoundError(2, f"there is none, but {reason}")
            self._files.make()
            drawn = Training(uuid.uuid4().hex, job).encode()
            # Else another pod came first.
            created = self._files.create(TRAINING, drawn)
            return drawn if created else _whole(self._files.read(TRAINING))

        try:
            content = self._attempt(f"{where} can't be used", read_or_make)
        except UnavailableError as error:
            advice = ""
            if reason:
                advice = (
                    ": is the volume mounted? Mount it again, or pass fresh=True to train from the "
                    "beginning"
                )
            raise type(error)(f"{error}{advice}") from error.__cause__
        self._training = Training.decode(content, where)
        self._training.check_owner(job, resume_from, self.location)
        return self._training.id

    def expect(self, training: str) -> None:
        """Refuse to write to the folder of another training.

        Raises:
            StorageError: it is one, or can't be read.
        """
        where = f"{self.location}/{TRAINING}"
        content = self._attempt(f"{where} can't be read", lambda: self._files.read(TRAINING))
        found = Training.decode(content, where)
        if found.id != training:
            raise OwnershipError(
                f"{self.location} is not the folder that this training began in: expected "
                f"{TRAINING} {training}, found {found.id}; mount the same volume in every pod"
            )
        self._training = found

    def adopt(self, training: str) -> None:
        """Take the folder for that of `training`, as other pods know it. Where it wasn't opened
        here it is looked at before anything is written."""
        self._adopted = training

    def own(self, job: Job) -> None:
        """Note that the folder is `job`'s from now on. Raises StorageError."""
        training = self._training
        if training is None or not job or training.job == job:
            return
        self._training = replace(training, job=job)
        content = self._training.encode()
        self._attempt(
            f"{self.location}/{TRAINING} can't be written",
            lambda: self._files.write(TRAINING, lambda file: _put(file, content)),
        )

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
            self._files.write(f"{written}/probe", lambda file: _put(file, b"probe"))
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

    def hold(self, run: int, token: str) -> None:
        """Publish for `run` from now on; the claim is taken before the first commit."""
        if self._claim is None or (self._claim.run, self._claim.token) != (run, token):
            self._claim = Claim(run, token, socket.gethostname(), time.time())
            self._claimed = False

    def _check_claim(self) -> None:
        """Raises SupersededError where there is a higher one; takes it where it isn't there yet."""
        claim = self._claim
        if claim is None:
            return
        taken = claims(self._names())
        if taken and taken[-1] > claim.run:
            self._refuse_claim(claim, taken[-1])
        if claim.run in taken and self._claimed:
            return
        created = self._attempt(
            f"{self.location}/{claim.name} can't be written",
            lambda: self._files.create(claim.name, claim.encode()),
        )
        if not created and self._read_claim(claim.run).token != claim.token:
            self._refuse_claim(claim, claim.run)
        self._claimed = True
        later = claims(self._names())[-1]
        if later > claim.run:  # taken between the two
            self._refuse_claim(claim, later)

    def _read_claim(self, run: int) -> Claim:
        def read() -> bytes:
            try:
                return self._files.read(f"EPOCH-{run}")
            except FileNotFoundError:
                if run in claims(self._names_once()):
                    raise
                return b""  # a still later one has removed it

        return Claim.decode(self._attempt(f"{self.location}/EPOCH-{run} can't be read", read), run)

    def _refuse_claim(self, claim: Claim, run: int) -> NoReturn:
        raise SupersededError(
            f"{self.location} was taken over by {self._read_claim(run)}, so run {claim.run} on "
            f"{claim.host} commits nothing any more: it was cut off from the other pods of its "
            "job, or the job runs twice; this side stops, the other goes on"
        )

    # ---- reading

    def survey(self) -> Survey:
        """Look at all markers; files aren't looked at.

        Raises:
            UnavailableError: something can't be read.
        """
        commits, damaged = [], []
        for name in self._names():
            if not _STEP.fullmatch(name):
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

    def read(self, commit: Commit, name: str) -> bytes:
        """Return a file of a commit, verified.

        Raises:
            DamagedError: it is missing, or isn't what was committed.
            UnavailableError: it can't be read.
        """
        path = f"{commit.place}/{name}"
        data = self._read_shown(commit, name, lambda: self._files.read(path))
        self._compare(path, commit, name, FileRecord(len(data), xxhash.xxh3_128_hexdigest(data)))
        return data

    def verify(self, commit: Commit, name: str) -> None:
        """Raises as `read`; the file need not fit into memory."""
        path = f"{commit.place}/{name}"
        found = self._read_shown(commit, name, lambda: self._files.record(path))
        self._compare(path, commit, name, found)

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
        """Raises IncompleteError, DamagedError or UnavailableError."""
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
            raise IncompleteError(f"no {MARKER}: the commit was never completed")
        try:
            body = json.loads(content)
            digest = body.pop("xxh3")
            if digest != _digest(body):
                raise DamagedError(f"{marker} is damaged: its digest doesn't match its content")
            files = {name: FileRecord(**record) for name, record in body["files"].items()}
            commit = Commit(
                body["step"], body["run"], body["cursor"], files, body.get("round", 0), name
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{marker} is damaged: {error}") from error
        if (shown := _STEP.fullmatch(name)) is None or int(shown[1]) != commit.step:
            raise DamagedError(f"{marker} is for step {commit.step}: was the directory renamed?")
        return commit

    def _compare(self, path: str, commit: Commit, name: str, found: FileRecord) -> None:
        expected = commit.files[name]
        if found != expected:
            reason = (
                f"{self.location}/{path} is damaged: expected {expected.size} bytes with digest "
                f"{expected.xxh3}, found {found.size} with {found.xxh3}"
            )
            with contextlib.suppress(OSError):  # it counts as good for retention then
                note = reason.encode()
                self._files.write(f"{commit.place}/{DAMAGED}", lambda file: _put(file, note))
            raise DamagedError(reason)

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
                name: self._attempt(
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
        if self._training is None and self._adopted:
            self.expect(self._adopted)
        self._check_claim()
        run = self._claim.run if self._claim is not None else 0

        def begin() -> str:
            if self._training is None:
                self._files.make()
            else:
                self._names_once()  # a folder that is gone isn't made anew
            return self._files.begin(f"step-{step}", run)

        self._began = self._attempt(self._refused(step), begin)
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
            place = self._attempt(
                self._refused(step), lambda: self._files.publish(written, f"step-{step}")
            )
            commit = Commit(step, run, dict(cursor), dict(files), round_, place)
            self._attempt(self._refused(step), lambda: self._publish_marker(commit))
        except BaseException as error:
            self._fail(written, error)
            raise
        # Nothing is acknowledged that a new claim's holder may not have seen.
        self._check_claim()
        self._began = None
        self._retain()
        return commit

    def _publish_marker(self, commit: Commit) -> None:
        content = _encode(commit)
        self._files.write(f"{commit.place}/{MARKER}", lambda file: _put(file, content))

    def _refused(self, step: int) -> str:
        return f"step {step} can't be committed to {self.location}"

    # ---- retention

    def _retain(self) -> None:
        """A storage that can't be tidied up now is so after the next commit."""
        try:
            names = self._names_once()
            self._first_seen = {
                seen: since for seen, since in self._first_seen.items() if seen[0] in names
            }
            found = {name: self._look(name) for name in names if _STEP.fullmatch(name)}
            for name in removable(found, self.keep):
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
        except DamagedError:
            return Found(Condition.DAMAGED)
        except SilentError:
            raise
        except (UnavailableError, OSError):
            return Found(Condition.UNREADABLE)

    def _is_abandoned(self, name: str) -> bool:
        """Whether nobody goes on writing what has no marker."""
        if name == self._began:
            return False
        if self._claim is not None:
            # Only who has the claim publishes: the rank that took it, and its node's agent.
            match = _WRITING.fullmatch(name)
            run = int(match[1]) if match is not None else 0
            if match is None and (match := _STEP.fullmatch(name)):
                run = int(match[2] or 0)
                if not run:
                    return True
            if run and run != self._claim.run:
                return run < self._claim.run
        # By this process's own observation: wall clocks jump, and differ from the storage's.
        seen = (name, self._files.modified(name))
        return self._clock() - self._first_seen.setdefault(seen, self._clock()) > ABANDONED_SECONDS

    # ---- trying

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Within this, try again for at most so long."""
        policy = self.policy
        self.policy = replace(policy, seconds=min(seconds, policy.seconds))
        try:
            yield
        finally:
            self.policy = policy

    def _names(self) -> list[str]:
        return self._attempt(f"{self.location} can't be read", self._names_once)

    def _names_once(self) -> list[str]:
        if self._training is None:  # nobody has opened it, so it need not be there yet
            try:
                return self._files.names()
            except FileNotFoundError:
                return []
        names = self._files.names()
        if TRAINING not in names:
            # A volume that is not mounted is an empty folder.
            raise FileNotFoundError(2, f"{TRAINING} is gone", self.location)
        return names

    def _attempt(self, what: str, operation: Callable[[], T], advice: str = "") -> T:
        """Try for as long as the policy says. Raises UnavailableError, which says `what`."""
        slow = threading.Timer(
            SLOW_SECONDS,
            log.warning,
            ["%s: no answer for %.0f s, still waiting", self.location, SLOW_SECONDS],
        )
        slow.daemon = True
        slow.start()
        try:
            return self.policy.call(operation, transient=is_transient, what=what)
        except SilenceError as error:
            raise SilentError(
                f"{what}: {describe(error)}: expected it to move bytes; see whether the file "
                "system's server is up, and where it is only slow, allow it more by "
                f"storage_patience or {STORAGE_SECONDS_VARIABLE}{advice}"
            ) from error
        except OSError as error:
            raise UnavailableError(f"{what}: {describe(error)}{advice}") from error
        finally:
            slow.cancel()


def _put(file: HashedFile, data: bytes) -> None:
    file.write(data)


def _whole(training: bytes) -> bytes:
    """Raises OSError for an empty file: where there are no links, another pod may just have made
    it, and be about to write it."""
    if not training:
        raise OSError(errno.EAGAIN, f"{TRAINING} is empty")
    return training


def _encode(commit: Commit) -> bytes:
    body = asdict(commit)
    del body["place"]
    return json.dumps({**body, "xxh3": _digest(body)}, indent=1).encode()


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())
