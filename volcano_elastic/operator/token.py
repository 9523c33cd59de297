"""The tokens by which a job's pods know one another, made of one key that only the operator has.

A job's token is HMAC-SHA256(key, "token of " + the job's uid). So any operator that holds the key
knows the token of every job, and needs no right to read Secrets in their namespaces.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from volcano_elastic.kube.client import AlreadyExists, Client, NotFound
from volcano_elastic.kube.resource import SECRETS
from volcano_elastic.pytorchjob.environment import TOKEN_KEY
from volcano_elastic.pytorchjob.label import token_secret_name

HEADER = "volcano-elastic-token"
"""Header of requests to a coordinator, as in elastic_trainer.protocol.auth."""
NAME = "volcano-elastic-tokens"
"""Name of the Secret with the key, in the operator's namespace."""
_FIELD = "key"
_BYTES = 32


class BadKey(ValueError):
    """The Secret that should hold the key holds something else; says what to do."""


class Tokens:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._key: bytes | None = None
        self._reading = asyncio.Lock()

    async def of(self, uid: str) -> str:
        """Return the token of the job with this uid.

        Raises:
            ApiError, aiohttp.ClientError, TimeoutError: the key can't be read or made.
            BadKey: its Secret holds something else.
        """
        async with self._reading:
            if self._key is None:
                self._key = await self._read_or_make()
        return token(self._key, uid)

    @property
    def _namespace(self) -> str:
        return self._client.access.namespace

    async def _read_or_make(self) -> bytes:
        try:
            return self._read(await self._client.get(SECRETS, NAME, self._namespace))
        except NotFound:
            pass
        new = secrets.token_bytes(_BYTES)
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": {_FIELD: base64.b64encode(new).decode()},
        }
        try:
            return self._read(await self._client.create(SECRETS, body))
        except AlreadyExists:
            return self._read(await self._client.get(SECRETS, NAME, self._namespace))

    def _read(self, secret: Mapping[str, Any]) -> bytes:
        found = (secret.get("data") or {}).get(_FIELD, "")
        try:
            key = base64.b64decode(found, validate=True)
        except (binascii.Error, ValueError, TypeError):
            key = b""
        if len(key) < _BYTES:
            raise BadKey(
                f"Secret {self._namespace}/{NAME}: expected {_BYTES} bytes or more in {_FIELD!r}, "
                f"found {len(key)}; delete it, and jobs that begin afterwards get new tokens"
            )
        return key


async def kept(client: Client, namespace: str, job: str, uid: str) -> str:
    """Read a job's token from the job's own Secret, for callers who may not read the key.

    Raises:
        ApiError, aiohttp.ClientError, TimeoutError: it can't be read.
        ValueError: the Secret holds something else.
    """
    name = token_secret_name(job, uid)
    secret = await client.get(SECRETS, name, namespace)
    try:
        return base64.b64decode(secret["data"][TOKEN_KEY], validate=True).decode()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Secret {namespace}/{name} holds no {TOKEN_KEY!r}") from error


def token(key: bytes, uid: str) -> str:
    return hmac.digest(key, b"token of " + uid.encode(), "sha256").hex()
