"""Examples that are no commands: settings, frames, bodies and states, read by the program."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.docs.pages import SETTINGS_TEST, checked_by
from support.docs.walk import Block, blocks
from support.web import wire_schema
from tidelog.channels.protocol import fault, wire
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.inbound import read_member, read_positions, read_rewind
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.requests import (
    parse_frame,
    parse_mutation,
    parse_publication,
)
from tidelog.channels.settings import Channels
from tidelog.client.channels.message import read_operations
from tidelog.config.settings import load
from tidelog.mesh.protocol.wire import Deliver, read_broker_frame
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.tree import TreeState

FRAMES = Frames(MessageIds(bytes))


def of_kind(document: str, kind: str) -> list[Block]:
    """The blocks of a document that are no file of a walk."""
    return [block for block in blocks(document) if block.kind == kind and not block.name]


@pytest.mark.parametrize("document", checked_by(SETTINGS_TEST))
def test_settings_are_accepted(document: str, tmp_path: Path) -> None:
    """Every `toml` block is a file a server reads, and each of its keys is known."""
    found = of_kind(document, "toml")
    assert found
    for number, block in enumerate(found):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text, encoding="utf-8")
        loaded = load({}, {}, file)
        assert str(file) in loaded.origins.values(), tomllib.loads(block.text)


def values(block: Block) -> list[dict[str, Any]]:
    """The JSON objects of a block, one after the other."""
    decoder = json.JSONDecoder()
    found = []
    text = block.text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].lstrip()
    return found


def shape(value: Any) -> Any:
    """Names of members, also of those inside JSON strings; values do not count."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, str) and value.startswith("{"):
        return shape(json.loads(value.replace("{...}", "{}")))
    return None


SERVER_FRAMES: dict[str, Callable[[], bytes]] = {
    "pusher:connection_established": lambda: FRAMES.connection_established(wire.V1, "8123.44", 120),
    "sockudo:connection_established": lambda: FRAMES.connection_established(wire.V2, "8124.9", 120),
    "sockudo_internal:subscription_succeeded": lambda: FRAMES.subscription_succeeded(
        wire.V2,
        "presence-lab",
        members={"ana": None},
        attach_serial=17,
        stream_id="0f6e",
        serial=42,
    ),
    "sockudo:rewind_complete": lambda: FRAMES.rewind_complete(
        "room-7",
        historical_count=3,
        live_count=0,
        complete=True,
        truncated_by_retention=False,
        truncated_by_limit=False,
    ),
    "sockudo:resume_success": lambda: FRAMES.resume_success(
        [wire.Recovered("room-7", "hot", 2, None)], []
    ),
}
"""What the server says, made by the functions it uses."""


def test_frames_and_bodies_of_channels() -> None:
    """Every `json` block of protocol/channels.md is read or made by the program in that form."""
    read: list[str] = []
    for block in of_kind("docs/protocol/channels.md", "json"):
        for value in values(block):
            payload = json.dumps(value).encode()
            event = value.get("event")
            if event in SERVER_FRAMES:
                said = json.loads(SERVER_FRAMES[event]())
                printed = shape(value)
                if event.startswith("sockudo"):  # left out of some examples
                    printed.setdefault("message_id", None)
                assert printed == shape(said), block.place
            elif event == "sockudo:subscribe":
                fields = wire.parse(payload).fields()
                assert read_rewind(fields["rewind"]) is not None
                assert read_member(fields["channel_data"], 2048).user_id == "ana"
            elif event == "sockudo:resume":
                [position] = read_positions(wire.parse(payload).fields(), 10)
                assert position.channel == "room-7"
            elif event == "sockudo:message.append":
                assert len(read_operations(value, is_full=False)) == 3
                wire_schema.check("channels", "server", value)
            elif event is not None:
                assert value.keys() >= {"event", "channel", "data", "message_id", "serial"}
                assert value["extras"]["headers"]["sockudo_action"] == "message.create"
                event = "message"
            elif "op_id" in value:
                parse_mutation("append", "room-7", "0" * 20, payload)
                event = "change"
            elif "name" in value:
                assert parse_publication(payload, None, Channels()).name == "chat.message"
                event = "publish"
            else:
                assert "channels" in value or value["status"] == "applied"
                event = "answer"
            read.append(event)
    assert set(read) == {
        *SERVER_FRAMES,
        *("sockudo:subscribe", "sockudo:resume", "sockudo:message.append"),
        *("message", "change", "publish", "answer"),
    }


def test_frames_of_runs() -> None:
    """Every `json` block of protocol/runs.md is a publish that is read, or a refusal as it is."""
    blocks_ = of_kind("docs/protocol/runs.md", "json")
    published, told = (value for block in blocks_ for value in values(block))
    read = parse_frame(json.dumps(published).encode(), Channels())
    assert (read.name, read.channels, read.message_id) == ("ai-input", ("room-7",), "q-17")
    refused = fault.event_not_permitted("Not allowed to publish ai-output: that is for agents")
    said = json.loads(FRAMES.publish_refused("room-7", refused, "q-17"))
    assert told["data"] == said["data"]
    assert told.keys() == said.keys()


def test_the_envelope_of_mesh() -> None:
    """The `json` block of protocol/mesh.md is what a daemon reads from a `deliver` frame."""
    [block] = of_kind("docs/protocol/mesh.md", "json")
    [value] = values(block)
    frame = read_broker_frame(json.dumps({"type": "deliver", "claim_id": "1", **value}))
    assert isinstance(frame, Deliver)
    named = {field.name for field in msgspec.structs.fields(Deliver)} - {"claim_id"}
    assert set(value) == named


def test_the_state_of_sync() -> None:
    """The `json` block of protocol/sync.md is a state that keeps the invariants of a tree."""
    [block] = of_kind("docs/protocol/sync.md", "json")
    [state] = values(block)
    model = Model.parse({"explorer": {"kind": "tree", "actions": ["treePush"]}}, {}, 1)
    assert TreeState.load(model, state).size > 0
