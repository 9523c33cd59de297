"""Has an agent take part in elections as the job's others do."""

from __future__ import annotations

import logging
from dataclasses import replace

from elastic_trainer.identity import SUCCESSION_VARIABLE, Identity
from elastic_trainer.succession.search import any_agent_answers

log = logging.getLogger(__name__)


def as_the_others(identity: Identity) -> Identity:
    """Return the identity of an agent that takes part in elections if others of its job do.

    A pod keeps the environment it was made with, so an edit of the job's reaches some agents only.
    A worker 0 that took no part would begin a side of its own where the others elect another host.
    """
    if identity.elects or identity.pod_index < 0 or identity.dedicated:
        return identity
    if not any_agent_answers(identity.peers, identity.job, identity.token):
        return identity
    log.warning(
        "%s is 0 here, and other agents of the job, whose pods were made before, elect the "
        "coordinator's host, so this one takes part, too; none will once the job was suspended",
        SUCCESSION_VARIABLE,
    )
    return replace(identity, elects=True)
