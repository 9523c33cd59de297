"""Counts the informers' objects when Prometheus asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from volcano_elastic.api.pytorchjob import QUEUE_ANNOTATION
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object
from volcano_elastic.pytorchjob.goodput import places, summed

_SIZES = ("desired", "ready", "min", "max")
DEFAULT_QUEUE = "default"


class StateMetrics(Collector):
    """By queue, never by job: ten thousand jobs would be ten thousand series each.

    Args:
        queue_depth: how many jobs are due and not taken up yet.
    """

    def __init__(
        self,
        informers: Iterable[Informer],
        jobs: Informer,
        queue_depth: Callable[[], int],
    ) -> None:
        self._informers, self._jobs, self._queue_depth = tuple(informers), jobs, queue_depth

    def collect(self) -> Iterator[Metric]:
        yield from self._job_families()
        yield GaugeMetricFamily(
            "volcano_elastic_work_queue_depth",
            "Jobs that are due and not taken up yet.",
            value=self._queue_depth(),
        )
        yield from self._informer_families()

    def _job_families(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily(
            "volcano_elastic_jobs",
            "PyTorchJobs by queue and state: their latest condition, or New.",
            labels=("queue", "state"),
        )
        elastic = GaugeMetricFamily(
            "volcano_elastic_workers",
            "Sums over the unfinished elastic jobs of a queue: desired, ready, min, max.",
            labels=("queue", "size"),
        )
        uses = GaugeMetricFamily(
            "volcano_elastic_gpu_seconds",
            "Time of all processes of a queue's jobs, those that ended included, by its use.",
            labels=("queue", "use"),
        )
        held = GaugeMetricFamily(
            "volcano_elastic_worker_seconds",
            "Time of workers of a queue's jobs, those that ended included: granted, and wanted, "
            "which is as many as max allows. Their quotient is the queue's scheduling goodput.",
            labels=("queue", "figure"),
        )
        goodput: dict[str, list[object]] = defaultdict(list)
        states: Counter[tuple[str, str]] = Counter()
        sizes: Counter[tuple[str, str]] = Counter()
        for job in self._jobs:
            queue, state = queue_of(job), state_of(job)
            states[queue, state] += 1
            found = (job.get("status") or {}).get("elastic")
            if found and found.get("goodput"):
                goodput[queue].append(found["goodput"])
            if found and state not in ("Succeeded", "Failed"):
                for size in _SIZES:
                    sizes[queue, size] += int(found.get(size) or 0)
        for labels, count in sorted(states.items()):
            jobs.add_metric(labels, count)
        for labels, count in sorted(sizes.items()):
            elastic.add_metric(labels, count)
        for queue, known in sorted(goodput.items()):
            for use, milliseconds in summed(known).items():
                uses.add_metric((queue, use), milliseconds / 1000)
            for figure, milliseconds in zip(("granted", "wanted"), places(known), strict=True):
                held.add_metric((queue, figure), milliseconds / 1000)
        yield from (jobs, elastic, uses, held)

    def _informer_families(self) -> Iterator[Metric]:
        objects = GaugeMetricFamily(
            "volcano_elastic_informer_objects", "Objects held of a kind.", labels=("resource",)
        )
        lag = GaugeMetricFamily(
            "volcano_elastic_informer_lag_seconds",
            "How long the latest of our own writes took to come back by watch.",
            labels=("resource",),
        )
        events = CounterMetricFamily(
            "volcano_elastic_informer_events",
            "Events that watches brought, bookmarks included.",
            labels=("resource",),
        )
        lists = CounterMetricFamily(
            "volcano_elastic_informer_lists",
            "Full lists; from the second on, a watch could not be resumed.",
            labels=("resource",),
        )
        for informer in self._informers:
            labels = (informer.resource.plural,)
            objects.add_metric(labels, len(informer))
            lag.add_metric(labels, informer.lag)
            events.add_metric(labels, informer.events)
            lists.add_metric(labels, informer.lists)
        yield from (objects, lag, events, lists)


def queue_of(job: Object) -> str:
    """Return the job's queue, as PyTorchJob.queue does, for jobs that can't be parsed too."""
    run_policy = job.get("spec", {}).get("runPolicy") or {}
    named = (run_policy.get("schedulingPolicy") or {}).get("queue")
    annotations = job["metadata"].get("annotations") or {}
    return str(named or annotations.get(QUEUE_ANNOTATION) or DEFAULT_QUEUE)


def state_of(job: Object) -> str:
    conditions = (job.get("status") or {}).get("conditions") or []
    true = [c.get("type", "") for c in conditions if c.get("status") == "True"]
    # As `kubectl get` shows it, and Failed stays Failed whatever else is true.
    for final in ("Failed", "Succeeded"):
        if final in true:
            return final
    return str(true[-1]) if true else "New"
