"""A folder, or a bucket's prefix, as one job has it: whose it is, who may write, and for how long
what it can't do is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from elastic_trainer.retry import STORAGE_SECONDS_VARIABLE, describe, storage_policy
from elastic_trainer.store.answer import Calls, SilenceError
from elastic_trainer.store.answering_folder import AnsweringFolder
from elastic_trainer.store.errors import (
    OwnershipError,
    SilentError,
    SupersededError,
    UnavailableError,
    is_transient,
)
from elastic_trainer.store.folder import Folder, LocalFolder, is_url, put
from elastic_trainer.store.ownership import TRAINING, Claim, Job, Training, claims
from elastic_trainer.store.remote_folder import RemoteFolder

SLOW_SECONDS = 30.0
"""After so long, a storage that doesn't answer at all is spoken of."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class OwnedFolder:
    """A folder that belongs to one job, of whose processes one at a time may write.

    What it can't do for the moment is tried again, see `retry.storage_policy`; what it can't do for
    all that time raises UnavailableError. A folder that is silent as long (at least SLOW_SECONDS),
    as one on a hard network mount whose server is gone, raises SilentError, whatever it was asked
    for; while bytes move it isn't silent, however slow it is.

    Args:
        folder: shared by all pods of the job; a path, or a URL that fsspec knows.
        retry_seconds: how long to try again; None: as the environment says, else 60.
        files: the folder's files; made from `folder` if None.

    Raises:
        ValueError: there is no fsspec for a URL.
    """

    def __init__(
        self,
        folder: str | Path,
        retry_seconds: float | None = None,
        files: Folder | None = None,
    ) -> None:
        self.folder = Path() if is_url(folder) else Path(folder).absolute()
        """Path of a local storage."""
        self.location = str(folder) if is_url(folder) else str(self.folder)
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
        self._claim: Claim | None = None
        self._claimed = False
        """The claim is known to be in the folder."""

    # ---- whose it is

    def open(
        self,
        job: Job | None = None,
        resume_from: str = "",
        *,
        known: Callable[[], str] = str,
        fresh: bool = False,
        create: bool = True,
    ) -> str:
        """Find out which training's folder this is; make it one where it is new. On any node.

        Args:
            job: that this process works for.
            resume_from: uid or name of another job whose training may be continued.
            known: returns why this folder can't be new, if it can't; it is waited for then.
            fresh: `known` is no reason not to begin anew.
            create: if False, a new folder stays as it is, and isn't waited for.

        Returns: the training's id: what is kept elsewhere of another is not to be mixed in. Empty:
            the folder is new, and not to be made one's own.

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
            if not create:
                return b""
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
        if not content:
            return ""
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
            lambda: self._files.write(TRAINING, lambda file: put(file, content)),
        )

    # ---- who may write

    def hold(self, run: int, token: str) -> None:
        """Publish for `run` from now on; the claim is taken before the first commit."""
        if self._claim is None or (self._claim.run, self._claim.token) != (run, token):
            self._claim = Claim(run, token, socket.gethostname(), time.time())
            self._claimed = False

    def _check_claim(self) -> None:
        """Raises SupersededError where there is a higher one; takes it where it isn't there yet.

        Raises OwnershipError where another training's folder has taken this one's place.
        """
        claim = self._claim
        if claim is None:
            return
        taken = claims(self._names())
        if taken and taken[-1] > claim.run:
            self._refuse_claim(claim, taken[-1])
        if claim.run in taken and self._claimed:
            return
        if self._training is not None:
            # Where a volume isn't mounted, pods that know of none may have begun another training.
            self.expect(self._training.id)
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


def _whole(training: bytes) -> bytes:
    """Raises OSError for an empty file: where there are no links, another pod may just have made
    it, and be about to write it."""
    if not training:
        raise OSError(errno.EAGAIN, f"{TRAINING} is empty")
    return training
