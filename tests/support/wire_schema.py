"""Holds what is said over a WebSocket against docs/reference/asyncapi.json.

The published schemas let unknown members pass, as the protocols do. Here an object of the server
has no member that its schema does not name: a member that the server began to send, or that was
renamed, would else not be noticed.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jsonschema_rs

from tidelog.base.asyncapi import EMBEDDED

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "asyncapi.json"

Sender = Literal["client", "server"]


class _Kind(NamedTuple):
    """A message of the document."""

    key: str
    whole: jsonschema_rs.Draft7Validator
    embedded: jsonschema_rs.Draft7Validator | None
    """Of the JSON inside the text `data`, if that is such a text."""


def check(surface: str, sender: Sender, message: dict[str, Any]) -> str:
    """The key of the message in the document; fails if the message is none or not as described."""
    kind = _kind_of(surface, sender, message)
    error = next(iter(kind.whole.iter_errors(message)), None)
    assert error is None, f"{kind.key}: {error}"
    if kind.embedded is not None:
        error = next(iter(kind.embedded.iter_errors(json.loads(message["data"]))), None)
        assert error is None, f"{kind.key}, in data: {error}"
    return kind.key


def _kind_of(surface: str, sender: Sender, message: dict[str, Any]) -> _Kind:
    named = _kinds()[surface, sender]
    name = message.get("event" if surface == "channels" else "type")
    if name in named:
        return named[str(name)]
    # An event has the name that its publisher or client gave it.
    fallback = {"client": "client_event", "server": "event"}[sender]
    assert surface == "channels", f"the document has no {surface} message of type {name!r}"
    return named[fallback]


@cache
def document() -> dict[str, Any]:
    """The published document."""
    loaded: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    return loaded


@cache
def _kinds() -> dict[tuple[str, str], dict[str, _Kind]]:
    """By address and sender, then by every name that the message can have."""
    published = document()["components"]["schemas"]
    of_sender = {"client": published, "server": _strict(published)}
    kinds: dict[tuple[str, str], dict[str, _Kind]] = {}
    for key, message in document()["components"]["messages"].items():
        surface, sender, name = key.split(".", 2)
        schemas = of_sender[sender]
        schema = schemas[message["payload"]["$ref"].rpartition("/")[2]]
        held = schema["properties"].get("data", {}).get(EMBEDDED)
        kind = _Kind(
            key,
            _validator(message["payload"], schemas),
            None if held is None else _validator(held, schemas),
        )
        marks = schema["properties"]["event" if surface == "channels" else "type"]
        for mark in marks.get("enum", [name]):
            kinds.setdefault((surface, sender), {})[mark] = kind
    return kinds


def _validator(reference: dict[str, Any], schemas: dict[str, Any]) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator({"allOf": [reference], "components": {"schemas": schemas}})


def _strict(schemas: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {**schema, "additionalProperties": False} if "properties" in schema else schema
        for name, schema in schemas.items()
    }
