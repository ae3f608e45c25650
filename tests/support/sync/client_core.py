"""The sync client's protocol core with its server played by the test."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelog.client.sync.actions import Send
from tidelog.client.sync.changes import CHANGE_NAMES, Change
from tidelog.client.sync.core import SyncCore
from tidelog.client.sync.messages import Json
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import SyncStore
from tidelog.sync.protocol.profiles import Model
from tidelog.testing.clock import FakeClock

MODEL = Model.parse(
    {
        "explorer": {
            "kind": "tree",
            "actions": ["treePush", "treeDelete", "treeUpdate", "treeMove"],
        },
        "settings": {"kind": "value", "actions": ["set", "unset"]},
    },
    {"note": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}},
    3,
)


def value(name: str, given: object = 1) -> Json:
    """An event that sets a value."""
    return {"type": "set", "payload": {"target": f"settings.{name}", "value": given}}


def push(name: str) -> Json:
    """An event that adds a node."""
    return {"type": "treePush", "payload": {"target": "explorer", "value": {"id": name}}}


def update(node: str, **members: object) -> Json:
    """An event that changes a node, and so needs it."""
    payload = {"target": "explorer", "value": members, "options": {"id": node}}
    return {"type": "treeUpdate", "payload": payload}


def committed(position: int, event: Json, *partitions: str, id: str = "") -> Json:  # noqa: A002
    """A committed event as the server delivers it."""
    return {
        "id": id or f"e{position}",
        "client_id": "bo",
        "partitions": list(partitions or ("p",)),
        "committed_id": position,
        "status_updated_at": 1,
        "event": event,
    }


def page(*events: Json, through: int, to: int | None = None, **more: Any) -> Json:
    """Payload of a `sync_response`, the final page of `p` unless it says otherwise."""
    return {
        "partitions": ["p"],
        "effective_subscriptions": ["p"],
        "events": list(events),
        "next_since_committed_id": through,
        "sync_to_committed_id": through if to is None else to,
        "has_more": False,
    } | more


def reduce(state: Json, event: Json) -> Json:
    """Count the notes."""
    return {"notes": state.get("notes", 0) + 1} if event["type"] == "event" else state


def page_of(names: Sequence[str], *events: Json, through: int) -> Json:
    """The final page of several partitions."""
    every = list(names)
    return page(*events, through=through, partitions=every, effective_subscriptions=every)


class Bench:
    """A core with its server played by the test."""

    def __init__(
        self, path: Path, profile: str = "compatibility", partitions: Sequence[str] = ("p",)
    ) -> None:
        self.clock = FakeClock(1_000_000)
        self.store = SyncStore(path, client_id="ada", model_version=3, now=self.clock.now_ms)
        numbers = itertools.count(1)
        self.core = SyncCore(
            self.store,
            MODEL,
            now=self.clock.now_ms,
            uuid=lambda: f"u{next(numbers)}",
            profile=profile,
            partitions=partitions,
            reduce=reduce,
        )
        self.changes: list[Change] = []
        for name in CHANGE_NAMES:
            self.core.on(name, self.changes.append)

    def connect(self, **connected: Any) -> None:
        """Shake hands."""
        self.core.connect("token")
        self.say("connected", connected)

    def ready(self) -> None:
        """Connect and fetch an empty `p`; nothing is left in the outbox."""
        self.connect()
        self.say("sync_response", page(through=0))
        self.sent()

    def say(self, kind: str, payload: Json) -> None:
        """The server says this."""
        self.core.receive({"type": kind, "payload": payload})

    def broadcast(self, position: int, event: Json, *partitions: str, **more: str) -> None:
        """The server broadcasts a commit."""
        self.say("event_broadcast", committed(position, event, *partitions, **more))

    def result(self, **decision: Any) -> None:
        """The server answers one draft."""
        self.say("submit_events_result", {"results": [{"status_updated_at": 9} | decision]})

    def error(self, code: str, **details: Any) -> None:
        """The server complains."""
        self.say("error", {"code": code, "message": "m", "details": details})

    def draft(self, event: Json, id: str | None = None, *partitions: str) -> StoredEvent:  # noqa: A002
        """The application writes something valid."""
        stored = self.core.submit(partitions or ["p"], event, id)
        assert isinstance(stored, StoredEvent)
        return stored

    def fields(self, event: Json, *partitions: str, id: str | None = None) -> list[str]:  # noqa: A002
        """The application writes something invalid: which fields are at fault."""
        faults = self.core.submit(partitions or ["p"], event, id)
        assert isinstance(faults, list)
        return [fault.field for fault in faults]

    def sent(self) -> list[tuple[str, Json]]:
        """The messages since the last call; "close" stands for the end of the connection."""
        return [
            (action.message["type"], action.message["payload"])
            if isinstance(action, Send)
            else ("close", {"reason": action.reason})
            for action in self.core.actions()
        ]

    def kinds(self) -> list[str]:
        """The types of the messages since the last call."""
        return [kind for kind, _ in self.sent()]

    def submitted(self) -> list[list[str]]:
        """The ids of each batch since the last call."""
        return [
            [item["id"] for item in payload["events"]]
            for kind, payload in self.sent()
            if kind == "submit_events"
        ]

    def told(self, name: str) -> list[Json]:
        """The data of all changes of a name."""
        return [change.data for change in self.changes if change.name == name]

    def codes(self) -> list[str]:
        """The codes of all errors told."""
        return [data["code"] for data in self.told("error")]

    def synced(self) -> bool:
        """Whether the core counts itself complete."""
        return self.core.is_synced

    def settings(self, partition: str = "p") -> Json:
        """The `settings` that the application sees."""
        settings: Json = self.core.view(partition).get("settings", {})
        return settings

    def nodes(self) -> Json:
        """The `explorer` items that the application sees."""
        items: Json = self.core.view("p")["explorer"]["items"]
        return items
