"""What is said over the WebSockets, from the wire types: the AsyncAPI document and its page."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.generation.markdown import NOTE, code, joined, table

from tidelog import __version__
from tidelog.base.serving import asyncapi
from tidelog.channels.front.api import asyncapi as channels
from tidelog.mesh.front import asyncapi as mesh
from tidelog.sync.front import asyncapi as sync
from tidelog.sync.front import asyncapi_insieme as insieme

ADDRESSES = (channels.ADDRESS, sync.ADDRESS, insieme.ADDRESS, mesh.ADDRESS)

INTRODUCTION = """\
Every message of each surface, as a table of its members. The whole document with all schemas, in
AsyncAPI 3.0, is {download}`asyncapi.json`. It is made from the wire types, and the tests check what
servers and clients really send against it. The protocols define the meaning and the order of
messages: [channels](../protocol/channels.md), [sync](../protocol/sync.md),
[mesh](../protocol/mesh.md). Whoever reads a message ignores members that it does not know."""

SIDES = {"client": "What clients send", "server": "What the server sends"}


def described() -> dict[str, Any]:
    """The document."""
    return asyncapi.document(
        ADDRESSES, title="tidelog", version=__version__, embedded=channels.EMBEDDED
    )


def document() -> str:
    """The same, for tools."""
    return json.dumps(described(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The page of all messages."""
    schemas = described()["components"]["schemas"]
    parts = [NOTE, "# WebSocket messages", INTRODUCTION]
    for address in ADDRESSES:
        parts += [f"## {address.title}: {code(address.path)}", address.description]
        for side, title in SIDES.items():
            parts.append(f"### {address.title}: {title.lower()}")
            for message in address.messages:
                if message.sender == side:
                    schema = schemas[message.body.__name__]
                    parts += [
                        f"#### {code(message.name)}",
                        message.summary,
                        _members(schema, schemas),
                    ]
    return joined(parts)


def _members(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    return table(("member", "type", "required"), _rows(schema, schemas, ""))


def _rows(
    schema: Mapping[str, Any], schemas: Mapping[str, Any], place: str
) -> Iterator[tuple[str, str, str]]:
    """The members of an object, and below each the members of the object that it is."""
    for name, inner in schema["properties"].items():
        required = "yes" if name in schema.get("required", ()) else ""
        yield code(f"{place}{name}"), _kind(inner), required
        below = _object_in(inner, schemas)
        if below is not None:
            yield from _rows(below, schemas, f"{place}{name}.")


def _object_in(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any] | None:
    held = schema.get(asyncapi.EMBEDDED) or schema.get("items") or schema
    options = [held, *held.get("anyOf", ())]
    for option in options:
        if "$ref" in option:
            found: Mapping[str, Any] = schemas[option["$ref"].rpartition("/")[2]]
            return found
    return None


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if held := schema.get(asyncapi.EMBEDDED):
        return f"text that holds {_kind(held)}"
    if reference := schema.get("$ref"):
        return f"`{reference.rpartition('/')[2]}`"
    if options := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(map(_kind, options)))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if pattern := schema.get("pattern"):
        return f"{kind}, {code(pattern)}"
    return kind
