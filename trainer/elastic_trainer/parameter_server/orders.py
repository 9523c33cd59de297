"""Orders: what the first server has the others do."""

from __future__ import annotations

import contextlib

import grpc

from elastic_trainer.parameter_server.placement import Adoption, Move
from elastic_trainer.parameter_server.stubs import Stubs
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages


class Orders:
    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs

    async def move(self, move: Move, turn: int, epoch: str) -> bool:
        """Have a server give buckets to another one. Return whether it has."""
        request = messages.GiveRequest(
            buckets=pack(move.buckets),
            address=move.target.address,
            life=move.target.life,
            turn=turn,
            epoch=epoch,
        )
        with contextlib.suppress(grpc.RpcError):
            return bool((await self._stubs.of(move.source.address).Give(request)).given)
        return False

    async def adopt(self, adoption: Adoption, turn: int, number: int, epoch: str) -> bool:
        """Have a server hold what it has a copy of. Return whether it does.

        Args:
            number: of the adoption.
        """
        request = messages.AdoptRequest(
            life=adoption.keeper.life,
            source=adoption.kept.life,
            buckets=pack(adoption.kept.buckets),
            given=adoption.kept.given,
            turn=turn,
            number=number,
            epoch=epoch,
        )
        with contextlib.suppress(grpc.RpcError):
            return bool((await self._stubs.of(adoption.keeper.address).Adopt(request)).adopted)
        return False
