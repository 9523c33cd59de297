"""Elastic training under torchrun: what a training script imports, and the only module it needs.

    from elastic_trainer import ElasticDataset, ElasticLoop

| name | for |
| --- | --- |
| ElasticLoop | a loop whose processes live on while their world changes |
| ElasticDataset, ElasticSampler, Mixture | every sample once an epoch, whatever the world |
| ElasticStream, Packing | the same of shards that are read from beginning to end, and of tokens |
| Checkpointer | commits of model, optimizer and data in a loop of one's own |
| ElasticEmbedding, SplitTables | tables for any 64-bit id, split over the ranks |
| TableExporter, ServingTables | their rows for serving, a base and increments, and their reader |
| ServedTables, ServerError | the same tables on parameter servers, for workers at their own pace |
| ScaledLearningRate | a learning rate that follows the global batch, or the samples trained on |
| SeededDataset | random numbers that belong to the sample, for a loader of one's own |
| ShardClient, Ledger, Lease | data handed out in leases, for workers that don't train in step |
| WorkerLink, Order, Place | the agent's word on the world, for a loop written from scratch |
| ProcessGroup | rank and world of a process, where a test gives them |
| StorageError, ShardError, MismatchError, LeaseError, LinkError | what goes wrong, in words |

The tables' optimizers are in `elastic_trainer.embeddings.row_optimizer`.
`elastic_trainer.integrations.huggingface` and `.lightning` need the extras of their names;
`.tensorboard` writes a job's goodput to whatever takes scalars.

Names are looked up when they are asked for (PEP 562): agent and coordinator, which are in this
package too, import neither torch nor numpy through it. Nothing here knows Kubernetes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_trainer.checkpoint.checkpointer import Checkpointer
    from elastic_trainer.checkpoint.model_state import MismatchError
    from elastic_trainer.data.dataset import ElasticDataset
    from elastic_trainer.data.learning_rate import ScaledLearningRate
    from elastic_trainer.data.ledger import Lease, Ledger
    from elastic_trainer.data.mixture import Mixture
    from elastic_trainer.data.sampler import ElasticSampler
    from elastic_trainer.data.seeded import SeededDataset
    from elastic_trainer.data.shard_client import LeaseError, ShardClient
    from elastic_trainer.data.step_budget import Packing
    from elastic_trainer.data.stream import ElasticStream
    from elastic_trainer.data.unit_reader import ShardError
    from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
    from elastic_trainer.embeddings.export import TableExporter
    from elastic_trainer.embeddings.serving import ServingTables
    from elastic_trainer.embeddings.split_tables import SplitTables
    from elastic_trainer.link.message import Place
    from elastic_trainer.link.order import Order
    from elastic_trainer.link.worker_link import LinkError, WorkerLink
    from elastic_trainer.loop.loop import ElasticLoop
    from elastic_trainer.parameter_server.client import ServedTables
    from elastic_trainer.parameter_server.server_error import ServerError
    from elastic_trainer.ranks.process_group import ProcessGroup
    from elastic_trainer.store.errors import StorageError

__all__ = [
    "Checkpointer",
    "ElasticDataset",
    "ElasticEmbedding",
    "ElasticLoop",
    "ElasticSampler",
    "ElasticStream",
    "Lease",
    "LeaseError",
    "Ledger",
    "LinkError",
    "MismatchError",
    "Mixture",
    "Order",
    "Packing",
    "Place",
    "ProcessGroup",
    "ScaledLearningRate",
    "SeededDataset",
    "ServedTables",
    "ServerError",
    "ServingTables",
    "ShardClient",
    "ShardError",
    "SplitTables",
    "StorageError",
    "TableExporter",
    "WorkerLink",
]

_MODULES = {
    "Checkpointer": "checkpoint.checkpointer",
    "ElasticDataset": "data.dataset",
    "ElasticEmbedding": "embeddings.elastic_embedding",
    "ElasticLoop": "loop.loop",
    "ElasticSampler": "data.sampler",
    "ElasticStream": "data.stream",
    "Lease": "data.ledger",
    "LeaseError": "data.shard_client",
    "Ledger": "data.ledger",
    "LinkError": "link.worker_link",
    "MismatchError": "checkpoint.model_state",
    "Mixture": "data.mixture",
    "Order": "link.order",
    "Packing": "data.step_budget",
    "Place": "link.message",
    "ProcessGroup": "ranks.process_group",
    "ScaledLearningRate": "data.learning_rate",
    "SeededDataset": "data.seeded",
    "ServedTables": "parameter_server.client",
    "ServerError": "parameter_server.server_error",
    "ServingTables": "embeddings.serving",
    "ShardClient": "data.shard_client",
    "ShardError": "data.unit_reader",
    "SplitTables": "embeddings.split_tables",
    "StorageError": "store.errors",
    "TableExporter": "embeddings.export",
    "WorkerLink": "link.worker_link",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
