"""The AsyncAPI document: well-formed by its own standard, and true of what fixtures send."""

import json
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from support.node import installed
from support.web import wire_schema
from tidelog.mesh.protocol import wire as mesh_wire
from tidelog.sync.protocol.wire import CLIENT_TYPES

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "sync"
SURFACES = {"channels", "sync", "insieme", "mesh"}


def test_the_document_is_asyncapi() -> None:
    """It fits the JSON schema of AsyncAPI 3.0 that the specification's package ships."""
    package = installed(HERE) / "node_modules" / "@asyncapi" / "specs" / "schemas"
    schema = json.loads((package / "3.0.0-without-$id.json").read_text(encoding="utf-8"))
    validator = jsonschema_rs.validator_for(schema)
    assert [str(error) for error in validator.iter_errors(wire_schema.document())] == []
    assert not validator.is_valid({**wire_schema.document(), "channels": {"x": {"address": 5}}})


def test_references_lead_somewhere() -> None:
    """Every reference of the document is to something in it, and nothing is there for nobody."""
    document = wire_schema.document()
    found = set(_references(document))
    for reference in found:
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step.replace("~1", "/")]
    for kind in ("messages", "schemas"):
        for name in document["components"][kind]:
            assert f"#/components/{kind}/{name}" in found, name


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_every_message_of_the_wire_is_described() -> None:
    """Sync's types are those the session knows, mesh's are those it decodes; each side has both."""
    keys = set(wire_schema.document()["components"]["messages"])
    assert {key.split(".")[0] for key in keys} == SURFACES
    assert {key.split(".", 2)[2] for key in keys if key.startswith("sync.client.")} == CLIENT_TYPES
    broker = {key.split(".", 2)[2] for key in keys if key.startswith("mesh.server.")}
    assert broker == mesh_wire._BROKER_TYPES
    for operation in wire_schema.document()["operations"].values():
        assert operation["messages"]


class _Captured(dict[str, int]):
    """Every name that a fixture's earlier step captured: a place in the log."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 7


def fixture_sends() -> Iterator[tuple[str, dict[str, Any]]]:
    """Messages that the sync fixtures send and that are not answered with an error."""
    runner = runpy.run_path(str(FIXTURES / "run.py"))
    for path in sorted(FIXTURES.glob("[0-9]*.yaml")):
        fixture = yaml.safe_load(path.read_text(encoding="utf-8"))
        scope = runner["Scope"]("run", fixture.get("tokens", {}), "x" * 32)
        scope.vars = _Captured()
        steps = fixture.get("steps", [])
        for index, step in enumerate(steps):
            send = step.get("send")
            if send is None or send.get("omit") or _is_refused(send["conn"], steps[index + 1 :]):
                continue
            yield path.stem, scope.fill(send["message"])


def _is_refused(connection: str, later: list[dict[str, Any]]) -> bool:
    """Whether the next thing that happens on a connection is an error or its end."""
    for step in later:
        [(kind, argument)] = list(step.items())[:1]
        if kind in ("expect", "expect_close") and argument["conn"] == connection:
            return kind == "expect_close" or argument["message"].get("type") == "error"
    return False


OPAQUE = {
    "DeliverFrame.meta": "the sender's",
    "HistoryEnvelope.meta": "the sender's",
    "HeartbeatAck.payload": "empty",
    "HistoryItem.message": "a message as the HTTP API shows it, or an event as it was sent",
    "InsiemeCommittedEvent.meta": "the application's",
    "InsiemeCommittedEvent.payload": "the application's",
    "MemberData.user_info": "the application's",
    "MessageChange.data": "the publisher's",
    "MessageChange.extras": "the publisher's",
    "MessageChange.tags": "the publisher's",
    "PingEvent.data": "whatever the client sent",
    "PongEvent.data": "whatever the client sent",
    "PresenceSnapshot.hash": "the application's, by member",
    "PublishedEvent.data": "the publisher's",
    "PublishedEvent.extras": "the publisher's",
    "PublishedEvent.tags": "the publisher's",
    "SyncEvent.meta": "the application's",
    "SyncEvent.payload": "the application's",
}
"""Parts of what the server says whose members it does not know, and whose they are."""


def test_what_the_server_says_is_declared_to_its_last_member() -> None:
    """Nothing of its own is "some object": a member in there would be noticed by no test."""
    document = wire_schema.document()
    messages = document["components"]["messages"].items()
    said = {name for key, each in messages if ".server." in key for name in _named(each, document)}
    schemas = {name: document["components"]["schemas"][name] for name in said}
    opaque = {
        f"{name}.{member}"
        for name, schema in schemas.items()
        for member, of in schema.get("properties", {}).items()
        if _is_opaque(of)
    }
    assert opaque == set(OPAQUE)


def _named(node: Any, document: dict[str, Any]) -> set[str]:
    """The schemas that something refers to, and those they refer to."""
    found: set[str] = set()
    waiting = list(_references(node))
    while waiting:
        name = waiting.pop().rpartition("/")[2]
        if name not in found:
            found.add(name)
            waiting += _references(document["components"]["schemas"][name])
    return found


def _is_opaque(schema: dict[str, Any]) -> bool:
    """Whether a value can be anything, or an object of anything; also in an array or a choice."""
    if "anyOf" in schema:
        return any(_is_opaque(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return _is_opaque(schema.get("items", {}))
    is_anything = set(schema) <= {"description", "default"}
    values = schema.get("additionalProperties")
    is_map = isinstance(values, dict) and not _is_opaque(values)
    return is_anything or (schema.get("type") == "object" and not is_map)


def test_what_fixtures_send_is_as_described() -> None:
    """Every message of the sync fixtures that a server must accept fits the schema of its type."""
    seen: Counter[str] = Counter()
    for name, message in fixture_sends():
        whole = {"msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": {}, **message}
        try:
            key = wire_schema.check("sync", "client", whole)
        except AssertionError as error:
            pytest.fail(f"{name}: {error}")
        seen[key] += 1
    for kind in ("submit_events", "sync", "heartbeat"):
        assert seen[f"sync.client.{kind}"], seen
    assert seen.total() > 80


@pytest.mark.parametrize(
    ("surface", "sender", "message"),
    [
        ("sync", "client", {"type": "connect", "msg_id": "m", "timestamp": 1, "payload": {}}),
        ("sync", "server", {"type": "connect", "msg_id": "m", "timestamp": 1, "payload": {}}),
        ("mesh", "server", {"type": "peer_join", "member_pubkey": "k", "name": "n", "new": 1}),
        ("mesh", "client", {"type": "peer_join", "member_pubkey": "k", "name": "n"}),
        ("channels", "client", {"event": "pusher:subscribe", "data": {}}),
        ("channels", "client", {"event": "hello", "channel": "c"}),
        ("channels", "server", {"event": "sockudo:cache_miss", "channel": "c", "data": "[]"}),
        (
            "channels",
            "server",
            {"event": "pusher:connection_established", "data": '{"socket_id":"1.1"}'},
        ),
        ("channels", "server", {"event": "sockudo:message.unknown", "channel": "c"}),
    ],
)
def test_what_is_not_as_described_is_noticed(
    surface: str, sender: wire_schema.Sender, message: dict[str, Any]
) -> None:
    """Missing and unknown members, wrong sides, and faults inside a text are failures."""
    with pytest.raises(AssertionError):
        wire_schema.check(surface, sender, message)
