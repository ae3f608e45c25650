"""The OpenAPI document: complete, consistent in itself and a description of what is parsed."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from support.channels.recording_service import APP, Recording
from tidelog.base.serving.openapi import document
from tidelog.base.serving.surface import Route
from tidelog.channels.front.api.proxy import Proxy
from tidelog.channels.front.api.routes import NOT_OFFERED, ChannelsHttp
from tidelog.channels.settings import Channels
from tidelog.sync.front.openapi import OPERATIONS as SYNC_OPERATIONS
from tidelog.testing.clock import FakeClock

SETTINGS = Channels(proxy_enabled=True, proxy_token="p1")


def routes() -> list[Route]:
    """Every route of the surface."""
    service = Recording().service
    return [
        *ChannelsHttp(service, [APP], SETTINGS, FakeClock()).routes(),
        *Proxy(service, [APP], SETTINGS).routes(),
    ]


@pytest.fixture(name="described")
def _described() -> dict[str, Any]:
    return document(routes(), title="tidelog", version="1")


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation of all."""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object anywhere inside."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def test_every_offered_route_is_described(described: dict[str, Any]) -> None:
    """Whatever the surface answers, other than that it is not offered, stands in the document."""
    hidden = {(method, path) for method, path, _ in NOT_OFFERED}
    offered = {(route.method, route.path) for route in routes()} - hidden
    assert {(method.upper(), path) for method, path, _ in operations(described)} == offered


def test_it_has_the_shape_of_openapi_3_1(described: dict[str, Any]) -> None:
    """Required members are there, ids are unique and all parameters of a path are declared."""
    assert described["openapi"].startswith("3.1.")
    assert set(described["info"]) >= {"title", "version"}
    ids = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(ids) == len(set(ids))
    for _, path, operation in operations(described):
        declared = [(each["in"], each["name"]) for each in operation["parameters"]]
        assert len(declared) == len(set(declared))
        in_path = {name for place, name in declared if place == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert operation["responses"].keys() >= {"200", "default"}
        for response in operation["responses"].values():
            assert response["description"]
        for requirement in operation["security"]:
            assert requirement.keys() <= described["components"]["securitySchemes"].keys()


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    """A `$ref` names a schema of the document."""
    references = [node["$ref"] for node in nodes(described) if "$ref" in node]
    assert references
    for reference in references:
        schema = reference.removeprefix("#/components/schemas/")
        assert schema in described["components"]["schemas"]


def test_every_schema_is_a_schema(described: dict[str, Any]) -> None:
    """All schemas are valid in draft 2020-12, which is OpenAPI 3.1's dialect."""
    found = [node["schema"] for node in nodes(described) if isinstance(node.get("schema"), dict)]
    for schema in [*found, *described["components"]["schemas"].values()]:
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )


def test_signed_routes_declare_the_signature(described: dict[str, Any]) -> None:
    """Every route under /apps asks for the signature, and those with a body for its MD5."""
    for method, path, operation in operations(described):
        if path.startswith("/apps/") and not path.endswith("/stream"):  # that takes a token too
            query = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
            assert query >= {"auth_key", "auth_timestamp", "auth_version"}
            assert ("body_md5" in query) == (method == "post")
            assert operation["security"] == [{"signature": []}]
            error = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert error["required"] == ["error", "code", "status"]


@pytest.mark.parametrize(
    ("body", "is_right"),
    [
        ({"name": "e", "channel": "c", "data": {"a": 1}}, True),
        ({"name": "e", "channels": ["c"], "extras": None}, True),
        ({"channel": "c"}, False),
        ({"name": 5}, False),
    ],
)
def test_bodies_are_described_as_they_are_parsed(
    described: dict[str, Any], body: dict[str, Any], is_right: bool
) -> None:
    """The schema of an event takes what the parser takes."""
    schema = {"$ref": "#/components/schemas/EventBody", "components": described["components"]}
    assert jsonschema_rs.is_valid(schema, body) == is_right


def test_sync_is_described_too() -> None:
    """The document of the sync routes is as sound as the one of channels."""

    async def handle(request: Any) -> Any:
        raise NotImplementedError

    described = document(
        [Route(*key, handle, operation) for key, operation in SYNC_OPERATIONS.items()],
        title="t",
        version="1",
    )
    assert len(list(operations(described))) == len(SYNC_OPERATIONS)
    test_it_has_the_shape_of_openapi_3_1(described)
    test_every_schema_is_a_schema(described)
