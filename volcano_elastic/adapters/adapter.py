"""The kinds of jobs that can be sized, one `Adapter` each: where the size is, and whose pods are
whose."""

from __future__ import annotations

from dataclasses import dataclass

Path = tuple[str, ...]
"""Fields from the object's root, one after another."""

PART = "*"
"""In a path: the one element of a list, by its `name`, that is sized."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A kind whose own controller makes and deletes the pods; only its size is written."""

    group: str
    version: str
    plural: str
    kind: str
    size: Path
    """How many pods there are to be."""
    name_label: str
    """Label of the pods that holds the object's name."""
    default_size: int | None = None
    """The size where the field is missing; None: it has to be set."""
    template: Path = ()
    """The pods' template; empty where the object has none: then they are as the first of them."""
    completions: Path = ()
    """How many pods have to succeed, beside `completionMode`; empty where nothing says so."""
    succeeded: Path = ()
    """How many have."""
    part_label: str = ""
    """Label of the pods that holds the name of their part; empty where there are no parts."""
    part: str = ""
    """The part that is sized, where its name is always the same."""
    copies: str = ""
    """Field of a part that says how many there are of it; only one can be sized."""

    @property
    def parts(self) -> Path:
        """The list that holds the parts; empty where there is none."""
        return self.size[: self.size.index(PART)] if PART in self.size else ()


_OF_JOBSET = ("spec", "replicatedJobs", PART, "template", "spec")
_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"

ADAPTERS = (
    # Before JobSet: the pods of a TrainJob are those of the JobSet that it makes.
    Adapter(
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="trainjobs",
        kind="TrainJob",
        # Its runtime has the template, and the number where this is missing.
        size=("spec", "trainer", "numNodes"),
        name_label=_JOBSET_NAME,
        part_label=_JOBSET_PART,
        part="node",
    ),
    Adapter(
        group="jobset.x-k8s.io",
        version="v1alpha2",
        plural="jobsets",
        kind="JobSet",
        size=(*_OF_JOBSET, "parallelism"),
        default_size=1,
        template=(*_OF_JOBSET, "template"),
        completions=(*_OF_JOBSET, "completions"),
        name_label=_JOBSET_NAME,
        part_label=_JOBSET_PART,
        copies="replicas",
    ),
    Adapter(
        group="batch",
        version="v1",
        plural="jobs",
        kind="Job",
        size=("spec", "parallelism"),
        default_size=1,
        template=("spec", "template"),
        completions=("spec", "completions"),
        succeeded=("status", "succeeded"),
        name_label="batch.kubernetes.io/job-name",
    ),
)
"""The kinds that can be sized. A pod that two of them would claim is the first one's."""
