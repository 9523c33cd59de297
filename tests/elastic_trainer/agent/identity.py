"""The identity of a lone node's agent, whose coordinator runs elsewhere."""

from __future__ import annotations

from elastic_trainer.identity import Identity


def alone(port: int, patience: float) -> Identity:
    """Return agent `a` of a job of one node.

    Args:
        port: of the coordinator, on loopback.
        patience: seconds, as Identity's.
    """
    return Identity(
        agent="a",
        pod_index=0,
        address="127.0.0.1",
        host="127.0.0.1",
        port=port,
        job="test",
        min_nodes=1,
        max_nodes=1,
        node_unit=1,
        heartbeat_timeout=1.0,
        processes=1,
        dedicated=True,
        patience=patience,
    )
