"""Has elastic jobs leave nodes that failed or are about to go, while their pods can still leave in
order.

A job at rest, and its live pods on such nodes, worker 0 first:

  idle room elsewhere      the pod moves: it leaves, and another comes in its place
  none, and it is surplus  it leaves, and the job goes on smaller, in whole units
  none, of the minimum     it stays until there is room, or until the node is drained

No other pod leaves for it, and no room is asked of others: what waits has been given room before.
"""

from __future__ import annotations

from volcano_elastic.api.queue_policy import LeaveNodes
from volcano_elastic.cluster_state.job_pods import LEADING
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.draft import Draft, JobDraft
from volcano_elastic.queue_policy.node_room import Room
from volcano_elastic.snapshot.snapshot import Pod


class Departures:
    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.jobs: set[str] = set()
        """Keys of those that leave a node in this plan: nothing else of them changes."""

    def run(self) -> None:
        for key in sorted(self._draft.cluster.to_leave):
            job = self._draft.job(key)
            if self._at_rest(job):
                self._leave(job, list(self._draft.cluster.to_leave[key].values()))

    def _at_rest(self, job: JobDraft) -> bool:
        """Return whether nothing of it is on its way, and its sizes and pods are the planner's."""
        return (
            job.state.movable
            and job.job.scaler != "none"
            and job.size == job.job.desired
            and not (job.removed or job.waiting or job.job.succeeded)
            and not (job.state.by_role.departing or job.state.by_role.excess)
            and not (job.job.master_requests is not None and not job.state.by_role.master_bound)
        )

    def _leave(self, job: JobDraft, pods: list[Pod]) -> None:
        if job.state.policy.nodes.leave is LeaveNodes.NEVER:
            pods = [pod for pod in pods if pod.node in job.job.excluded]
        workers = [pod for pod in pods if pod.key in job.bound]
        # Who can't be given up goes first where there is room for some.
        workers.sort(key=lambda pod: (pod.index != 0, not pod.protected, pod.index))
        places = self._draft.nodes.place(job.state.shape, len(workers), Room.IDLE)
        moved = workers[: len(places)]
        surplus = [pod for pod in workers[len(moved) :] if pod.index != 0]
        count = min(len(surplus), job.size - job.job.min)
        count -= count % job.state.unit
        leaders = [pod for pod in pods if pod.role == LEADING and self._master_room(job)]
        if count:
            self._draft.lower(job, job.size - count, Reason.LEFT_NODE, surplus[-count:])
        if moved or leaders:
            self._free(moved)
            job.move(moved)
            job.moved += leaders
        if moved or leaders or count:
            job.reason = Reason.LEFT_NODE
            job.why_left = self._why(job, [*moved, *leaders, *surplus[len(surplus) - count :]])
            self.jobs.add(job.job.key)

    def _why(self, job: JobDraft, leaving: list[Pod]) -> tuple[str, ...]:
        names, nodes = {pod.node for pod in leaving if pod.node}, self._draft.cluster.nodes
        told = {name: nodes[name].node.leave for name in sorted(names)}
        told |= dict.fromkeys(names & set(job.job.excluded), "has failed the job")
        return tuple([f"node {name} {why}" for name, why in told.items()])

    def _master_room(self, job: JobDraft) -> bool:
        shape = job.state.master_shape
        return shape is not None and bool(self._draft.nodes.place(shape, 1, Room.IDLE))

    def _free(self, moved: list[Pod]) -> None:
        """The room of pods that move is releasing, for those who may go to their node; in its queue
        and its quota a job holds what it held."""
        for pod in moved:
            n = self._draft.nodes.index(pod.node)
            if n is not None:
                vector = self._draft.cluster.dimensions.request(pod.requests)
                self._draft.nodes.leave(n, vector, reclaimed=False)
