"""The server's OpenAPI description, made of the very types that read requests and word answers.

Not for: prose (``docs/api.md``).
"""

from typing import Any

import msgspec

from kvfence import __version__
from kvfence.gateway import canonical
from kvfence.gateway.answers import ChatAnswer, ModelCard, ModelList, TextAnswer
from kvfence.gateway.openai import ChatBody, CompletionBody
from kvfence.gateway.responses import ErrorBody

_TYPES: tuple[Any, ...] = (ChatBody, CompletionBody, ChatAnswer, TextAnswer, ModelList, ModelCard, ErrorBody)
_ERRORS = {
    400: "the request is wrong, or does not fit; param names the field where one is wrong",
    401: "the key is missing or unknown",
    403: "without keys, a host name that is not loopback",
    404: "no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    429: "this key has too much open or has used its tokens; Retry-After says when to ask again",
    500: "a check stopped the answer, or the server failed",
    503: "no worker, a full server, or one that stops; Retry-After says when to ask again",
    504: "the request took longer than the server's deadline",
}
_READING = (401, 403)
_RETRIED = (429, 503)


def describe_api(model: str, *, with_keys: bool) -> dict[str, Any]:
    """Give the description, as OpenAPI 3.1, of a server of this model. ``with_keys``: requests need one."""
    refs, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(_TYPES, refs, strict=True))
    for body in (ChatBody, CompletionBody):
        components[body.__name__]["properties"]["model"]["enum"] = [model]
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "kvfence", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            canonical.CHAT: {"post": _generation("createChatCompletion", (ChatBody, ChatAnswer), schemas)},
            canonical.COMPLETIONS: {"post": _generation("createCompletion", (CompletionBody, TextAnswer), schemas)},
            canonical.MODELS: {"get": _reading("listModels", schemas[ModelList], schemas, _READING)},
            canonical.MODELS + "/{model}": {
                "get": {
                    **_reading("retrieveModel", schemas[ModelCard], schemas, (*_READING, 404, 503)),
                    "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
                }
            },
            canonical.HEALTH: {"get": _watched("health", (200,))},
            canonical.READY: {"get": _watched("ready", (200, 503))},
        },
        "components": {"schemas": components},
    }
    described["paths"][canonical.MODELS]["get"]["responses"]["503"] = _error(503, schemas)
    if with_keys:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path in (canonical.CHAT, canonical.COMPLETIONS, canonical.MODELS, canonical.MODELS + "/{model}"):
            for operation in described["paths"][path].values():
                operation["security"] = [{"key": []}]
    return described


def _generation(name: str, types: tuple[Any, Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    body, answer = schemas[types[0]], schemas[types[1]]
    streamed = {"schema": {"type": "string", "description": "data: JSON chunks, then [DONE]; or at last an error"}}
    content = {"application/json": {"schema": answer}, "text/event-stream": streamed}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "the answer", "content": content},
            **{str(status): _error(status, schemas) for status in _ERRORS},
        },
    }


def _reading(name: str, answer: object, schemas: dict[Any, Any], errors: tuple[int, ...]) -> dict[str, Any]:
    return {
        "operationId": name,
        "responses": {
            "200": {"description": "what was asked for", "content": {"application/json": {"schema": answer}}},
            **{str(status): _error(status, schemas) for status in errors},
        },
    }


def _watched(name: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    responses = {str(status): {"description": "the state", "content": content} for status in statuses}
    return {"operationId": name, "responses": responses}


def _error(status: int, schemas: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": schemas[ErrorBody]}},
    }
    if status in _RETRIED:
        described["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return described
