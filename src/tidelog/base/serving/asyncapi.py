"""What is said over a WebSocket, and the AsyncAPI 3.0 document made of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Meta, Struct

REFERENCE = "#/components/schemas/{name}"

EMBEDDED = "x-contentSchema"
"""Keyword of a text that holds JSON: the schema of that. JSON Schema of the version that AsyncAPI
uses has no word for it."""


class Message(Struct, frozen=True):
    """One kind of message, from one side."""

    name: str
    """Unique on its address and side: `connect`."""
    sender: Literal["client", "server"]
    body: Any
    """A type msgspec can describe: the whole message."""
    summary: str


class Address(Struct, frozen=True, kw_only=True):
    """A path that takes WebSocket connections, and everything that is said there."""

    name: str
    path: str
    title: str
    description: str
    parameters: Mapping[str, str]
    """Meaning of each parameter of the path."""
    messages: tuple[Message, ...]


def tagged(sender: Literal["client", "server"], *kinds: Any) -> tuple[Message, ...]:
    """Messages whose types are tagged Structs: the tag is the name, the docstring the summary."""
    return tuple(
        Message(str(kind.__struct_config__.tag), sender, kind, str(kind.__doc__)) for kind in kinds
    )


def holds(kind: type[Struct]) -> Meta:
    """Of a text that holds the JSON of `kind`, which has to be among the `embedded` types."""
    reference = {"$ref": REFERENCE.format(name=kind.__name__)}
    return Meta(extra_json_schema={"contentMediaType": "application/json", EMBEDDED: reference})


def document(
    addresses: Sequence[Address], *, title: str, version: str, embedded: Sequence[Any] = ()
) -> dict[str, Any]:
    """The document of these addresses; `embedded` are the types that `holds` was given."""
    types = [message.body for address in addresses for message in address.messages]
    bodies, schemas = msgspec.json.schema_components([*types, *embedded], ref_template=REFERENCE)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schema_of = iter(bodies)
    for address in addresses:
        named: dict[str, Any] = {}
        for message in address.messages:
            key = f"{address.name}.{message.sender}.{message.name}"
            messages[key] = {
                "name": message.name,
                "title": f"{message.name} ({message.sender})",
                "summary": message.summary,
                "payload": next(schema_of),
            }
            named[key] = {"$ref": f"#/components/messages/{key}"}
        channels[address.name] = {
            "address": address.path,
            "title": address.title,
            "description": address.description,
            "parameters": {
                name: {"description": meaning} for name, meaning in address.parameters.items()
            },
            "messages": named,
        }
        for action, sender in (("receive", "client"), ("send", "server")):
            operations[f"{address.name}.{action}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{address.name}"},
                "summary": f"What the {sender} sends on {address.path}.",
                "messages": [
                    {"$ref": f"#/channels/{address.name}/messages/{key}"}
                    for key in named
                    if key.split(".")[1] == sender
                ],
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": title,
            "version": version,
            "description": (
                "The messages on the WebSockets of a tidelog server, described from the server's "
                "side. Whoever reads a message ignores its unknown members."
            ),
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": _without_discriminators(schemas)},
    }


def _without_discriminators(schema: Any) -> Any:
    """The same; msgspec's discriminators are those of OpenAPI, which AsyncAPI does not know."""
    if isinstance(schema, dict):
        return {
            key: _without_discriminators(value)
            for key, value in schema.items()
            if key != "discriminator"
        }
    if isinstance(schema, list):
        return [_without_discriminators(each) for each in schema]
    return schema
