"""Decides whose folder it is, and which of the job's processes may write to it. Content of files,
no I/O.

    TRAINING     the training's id, drawn when the folder is first used, and the job it belongs to
    EPOCH-<run>  the claim of the process that publishes the commits of that run

Run numbers only grow, so they are the claims' counter: who finds an EPOCH of a greater run than its
own has been replaced, and must write no more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from elastic_trainer.store.errors import DamagedError, OwnershipError

TRAINING = "TRAINING"
RESUME_VARIABLE = "VOLCANO_ELASTIC_RESUME_FROM"
"""Another job whose folder this one may continue, where the script doesn't say."""

_EPOCH = re.compile(r"EPOCH-(\d+)")
_OLD_TRAINING = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job's identity. Its uid tells it from a later job of the same name."""

    uid: str = ""
    """Uid of the PyTorchJob, or torchrun's --rdzv-id."""
    name: str = ""
    """Namespace and name."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Job:
        """The job that this process works for; without uid and name outside one."""
        uid = environment.get("PET_RDZV_ID", "")
        if not uid and environment.get("VOLCANO_ELASTIC_AGENT_SOCKET"):
            # Other back ends draw one anew at each start of torchrun.
            uid = environment.get("TORCHELASTIC_RUN_ID", "")
        return cls("" if uid == "none" else uid, environment.get("VOLCANO_ELASTIC_JOB", ""))

    def __str__(self) -> str:
        if self.uid and self.name:
            return f"{self.name} ({self.uid})"
        return self.name or self.uid or "no job"

    def __bool__(self) -> bool:
        return bool(self.uid or self.name)

    def is_same(self, other: Job) -> bool:
        """By uid where both have one, else by name."""
        if self.uid and other.uid:
            return self.uid == other.uid
        return bool(self.name) and self.name == other.name


@dataclass(frozen=True, slots=True)
class Training:
    """The content of TRAINING."""

    id: str
    job: Job = Job()
    """Without uid and name in folders that were first used by no job, or by older versions."""

    def encode(self) -> bytes:
        return json.dumps({"training": self.id, "job": asdict(self.job)}).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Training:
        """Raises DamagedError."""
        text = data.decode(errors="replace").strip()
        if _OLD_TRAINING.fullmatch(text):
            return cls(text)
        try:
            body = json.loads(text)
            job = body["job"]
            return cls(str(body["training"]), Job(str(job["uid"]), str(job["name"])))
        except (ValueError, KeyError, TypeError):
            raise DamagedError(
                f"{where} is damaged: expected a training's id and job, found {text[:60]!r}; bring "
                "the file back, or remove it if no pod of the job is running"
            ) from None

    def check_owner(self, job: Job, resume_from: str, where: str) -> None:
        """Raises OwnershipError where the folder is another job's, unless that is `resume_from`."""
        owner = self.job
        named = resume_from and resume_from in (owner.uid, owner.name)
        if not owner or owner.is_same(job) or named:
            return
        names = [f'resume_from="{name}"' for name in (owner.uid, owner.name) if name]
        lasts = ", which holds for jobs created again under their name too" if owner.name else ""
        raise OwnershipError(
            f"{where} belongs to job {owner}, this is {job}: give each job a folder of its own, "
            f"or, to continue that one here, pass {' or '.join(names)}{lasts} (or set "
            f"{RESUME_VARIABLE})"
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to publish the commits of a run."""

    run: int
    token: str
    """Token of the process that has it, and of those who write for it."""
    host: str = ""
    taken: float = 0.0
    """Unix seconds."""

    @property
    def name(self) -> str:
        return f"EPOCH-{self.run}"

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes, run: int) -> Claim:
        """A damaged one is somebody's all the same."""
        try:
            body = json.loads(data)
            return cls(run, str(body["token"]), str(body["host"]), float(body["taken"]))
        except (ValueError, KeyError, TypeError):
            return cls(run, "", "a pod whose claim is damaged")

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.taken))
        return f"run {self.run} on {self.host} (since {at})"


def claims(names: Iterable[str]) -> list[int]:
    """The runs that have claimed a folder with these names in it, ascending."""
    return sorted(int(match[1]) for match in map(_EPOCH.fullmatch, names) if match)
