"""From a request's bytes to a value: JSON, YAML, or the protobuf of a few kinds."""

from __future__ import annotations

from typing import Any

import orjson
import yaml
from aiohttp import web

from volcano_elastic.local.apiserver import protobuf
from volcano_elastic.local.apiserver.status import bad_request, unsupported_media_type

_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml")
# The last two are what curl -d and plain HTTP libraries call JSON.
_JSON = ("", "application/json", "application/x-www-form-urlencoded", "text/plain")
_ACCEPTED = "application/json, application/yaml"


async def read(request: web.BaseRequest) -> Any:
    """None for an empty body.

    Raises:
        StatusError: 415 for other formats, 400 for what cannot be read.
    """
    raw = await request.read()
    content_type = request.content_type if "Content-Type" in request.headers else ""
    if not raw:
        return None
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(raw)
    if content_type not in (*_JSON, *_YAML) and not content_type.endswith("+json"):
        raise unsupported_media_type(content_type, _ACCEPTED)
    try:
        value = orjson.loads(raw)
        # Go reads null into an object as an object with nothing in it.
        return {} if value is None else value
    except orjson.JSONDecodeError as error:
        if content_type not in _YAML:
            raise bad_request(f"the body is not JSON: {error}") from error
    try:
        value = yaml.safe_load(raw)
        # What JSON cannot say (dates, sets, numbers as keys) must not reach the store.
        return orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, ValueError) as error:
        raise bad_request(f"the body is not YAML: {error}") from error
