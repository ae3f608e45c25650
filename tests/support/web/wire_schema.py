"""Holds what is said over a WebSocket against docs/reference/asyncapi.json.

The published schemas let unknown members pass, as the protocols do. Here an object of the server
has no member that its schema does not name: a member that the server began to send, or that was
renamed, would else not be noticed. The same is asked of our own clients, and of the structs that a
daemon reads the broker's frames with: what they do not declare, the daemon never sees.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jsonschema_rs

from tidelog.base.serving.asyncapi import EMBEDDED
from tidelog.mesh.protocol.wire import read_broker_frame

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "asyncapi.json"

Sender = Literal["client", "server"]


class _Kind(NamedTuple):
    """A message of the document."""

    key: str
    whole: jsonschema_rs.Draft7Validator
    embedded: jsonschema_rs.Draft7Validator | None
    """Of the JSON inside the text `data`, if that is such a text."""


def check(surface: str, sender: Sender, message: dict[str, Any], *, is_ours: bool = False) -> str:
    """The key of the message in the document; fails if the message is none or not as described.

    `is_ours`: it is of one of our own clients, which says nothing that is not described.
    """
    kind = _kind_of(surface, "ours" if sender == "client" and is_ours else sender, message)
    if (surface, sender) == ("mesh", "server"):
        frame = read_broker_frame(json.dumps(message))
        undeclared = set(message) - {"type", *frame.__struct_fields__} if frame else message
        assert not undeclared, f"{kind.key}: {type(frame).__name__} does not declare {undeclared}"
    error = next(iter(kind.whole.iter_errors(message)), None)
    assert error is None, f"{kind.key}: {error}"
    if kind.embedded is not None:
        error = next(iter(kind.embedded.iter_errors(json.loads(message["data"]))), None)
        assert error is None, f"{kind.key}, in data: {error}"
    return kind.key


def _kind_of(surface: str, sender: str, message: dict[str, Any]) -> _Kind:
    named = _kinds()[surface, sender]
    name = message.get("event" if surface == "channels" else "type")
    if name in named:
        return named[str(name)]
    # An event has the name that its publisher or client gave it.
    fallback = "event" if sender == "server" else "client_event"
    assert surface == "channels", f"the document has no {surface} message of type {name!r}"
    return named[fallback]


@cache
def document() -> dict[str, Any]:
    """The published document."""
    loaded: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    return loaded


@cache
def _kinds() -> dict[tuple[str, str], dict[str, _Kind]]:
    """By address and sender, then by every name that the message can have.

    The sender `ours` is a client that adds nothing.
    """
    published = document()["components"]["schemas"]
    strict = _strict(published)
    kinds: dict[tuple[str, str], dict[str, _Kind]] = {}
    for key, message in document()["components"]["messages"].items():
        surface, sender, name = key.split(".", 2)
        of_sender = {sender: strict if sender == "server" else published}
        if sender == "client":
            of_sender["ours"] = strict
        for each, schemas in of_sender.items():
            _add(kinds.setdefault((surface, each), {}), key, message, schemas, name)
    return kinds


def _add(
    kinds: dict[str, _Kind], key: str, message: dict[str, Any], schemas: dict[str, Any], name: str
) -> None:
    schema = schemas[message["payload"]["$ref"].rpartition("/")[2]]
    held = schema["properties"].get("data", {}).get(EMBEDDED)
    kind = _Kind(
        key,
        _validator(message["payload"], schemas),
        None if held is None else _validator(held, schemas),
    )
    marks = schema["properties"]["event" if key.startswith("channels.") else "type"]
    for mark in marks.get("enum", [name]):
        kinds[mark] = kind


def _validator(reference: dict[str, Any], schemas: dict[str, Any]) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator({"allOf": [reference], "components": {"schemas": schemas}})


def _strict(schemas: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {**schema, "additionalProperties": False} if "properties" in schema else schema
        for name, schema in schemas.items()
    }
