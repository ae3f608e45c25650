"""What a route says of itself, and the OpenAPI 3.1 document made of what all routes say."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

Schema = dict[str, Any]
"""A JSON Schema of draft 2020-12."""

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}

_PARAMETER = re.compile(r"\{(\w+)\}")
_REFERENCE = "#/components/schemas/{name}"


def record(_required: str = "", **properties: Schema) -> Schema:
    """The schema of an object; `_required` lists names with spaces between them."""
    schema: Schema = {"type": "object", "properties": properties}
    if _required:
        schema["required"] = _required.split()
    return schema


def listing(items: Schema) -> Schema:
    """The schema of an array."""
    return {"type": "array", "items": items}


ENVELOPE = record(
    "error code status",
    error={"type": "string", "description": "For people."},
    code={"type": "string", "description": "Stable name of the class of failure."},
    status={"type": "integer", "description": "The HTTP status again."},
    ai_code={"type": "integer"},
    index={"type": "integer", "description": "Index of the refused item in a batch."},
)
"""Every refusal of the server itself, and of surfaces that have no envelope of their own."""


class Parameter(Struct, frozen=True):
    """A parameter of the query, or a header."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: TEXT)
    is_required: bool = False
    location: str = "query"


class Security(Struct, frozen=True):
    """How a caller proves that it may call."""

    name: str
    scheme: Mapping[str, str]


def bearer(name: str, description: str) -> Security:
    """A token in the `Authorization` header."""
    return Security(name, {"type": "http", "scheme": "bearer", "description": description})


class Operation(Struct, frozen=True, kw_only=True):
    """What is to be said of one route."""

    summary: str
    tag: str
    answer: Schema
    """Schema of the body of success; of JSON unless `media_type` says otherwise."""
    status: int = 200
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
    """All but those of the path, which the route's template names."""
    body: Any = None
    """A type msgspec can describe, or a schema; None if the route reads no body."""
    is_body_required: bool = True
    security: Security | None = None
    error: Schema = field(default_factory=lambda: ENVELOPE)
    """Schema of the body of everything but success."""


class Described(Protocol):
    """A route, as far as it matters here."""

    @property
    def method(self) -> str:
        """`GET` and the like."""

    @property
    def path(self) -> str:
        """Its template."""

    @property
    def operation(self) -> Operation | None:
        """What it says of itself."""


def document(routes: Iterable[Described], *, title: str, version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes; one that says nothing of itself is left out."""
    said = [
        (route.method, route.path, route.operation)
        for route in routes
        if route.operation is not None
    ]
    types = [
        operation.body
        for _, _, operation in said
        if operation.body is not None and not isinstance(operation.body, dict)
    ]
    bodies, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, bodies, strict=True))
    paths: dict[str, Any] = {}
    for method, path, operation in said:
        entry = _entry(method, path, operation, by_type)
        paths.setdefault(path, {})[method.lower()] = entry
    security = {
        operation.security.name: dict(operation.security.scheme)
        for _, _, operation in said
        if operation.security is not None
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": security},
    }


def _entry(
    method: str, path: str, operation: Operation, by_type: Mapping[Any, Schema]
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path.replace("-", "_"))]),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": TEXT | {"minLength": 1}}
                for name in _PARAMETER.findall(path)
            ),
            *(
                {
                    "name": parameter.name,
                    "in": parameter.location,
                    "description": parameter.description,
                    "required": parameter.is_required,
                    "schema": parameter.schema,
                }
                for parameter in operation.parameters
            ),
        ],
        "responses": {
            str(operation.status): {
                "description": "Done.",
                "content": {operation.media_type: {"schema": operation.answer}},
            },
            "default": {
                "description": "Refused; nothing was done.",
                "content": {"application/json": {"schema": operation.error}},
            },
        },
    }
    if operation.body is not None:
        is_schema = isinstance(operation.body, dict)
        schema = operation.body if is_schema else by_type[operation.body]
        entry["requestBody"] = {
            "required": operation.is_body_required,
            "content": {"application/json": {"schema": schema}},
        }
    if operation.security is not None:
        entry["security"] = [{operation.security.name: []}]
    return entry
