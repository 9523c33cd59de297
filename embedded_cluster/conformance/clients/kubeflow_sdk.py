"""Uses the kubeflow-training SDK as its users do with a job, from creation to deletion.

Run by the SDK's own interpreter: `python kubeflow_sdk.py elastic|function KUBECONFIG FOLDER`, where
an operator, a scheduler and a kubelet are at work. It exits with 0 if all went as the SDK's
documentation says, having printed what it saw; else with the traceback of what didn't.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kubeflow.training import (
    KubeflowOrgV1ElasticPolicy,
    KubeflowOrgV1PyTorchJob,
    KubeflowOrgV1PyTorchJobSpec,
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
    TrainingClient,
)
from kubernetes import client
from record import Record

# For what comes within seconds on a quiet machine.
_SECONDS = 240
_POLL_SECONDS = 1


def elastic(saw: Record, training: TrainingClient, folder: Path) -> None:
    """An elastic job built from the SDK's own models."""
    done = folder / "done"
    training.create_job(_elastic_job("elastic", until=done))
    job = training.wait_for_job_conditions(
        "elastic",
        expected_conditions={"Running"},
        polling_interval=_POLL_SECONDS,
        wait_timeout=_SECONDS,
    )
    assert job.spec.elastic_policy.max_replicas == 2
    saw("a job that is there", training.create_job, _elastic_job("elastic", until=done))
    saw("no job", training.get_job, "nothing")
    saw("no job's conditions", training.get_job_conditions, "nothing")
    saw("no job's pods", training.get_job_pods, "nothing")
    saw("no job's logs", training.get_job_logs, "nothing")
    saw("no job deleted", training.delete_job, "nothing")
    never = {"expected_conditions": {"Failed"}, "polling_interval": 1, "wait_timeout": 2}
    saw("not waited for", training.wait_for_job_conditions, "elastic", **never)
    assert [job.metadata.name for job in training.list_jobs()] == ["elastic"]
    assert training.get_job("elastic").metadata.uid == job.metadata.uid
    assert [c.type for c in training.get_job_conditions("elastic")] == ["Created", "Running"]
    assert training.is_job_created("elastic")
    assert training.is_job_running("elastic")
    assert not training.is_job_restarting("elastic")
    assert not training.is_job_failed("elastic")

    _until(lambda: len(training.get_job_pods("elastic")) == 2, "two pods")
    names = training.get_job_pod_names("elastic", replica_type="worker")
    assert sorted(names) == ["elastic-worker-0", "elastic-worker-1"], names
    first = training.get_job_pod_names("elastic", replica_type="worker", replica_index=0)
    assert first == ["elastic-worker-0"], first
    # Without a Master, worker 0 bears the role.
    assert training.get_job_pod_names("elastic", is_master=True) == first

    _until(lambda: _label(training, "elastic"), "a label")
    assert training.get_job("elastic").metadata.labels["touched-by"] == "the-sdk"

    done.touch()
    training.wait_for_job_conditions(
        "elastic", polling_interval=_POLL_SECONDS, wait_timeout=_SECONDS
    )
    assert training.is_job_succeeded("elastic")
    assert not training.is_job_running("elastic")
    logs, events = training.get_job_logs("elastic", verbose=True)
    assert list(logs) == ["elastic-worker-0"], logs
    assert "I am 0" in logs["elastic-worker-0"], logs
    assert any("elastic grows from 1 to 2" in said for said in events["pytorchjob/elastic"]), events
    saw("its logs", lambda: logs)
    ended = training.get_job("elastic")
    saw("its policy", lambda: ended.spec.elastic_policy.to_dict())
    saw("its conditions", lambda: [one.to_dict() for one in ended.status.conditions])
    saw("its pods", lambda: sorted(training.get_job_pod_names("elastic")))
    _delete(training, "elastic")
    saw("nothing is left", training.list_jobs)


def function(saw: Record, training: TrainingClient, folder: Path) -> None:
    """The SDK's shortest way: a function, of which it makes a Master and Workers."""
    training.create_job(
        name="function",
        base_image="any:1",
        train_func=_train,
        num_workers=2,
        num_procs_per_worker=1,
        resources_per_worker={"cpu": "1"},
        env_vars={"OMP_NUM_THREADS": "1"},
    )
    training.wait_for_job_conditions(
        "function", polling_interval=_POLL_SECONDS, wait_timeout=_SECONDS
    )
    names = training.get_job_pod_names("function")
    assert sorted(names) == ["function-master-0", "function-worker-0"], names
    # Default: the log of the master. Following one that has ended ends, too.
    logs, _ = training.get_job_logs("function", follow=True)
    assert "sum over 2 ranks: 1.0" in logs["function-master-0"], logs
    assert [job.metadata.name for job in training.list_jobs()] == ["function"]
    _delete(training, "function")


def _train() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    print(f"sum over {dist.get_world_size()} ranks: {total.item()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _elastic_job(name: str, *, until: Path) -> KubeflowOrgV1PyTorchJob:
    script = f'echo "I am $VOLCANO_ELASTIC_POD_INDEX"; until [ -e {until} ]; do sleep 0.1; done'
    container = client.V1Container(
        name="pytorch",
        image="any:1",
        command=["sh", "-c", script],
        resources=client.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"}),
    )
    worker = KubeflowOrgV1ReplicaSpec(
        replicas=1,
        restart_policy="OnFailure",
        template=client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[container])),
    )
    return KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1",
        kind="PyTorchJob",
        metadata=client.V1ObjectMeta(name=name, namespace="default"),
        spec=KubeflowOrgV1PyTorchJobSpec(
            run_policy=KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
            elastic_policy=KubeflowOrgV1ElasticPolicy(min_replicas=1, max_replicas=2),
            pytorch_replica_specs={"Worker": worker},
        ),
    )


def _label(training: TrainingClient, name: str) -> bool:
    """False where the job changed meanwhile: the SDK sends its resourceVersion along."""
    job = training.get_job(name)
    job.metadata.labels = {"touched-by": "the-sdk"}
    try:
        training.update_job(job, name)
    except RuntimeError:
        return False
    return True


def _delete(training: TrainingClient, name: str) -> None:
    training.delete_job(name)
    _until(lambda: not training.list_jobs(), "no job")
    _until(lambda: not training.get_job_pods(name), "no pods")


def _until(holds, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {_SECONDS} s: {what}"
        time.sleep(0.2)


if __name__ == "__main__":
    session, kubeconfig, folder = sys.argv[1:]
    saw = Record()
    run = {"elastic": elastic, "function": function}[session]
    run(saw, TrainingClient(config_file=kubeconfig), Path(folder))
    saw.written()
